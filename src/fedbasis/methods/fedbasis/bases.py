"""The bases as one matrix per block: combine them, backpropagate to coefficients, train all by training one model.

With the combination ``c`` frozen, d loss / d v_k = c_k * g, so under SGD with momentum ``mu``, weight decay ``lambda``
and rate ``eta`` every basis moves along one shared direction ``u``. It is enough to train the combined model alone:

    s     = sum_k c_k^2                                    per block
    theta : plain SGD with rate eta*s and decay lambda/s   (one model, one momentum buffer)
    a, A  = 1, 0;  each step A = mu*A + lambda*a; a -= eta*A
    u     = (theta_T - a*theta_0) / s,    v_k = a*v_k + c_k*u      for every k

This is exact, not an approximation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbasis.tensors.blocks import Layout, LayoutEntry
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors, require_same
from pflbed.errors import InputError

MAJOR = "major"


def basis_name(index: int) -> str:
    """Return the name of a basis' group in a state."""
    return f"basis_{index}"


def groups_of(state: State) -> list[str]:
    """Return the groups of a state that are bases, in order: the major basis, if there is one, then the others."""
    count = sum(group.startswith("basis_") for group in state)
    groups = [MAJOR] * (MAJOR in state) + [basis_name(k) for k in range(count)]
    if count == 0 or any(group not in state for group in groups):
        raise InputError(f"A set of bases needs the groups basis_0, basis_1 ..., but it holds {sorted(state)}.")
    return groups


def require_models(layout: Layout, models: Sequence[Tensors]) -> None:
    """Raise an ``InputError`` if a basis does not fit the network."""
    for i, model in enumerate(models):
        require_same(model, layout.shapes, f"Basis {i}")


def stack(entries: Sequence[LayoutEntry], models: Sequence[Tensors]) -> Tensor:
    """Copy neighbouring tensors of a block to a matrix with a row per model."""
    start, stop = (entries[0].start, entries[-1].stop) if entries else (0, 0)
    matrix = next(iter(models[0].values())).new_empty(len(models), stop - start)
    if entries:
        for row, model in zip(matrix, models, strict=True):
            torch.cat([entry.flat(model[entry.name]) for entry in entries], out=row)
    return matrix


@dataclass(frozen=True)
class BasisSet:
    """All bases: one matrix per block with a row per basis, the major basis (if there is one) first."""

    layout: Layout
    weights: list[Tensor]
    statistics: list[Tensor]
    major: bool

    @classmethod
    def from_models(cls, layout: Layout, models: Sequence[Tensors], major: bool) -> "BasisSet":
        """Stack whole models; the first is the major basis if ``major`` is set."""
        require_models(layout, models)
        weights, statistics = (
            [
                stack([e for e in layout.select(trained) if e.block == block], models)
                for block in range(len(layout.blocks))
            ]
            for trained in (True, False)
        )
        return cls(layout, weights, statistics, major)

    @classmethod
    def from_state(cls, layout: Layout, state: State) -> "BasisSet":
        """Make a set from the groups ``major``, ``basis_0``, ``basis_1`` ... of a state."""
        groups, major = groups_of(state), MAJOR in state
        return cls.from_models(layout, [state[group] for group in groups], major)

    def to_state(self) -> State:
        """Return the bases as groups of a state; the tensors are copies."""
        groups = [MAJOR] * self.major + [basis_name(k) for k in range(self.count)]
        return {group: self.row(i) for i, group in enumerate(groups)}

    @property
    def count(self) -> int:
        """K: the number of bases besides the major one."""
        return self.weights[0].shape[0] - self.major

    def stacked(self) -> "BasisSet":
        """Return the bases as one matrix per block, which they are."""
        return self

    def to(self, device: torch.device | str) -> "BasisSet":
        """Return the same bases on a device."""
        weights, statistics = ([matrix.to(device) for matrix in kind] for kind in (self.weights, self.statistics))
        return BasisSet(self.layout, weights, statistics, self.major)

    def row(self, index: int) -> Tensors:
        """Return a copy of one row as a named model."""
        return self.layout.unflatten(
            [matrix[index].clone() for matrix in self.weights], [matrix[index].clone() for matrix in self.statistics]
        )

    def views(self) -> list[Tensors]:
        """Return all rows as named models, which are views."""
        return [
            self.layout.unflatten([m[i] for m in self.weights], [m[i] for m in self.statistics])
            for i in range(self.count + self.major)
        ]

    def combine_into(self, c: Tensor, model: FlatModel, statistics: bool = True) -> None:
        """Write the combined model theta = c V, and by default its statistics, to a working model."""
        for block, row in enumerate(c.unbind()):
            torch.mv(self.weights[block].t(), row, out=model.weights[block])
            if statistics and self.statistics[block].shape[1]:
                torch.mv(self.statistics[block].t(), row, out=model.statistics[block])

    def merge(self, c: Tensor) -> Tensors:
        """Return the combined model as one ordinary model, as large as a single basis."""
        weights = [torch.mv(matrix.t(), row) for matrix, row in zip(self.weights, c.unbind(), strict=True)]
        statistics = [torch.mv(matrix.t(), row) for matrix, row in zip(self.statistics, c.unbind(), strict=True)]
        return self.layout.unflatten(weights, statistics)

    def pull_back(self, gradients: Sequence[Tensor]) -> Tensor:
        """Turn d loss / d theta into d loss / d c: one matrix-vector product per block."""
        return torch.stack([torch.mv(matrix, g) for matrix, g in zip(self.weights, gradients, strict=True)])

    def cosine(self) -> tuple[float, list[float]]:
        """Return the mean pairwise cosine similarity of the K bases: of the whole networks, and per block."""
        if self.count < 2:
            return 1.0, [1.0] * len(self.weights)
        grams = [(m[self.major :].double() @ m[self.major :].double().t()) for m in self.weights]
        return _mean_cosine(torch.stack(grams).sum(dim=0)), [_mean_cosine(gram) for gram in grams]

    def cosines(self) -> dict[str, float]:
        """Return the same by name: of the network, and of every block."""
        whole, blocks = self.cosine()
        return {"network": whole, **dict(zip(self.layout.blocks, blocks, strict=True))}


