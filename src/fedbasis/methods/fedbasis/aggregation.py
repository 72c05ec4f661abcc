"""The aggregation of bases: average what every client would make of them, one upload in memory at a time.

``aggregation = "mean"`` (the paper) averages each basis over all clients, so a basis that few clients chose hardly
changes. ``"usage"`` divides by the usage of a basis instead: with one-hot coefficients every basis changes by the mean
change of the clients that chose it. Both are  v_k = sum_m w_m x_mk / sum_m w_m b_mk  with
x_mk = b_mk a_m v_k + c_mk u_m, where b_mk is 1 for the mean and alpha_mk for usage.

A factored upload is the trained model theta_m, and u_m = (theta_m - a_m sum_j c_mj v_j) / s_m. So the sum is

    sum_m w_m x_mk = sum_m (w_m c_mk / s_m) theta_m + sum_j R_kj v_j,
    R_kj = sum_m w_m a_m (b_mk [j = k] - c_mk c_mj / s_m):

a client adds its model to every sum and a few numbers to R, in float64, and the old bases are read once, at the end.

Normalization statistics are not trained by gradients: those of a basis are the usage-weighted mean of the statistics in
the uploads. A basis that no client used is unchanged.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedbasis.methods.base import MODEL
from fedbasis.methods.fedbasis.bases import BasisSet
from fedbasis.methods.fedbasis.coefficients import combination
from fedbasis.methods.fedbasis.upload import read_bases, read_coefficients, read_statistics
from fedbasis.tensors.params import State
from pflbed.errors import InputError

UNUSED = 1e-6  # a basis used less than this, as a share of the total weight, is not changed
PIECE = 2**14
"""How many numbers of every basis are added at a time."""


class BasisMean:
    """The mean of the clients' bases, with one client's upload in memory at a time.

    Args:
        bases: The bases that the clients received.
        by_usage: Whether the sums are divided by the usage of a basis.
    """

    def __init__(self, bases: BasisSet, by_usage: bool) -> None:
        self.bases, self.by_usage = bases, by_usage
        self.old = bases
        """The bases of which the new ones keep a part."""
        self._weights = [torch.zeros_like(matrix, dtype=torch.float64) for matrix in bases.weights]
        self._statistics = [torch.zeros_like(matrix, dtype=torch.float64) for matrix in bases.statistics]
        rows = bases.count + bases.major
        self._share = bases.weights[0].new_zeros(len(bases.weights), rows, dtype=torch.float64)
        self._usage = torch.zeros_like(self._share)
        self._kept = bases.weights[0].new_zeros(len(bases.weights), rows, rows, dtype=torch.float64)
        """R: how much of every old basis is in the sum of each."""
        self._total = 0.0

    def add(self, tensors: State, weight: float, where: str) -> None:
        """Add one client's upload, factored or full."""
        alpha, a = read_coefficients(self.bases, tensors, where)
        usage = usage_of(alpha, self.bases.major).double()
        share = usage if self.by_usage else torch.ones_like(usage)
        if MODEL in tensors:
            self._add_model(tensors, alpha, a.double(), weight * share, weight, where)
        else:
            self._add_bases(tensors, a.double(), weight * share, weight, where)
        for block, statistics in enumerate(read_statistics(self.bases, tensors, where)):
            self._statistics[block].add_(torch.outer(usage[block], statistics.double()), alpha=weight)
        self._share += weight * share
        self._usage += weight * usage
        self._total += weight

    def _add_model(self, tensors: State, alpha: Tensor, a: Tensor, share: Tensor, weight: float, where: str) -> None:
        """Add a factored upload: the trained model and the client's part of R."""
        c = combination(alpha.double(), self.bases.major)
        pull = weight * c / c.square().sum(dim=1, keepdim=True)
        ends = self.bases.layout.flatten(tensors[MODEL], True, where)
        for block, piece in self._pieces():
            self._weights[block][:, piece].addr_(pull[block], ends[block][piece].double())
        shrinkage = a[:, None, None]
        self._kept += shrinkage * (torch.diag_embed(share) - pull.unsqueeze(2) * c.unsqueeze(1))

    def _add_bases(self, tensors: State, a: Tensor, share: Tensor, weight: float, where: str) -> None:
        """Add a full upload: every basis, or its change ``c_k u`` for aggregation by usage."""
        sent = read_bases(self.bases, tensors, where)
        for block, piece in self._pieces():
            moved = torch.stack([flats[block][piece] for flats in sent])
            self._weights[block][:, piece].add_(moved.double(), alpha=weight)
        if self.by_usage:
            self._kept += torch.diag_embed(share * a.unsqueeze(1))

    def _pieces(self) -> Iterator[tuple[int, slice]]:
        for block, matrix in enumerate(self.bases.weights):
            for piece in pieces(matrix):
                yield block, piece

    def result(self) -> BasisSet:
        """Return the new bases; unused ones are unchanged. Call this once: it frees the sums."""
        if self._total <= 0:
            raise InputError("The bases need at least one update with a positive weight, but none was received.")
        weights = []
        for old, kept, share in zip(self.old.weights, self._kept, self._share, strict=True):
            total, new = self._weights.pop(0), torch.empty_like(old)
            for piece in pieces(old):
                total[:, piece].addmm_(kept, old[:, piece].double())
                new[:, piece] = divide(total[:, piece], share, self._total, old[:, piece])
            weights.append(new)
        statistics = [
            divide(self._statistics.pop(0), part, self._total, old)
            for part, old in zip(self._usage, self.old.statistics, strict=True)
        ]
        return BasisSet(self.old.layout, weights, statistics, self.old.major)


def pieces(matrix: Tensor) -> Iterator[slice]:
    """Yield the columns of a matrix, so many at a time that they stay in the processor's cache."""
    return (slice(start, start + PIECE) for start in range(0, matrix.shape[1], PIECE))


def usage_of(alpha: Tensor, major: bool) -> Tensor:
    """Return a client's usage of every basis: alpha, and one for the major basis."""
    return torch.cat([torch.ones_like(alpha[:, :1]), alpha], dim=1) if major else alpha


def divide(total: Tensor, part: Tensor, total_weight: float, old: Tensor) -> Tensor:
    """Divide a sum by its weight, in place."""
    used = (part > UNUSED * total_weight).unsqueeze(1)
    total /= torch.where(used, part.unsqueeze(1), torch.ones_like(part).unsqueeze(1))
    mean = total.to(old.dtype)
    return torch.where(used, mean, old, out=mean)
