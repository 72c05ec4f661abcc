"""Arithmetic on named tensors: names and shapes are always checked, and means are computed one model at a time.

``Tensors`` is one model (or one group of numbers) by name; ``State`` is groups of them. Everything that is saved,
sent or averaged is a ``State``, so there is one function for each of these.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Protocol

import torch
from torch import Tensor

from pflbed.errors import InputError

Tensors = dict[str, Tensor]
State = dict[str, Tensors]


class HasShape(Protocol):
    """A tensor, or what a file says about one."""

    @property
    def shape(self) -> torch.Size:
        """Its size in every dimension."""
        ...


def require_same(got: Mapping[str, HasShape], expected: Mapping[str, torch.Size], where: str) -> None:
    """Raise an ``InputError`` that lists the differences if names or shapes are not the expected ones."""
    wrong = [f"'{name}' is missing" for name in expected if name not in got]
    wrong += [f"'{name}' is not expected" for name in got if name not in expected]
    wrong += [
        f"'{name}' has shape {tuple(got[name].shape)} instead of {tuple(shape)}"
        for name, shape in expected.items()
        if name in got and got[name].shape != shape
    ]
    if wrong:
        shown = "; ".join(wrong[:4]) + (f"; and {len(wrong) - 4} more" if len(wrong) > 4 else "")
        raise InputError(f"{where} does not fit the network: {shown}.")


def require_finite(state: State, where: str) -> None:
    """Raise an ``InputError`` that names the first tensor with NaN or infinity, if there is one."""
    for group, tensors in state.items():
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not _all_finite(tensor):
                raise InputError(f"{where} holds values that are not finite numbers (first in '{group}/{name}').")


def _all_finite(tensor: Tensor) -> bool:
    """Test the minimum and the maximum, which are NaN if any number is: much faster than ``isfinite`` on all."""
    return tensor.numel() == 0 or all(isfinite(float(end)) for end in torch.aminmax(tensor))


def is_finite(state: State) -> bool:
    """Return whether all numbers of a state are finite."""
    try:
        require_finite(state, "")
    except InputError:
        return False
    return True


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """Return the shape of every tensor by name."""
    return {name: tensor.shape for name, tensor in tensors.items()}


def nbytes(state: State) -> int:
    """Return the bytes of all tensors of a state, without any message overhead."""
    return sum(tensor.nbytes for tensors in state.values() for tensor in tensors.values())


def plus(one: Mapping[str, Tensor], other: Mapping[str, Tensor], factor: float = 1.0) -> Tensors:
    """Return ``one + factor * other``, tensor by tensor."""
    require_same(other, shapes(one), "What is added")
    return {name: torch.add(tensor, other[name], alpha=factor) for name, tensor in one.items()}


def only(tensors: Mapping[str, Tensor], names: Collection[str]) -> Tensors:
    """Return the tensors with these names."""
    return {name: tensor for name, tensor in tensors.items() if name in names}


def without(tensors: Mapping[str, Tensor], names: Collection[str]) -> Tensors:
    """Return the tensors without those with these names."""
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def columns(models: Sequence[Tensors], names: Iterable[str], width: int = 1 << 16) -> Iterator[Tensor]:
    """Yield the models' numbers side by side in float64 [models, some columns], a few columns at a time."""
    for name in names:
        flats = [model[name].reshape(-1) for model in models]
        for start in range(0, flats[0].numel(), width):
            yield torch.stack([flat[start : start + width] for flat in flats]).double()


def inner_products(rows: Iterable[Tensor], count: int) -> Tensor:
    """Return the Gram matrix of ``count`` rows that are given a few columns at a time."""
    products = torch.zeros(count, count, dtype=torch.float64)
    for part in rows:
        products += part @ part.t()
    return products


class StreamingMean:
    """A weighted mean of models of which only one is in memory at a time.

    The sum is in float64: the product of a float32 value and a whole-number weight is then exact, so the result does
    not depend on the memory layout of the tensors.
    """

    def __init__(self) -> None:
        self._sums: Tensors = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._weight = 0.0

    def add(self, tensors: Mapping[str, Tensor], weight: float, where: str = "an update") -> None:
        """Add one model with its weight."""
        if not self._sums:
            self._sums = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in tensors.items()}
            self._dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
        require_same(tensors, shapes(self._sums), where)
        for name, tensor in tensors.items():
            self._sums[name].add_(tensor.double(), alpha=weight)
        self._weight += weight

    def result(self) -> Tensors:
        """Return the mean in the tensors' own precision; an error if nothing was added."""
        if self._weight <= 0:
            raise InputError("A mean needs at least one update with a positive weight, but none was received.")
        return {name: (total / self._weight).to(self._dtypes[name]) for name, total in self._sums.items()}