def _mean_cosine(gram: Tensor) -> float:
    norms = gram.diagonal().clamp_min(torch.finfo(gram.dtype).tiny).sqrt()
    cosines = gram / torch.outer(norms, norms)
    return float(cosines[tuple(torch.triu_indices(len(gram), len(gram), offset=1))].mean())


@dataclass(frozen=True)
class FactoredRates:
    """The rates and decays of the combined model, per block, that are equivalent to training the bases."""

    theta_rates: list[float]
    theta_decays: list[float]
    basis_rates: list[float]
    decay: float
    momentum: float

    @classmethod
    def of(cls, c: Tensor, rate: float, momentum: float, decay: float, per_model: bool) -> "FactoredRates":
        """Compute them for a combination; with ``per_model``, ``rate`` is the combined model's, not each basis'."""
        squares = [float(s) for s in square_sums(c)]
        basis = [rate / s if per_model else rate for s in squares]
        theta = [rate if per_model else rate * s for s in squares]
        return cls(theta, [decay / s for s in squares], basis, decay, momentum)

    def shrinkage(self, steps: int) -> Tensor:
        """Return ``a`` per block: the factor of the old basis after ``steps`` steps of weight decay."""
        factors = []
        for rate in self.basis_rates:
            a, momentum = 1.0, 0.0
            for _ in range(steps):
                momentum = self.momentum * momentum + self.decay * a
                a -= rate * momentum
            factors.append(a)
        return torch.tensor(factors, dtype=torch.float64)


def square_sums(c: Tensor) -> Tensor:
    """Return s = sum_k c_k^2 per block."""
    return c.square().sum(dim=1)


def rebuild(v: Tensor, c: Tensor, a: Tensor, theta_end: Tensor, share: Tensor | None = None) -> Tensor:
    """Rebuild one block's bases from one client's trained model: ``share*a*v_k + c_k*u`` for every row k.

    It is computed as ``(c/s) theta_T + a (share*v - (c/s) theta_0)``, so that a single basis is exactly ``theta_T``.

    Args:
        v: The old bases [rows, numbers].
        c: The coefficients of the combination.
        a: The shrinkage.
        theta_end: The trained model.
        share: The factor of the old basis; None: 1; aggregation by usage sets it to alpha.
    """
    pull = (c / c.square().sum()).unsqueeze(1)
    theta_start = torch.mv(v.t(), c)
    moved = v.clone() if share is None else share.unsqueeze(1) * v
    moved -= pull * theta_start
    moved *= a.to(v.dtype)
    moved += pull * theta_end
    return moved
