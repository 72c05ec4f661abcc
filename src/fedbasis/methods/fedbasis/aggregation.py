"""The aggregation of bases: rebuild every client's bases from its upload and average them, one client at a time.

``aggregation = "mean"`` (the paper) averages each basis over all clients, so a basis that few clients chose hardly
changes. ``"usage"`` divides by the usage of a basis instead: with one-hot coefficients every basis changes by the mean
change of the clients that chose it. Both are  v_k = sum_m w_m x_mk / sum_m w_m b_mk  with
x_mk = b_mk a_m v_k + c_mk u_m, where b_mk is 1 for the mean and alpha_mk for usage.

Normalization statistics are not trained by gradients: those of a basis are the usage-weighted mean of the statistics in
the uploads. A basis that no client used is unchanged.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedbasis.methods.base import MODEL
from fedbasis.methods.fedbasis.bases import BasisSet, rebuild
from fedbasis.methods.fedbasis.coefficients import combination
from fedbasis.methods.fedbasis.upload import read_bases, read_coefficients, read_statistics
from fedbasis.tensors.params import State
from pflbed.errors import InputError

UNUSED = 1e-6  # a basis used less than this, as a share of the total weight, is not changed
PIECE = 2**14
"""How many numbers of every basis are added at a time; few enough for the processor's cache."""


class BasisMean:
    """The mean of the clients' bases, with one client's upload in memory at a time."""

    def __init__(self, bases: BasisSet, by_usage: bool) -> None:
        self.bases, self.by_usage = bases, by_usage
        self._weights = [torch.zeros_like(matrix, dtype=torch.float64) for matrix in bases.weights]
        self._statistics = [torch.zeros_like(matrix, dtype=torch.float64) for matrix in bases.statistics]
        rows = bases.count + bases.major
        self._share = bases.weights[0].new_zeros(len(bases.weights), rows, dtype=torch.float64)
        self._usage = torch.zeros_like(self._share)
        self._total = 0.0

    def add(self, tensors: State, weight: float, where: str) -> None:
        """Add one client's upload, factored or full."""
        alpha, a = read_coefficients(self.bases, tensors, where)
        usage = usage_of(alpha, self.bases.major)
        share = usage if self.by_usage else torch.ones_like(usage)
        for block, piece, moved in self._moved(tensors, alpha, a, share, where):
            self._weights[block][:, piece].add_(moved.double(), alpha=weight)
        for block, statistics in enumerate(read_statistics(self.bases, tensors, where)):
            self._statistics[block].add_(torch.outer(usage[block].double(), statistics.double()), alpha=weight)
        self._share += weight * share.double()
        self._usage += weight * usage.double()
        self._total += weight

    def _moved(
        self, tensors: State, alpha: Tensor, a: Tensor, share: Tensor, where: str
    ) -> Iterator[tuple[int, slice, Tensor]]:
        """Yield one client's term of every basis, piece by piece."""
        layout, bases = self.bases.layout, self.bases
        c = combination(alpha, bases.major)
        if MODEL in tensors:
            ends = layout.flatten(tensors[MODEL], True, where)
            for block, piece, v in self._pieces():
                yield block, piece, rebuild(v, c[block], a[block], ends[block][piece], share[block])
            return
        sent = read_bases(bases, tensors, where)
        for block, piece, v in self._pieces():
            moved = torch.stack([flats[block][piece] for flats in sent])
            if self.by_usage:
                moved = moved + share[block].unsqueeze(1) * a[block].to(moved.dtype) * v
            yield block, piece, moved

    def _pieces(self) -> Iterator[tuple[int, slice, Tensor]]:
        for block, matrix in enumerate(self.bases.weights):
            for start in range(0, matrix.shape[1], PIECE):
                piece = slice(start, start + PIECE)
                yield block, piece, matrix[:, piece]

    def result(self) -> BasisSet:
        """Return the new bases; unused ones are unchanged. Call this once: it frees the sums."""
        if self._total <= 0:
            raise InputError("The bases need at least one update with a positive weight, but none was received.")
        weights = [
            divide(self._weights.pop(0), part, self._total, old)
            for part, old in zip(self._share, self.bases.weights, strict=True)
        ]
        statistics = [
            divide(self._statistics.pop(0), part, self._total, old)
            for part, old in zip(self._usage, self.bases.statistics, strict=True)
        ]
        return BasisSet(self.bases.layout, weights, statistics, self.bases.major)


def usage_of(alpha: Tensor, major: bool) -> Tensor:
    """Return a client's usage of every basis: alpha, and one for the major basis."""
    return torch.cat([torch.ones_like(alpha[:, :1]), alpha], dim=1) if major else alpha


def divide(total: Tensor, part: Tensor, total_weight: float, old: Tensor) -> Tensor:
    """Divide a sum by its weight, in place."""
    used = (part > UNUSED * total_weight).unsqueeze(1)
    total /= torch.where(used, part.unsqueeze(1), torch.ones_like(part).unsqueeze(1))
    mean = total.to(old.dtype)
    return torch.where(used, mean, old, out=mean)
