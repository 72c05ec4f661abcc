"""Bases where they were received: combined, and a gradient turned into one of coefficients, without a copy of them.

Large tensors are read in place, so many numbers at a time that the result stays in the processor's cache. Small ones
are stacked, because one product over many of them takes less time than a call for each. No result depends on where the
tensors are in memory, so every engine computes the same bits: a sum of vectors is rounded number by number, and dot
products, which may round by the alignment of their inputs, are of aligned vectors only.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from fedbasis.methods.fedbasis.bases import MAJOR, BasisSet, groups_of, require_models, stack
from fedbasis.tensors.blocks import Layout
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.packed import ALIGNED
from fedbasis.tensors.params import State, Tensors

CHUNK = 2**16
"""How many numbers of a large tensor are combined at a time; smaller tensors are stacked."""


@dataclass(frozen=True)
class _Part:
    """The same numbers of all bases, and where they are in the flat vector of their block."""

    block: int
    start: int
    stop: int

    def of(self, flats: Sequence[Tensor]) -> Tensor:
        """Return this part of a model's flat vectors."""
        return flats[self.block][self.start : self.stop]


@dataclass(frozen=True)
class _Stacked(_Part):
    """Small tensors, copied to one matrix with a row per basis."""

    matrix: Tensor

    def combine(self, c: Tensor, out: Tensor) -> None:
        torch.mv(self.matrix.t(), c, out=out)

    def products(self, gradient: Tensor, first: int) -> Tensor:
        return torch.mv(self.matrix, gradient)[first:]


@dataclass(frozen=True)
class _InPlace(_Part):
    """A chunk of a large tensor: views, one per basis."""

    rows: Sequence[Tensor]

    def combine(self, c: Tensor, out: Tensor) -> None:
        first, *others = zip(self.rows, c.tolist(), strict=True)
        torch.mul(*first, out=out)
        for row, factor in others:
            out.add_(row, alpha=factor)

    def products(self, gradient: Tensor, first: int) -> Tensor:
        return torch.stack([torch.dot(_aligned(row), gradient) for row in self.rows[first:]])


def _aligned(row: Tensor) -> Tensor:
    return row if row.data_ptr() % ALIGNED == 0 else row.clone()


class ReceivedBases:
    """Frozen bases on the CPU: coefficients are learned on the tensors that a client received.

    Args:
        layout: The layout of the network.
        models: The bases; the first is the major basis if ``major`` is set.
        major: Whether there is a major basis.
    """

    def __init__(self, layout: Layout, models: Sequence[Tensors], major: bool) -> None:
        require_models(layout, models)
        self.layout, self.major, self._models = layout, major, models
        self._weights, self._statistics = (list(_parts(layout, trained, models)) for trained in (True, False))

    @classmethod
    def from_state(cls, layout: Layout, state: State) -> "ReceivedBases":
        """Make a set from the groups ``major``, ``basis_0``, ``basis_1`` ... of a state."""
        return cls(layout, [state[group] for group in groups_of(state)], MAJOR in state)

    def stacked(self) -> BasisSet:
        """Return a copy of the bases as one matrix per block."""
        return BasisSet.from_models(self.layout, self._models, self.major)

    def combine_into(self, c: Tensor, model: FlatModel, statistics: bool = True) -> None:
        """Write the combined model theta = c V, and by default its statistics, to a working model."""
        _combine(self._weights, c, model.weights)
        if statistics:
            _combine(self._statistics, c, model.statistics)

    def combined(self, c: Tensor) -> list[Tensor]:
        """Return the weights of the combined model, one flat vector per block."""
        flats = [c.new_empty(self.layout.size(block, True)) for block in range(len(self.layout.blocks))]
        _combine(self._weights, c, flats)
        return flats

    def pull_back(self, gradients: Sequence[Tensor]) -> Tensor:
        """Turn d loss / d theta into d loss / d c; zero for the major basis, whose coefficient is not learned."""
        sums = torch.zeros(len(gradients), len(self._models), dtype=torch.float64)
        for part in self._weights:
            sums[part.block, self.major :] += part.products(part.of(gradients), int(self.major))
        return sums.to(gradients[0].dtype)

    def cosine(self) -> tuple[float, list[float]]:
        """Return the mean pairwise cosine similarity of the K bases: of the whole networks, and per block."""
        return self.stacked().cosine()


def _combine(parts: Sequence[_Stacked | _InPlace], c: Tensor, flats: Sequence[Tensor]) -> None:
    for part in parts:
        part.combine(c[part.block], part.of(flats))


def _parts(layout: Layout, trained: bool, models: Sequence[Tensors]) -> Iterator[_Stacked | _InPlace]:
    """Divide the tensors of every block into chunks of large ones and runs of small ones."""
    in_order = sorted(layout.select(trained), key=lambda entry: entry.block)
    for (block, large), run in groupby(in_order, lambda entry: (entry.block, entry.stop - entry.start >= CHUNK)):
        entries = list(run)
        start, stop = entries[0].start, entries[-1].stop
        if not large:
            yield _Stacked(block, start, stop, stack(entries, models))
            continue
        for entry in entries:
            rows = [torch.split(entry.flat(model[entry.name]), CHUNK) for model in models]
            for number, chunk in enumerate(zip(*rows, strict=True)):
                first = entry.start + number * CHUNK
                yield _InPlace(block, first, first + len(chunk[0]), chunk)
