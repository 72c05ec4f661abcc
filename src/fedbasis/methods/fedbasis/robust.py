"""Robust aggregation of bases, for clients that may send wrong updates, and for bounded updates.

A client moves all bases along one direction u (see ``bases``), in proportion to its usage of a basis. So a basis
changes by the sum of the clients' u, weighted by usage:  sum_m c_mk u_m = (sum_m c_mk) R_k,  where R_k is the mean of u
weighted by c_mk. The plain mean and the mean by usage have the mean of u; here R_k is a trimmed mean or median of the
same u with the same weights. So a basis that few clients use is still moved by these clients, not by the many that
contribute nearly nothing to it (their c_mk u_m would be the middle of every coordinate), and with one-hot coefficients
R_k is the trimmed mean over the clients that chose the basis. Coefficients are used as weights only, made convex first.

A few clients could all choose one basis and have most of its weight. So every u is first clamped to near the range of
all clients' u (``Averaging.clamp_outliers``), whatever basis they use: these few can then not move that basis far.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbasis.methods.fedbasis.aggregation import UNUSED, BasisMean, usage_of
from fedbasis.methods.fedbasis.bases import BasisSet
from fedbasis.methods.fedbasis.coefficients import combination
from fedbasis.methods.fedbasis.rounded import RoundedBasisMean
from fedbasis.methods.fedbasis.upload import bounded_coefficients, direction, read_statistics, with_coefficients
from fedbasis.tensors.averaging import CHUNK_NUMBERS, Averaging
from fedbasis.tensors.packed import on_disk
from fedbasis.tensors.params import State
from pflbed.errors import InputError


def basis_mean(
    bases: BasisSet, by_usage: bool, averaging: Averaging, exact: BasisSet | None = None
) -> "BasisMean | OrderedBases":
    """Return an empty mean of the clients' bases: a robust one if ``averaging`` is robust, else the plain one.

    Args:
        bases: The bases that the clients received.
        by_usage: Whether the sums are divided by the usage of a basis.
        averaging: How updates are averaged.
        exact: The server's bases, if the clients received rounded ones.
    """
    if averaging.robust:
        return OrderedBases(bases, by_usage, averaging, exact)
    return BasisMean(bases, by_usage) if exact is None else RoundedBasisMean(bases, by_usage, exact)


@dataclass(frozen=True)
class _Direction:
    """One client's upload: u and the statistics per block (on disk), alpha, a, and its weight."""

    flats: State
    alpha: Tensor
    a: Tensor
    weight: float


class OrderedBases:
    """A trimmed mean or median of the clients' directions, which are stored on disk until all are received."""

    def __init__(self, bases: BasisSet, by_usage: bool, averaging: Averaging, exact: BasisSet | None = None) -> None:
        self.bases, self.by_usage, self.averaging = bases, by_usage, averaging
        self._old = bases if exact is None else exact
        self._received: list[_Direction] = []

    def add(self, tensors: State, weight: float, where: str) -> None:
        """Store one client's direction, from a factored or a full upload."""
        alpha, a = bounded_coefficients(tensors)
        flats = {"u": direction(self.bases, tensors, alpha, a, self.by_usage, where)}
        flats["statistics"] = {
            str(block): flat for block, flat in enumerate(read_statistics(self.bases, tensors, where))
        }
        self._received.append(_Direction(on_disk([flats])[0], alpha, a, weight))

    def result(self) -> BasisSet:
        """Return the new bases; unused ones are unchanged."""
        if not self._received:
            raise InputError("The bases need at least one update with a positive weight, but none was received.")
        weight = torch.tensor([sent.weight for sent in self._received], dtype=torch.float64)
        weights, statistics = [], []
        for block, (old, before) in enumerate(zip(self._old.weights, self._old.statistics, strict=True)):
            alpha = torch.stack([sent.alpha[block] for sent in self._received])
            c = combination(alpha, self.bases.major).double().t() * weight  # [rows, clients]
            usage = usage_of(alpha, self.bases.major).double().t() * weight
            share = usage if self.by_usage else weight.expand_as(usage)
            used = (usage.sum(1) > UNUSED * weight.sum()).unsqueeze(1)
            safe = torch.where(used, usage, torch.ones_like(usage))
            a = torch.stack([sent.a[block] for sent in self._received]).double().unsqueeze(1)
            shrinkage = self.averaging.robust_mean(a, torch.where(used, share, torch.ones_like(share)))  # [rows, 1]
            reach = (c.sum(1) / share.sum(1).clamp_min(1e-300)).unsqueeze(1)
            moved = shrinkage * old.double() + reach * self._middle("u", block, old, safe)
            weights.append(torch.where(used, moved.to(old.dtype), old) if self.by_usage else moved.to(old.dtype))
            seen = self._middle("statistics", block, before, safe)
            statistics.append(torch.where(used, seen.to(before.dtype), before))
        return BasisSet(self.bases.layout, weights, statistics, self.bases.major)

    def _middle(self, kind: str, block: int, like: Tensor, weights: Tensor) -> Tensor:
        """Return the robust mean of one block's vectors for every row of weights, a few coordinates at a time."""
        flats, width = (
            [sent.flats[kind][str(block)] for sent in self._received],
            max(1, CHUNK_NUMBERS // len(self._received)),
        )
        parts = [
            self.averaging.robust_mean(
                self.averaging.clamp_outliers(torch.stack([f[start : start + width] for f in flats])), weights
            )
            for start in range(0, like.shape[1], width)
        ]
        return torch.cat(parts, dim=1) if parts else like.double()


def alone(bases: BasisSet, sent: State) -> BasisSet:
    """Return the bases as they would be after a round with one client only; statistics are mixed by its usage."""
    alpha, a = bounded_coefficients(sent)
    mean = BasisMean(bases, by_usage=False)
    mean.add(with_coefficients(sent, alpha, a), 1.0, "An update")
    moved, usage = mean.result(), usage_of(alpha, bases.major)
    statistics = [
        old + usage[block].unsqueeze(1).to(old.dtype) * (new - old)
        for block, (old, new) in enumerate(zip(bases.statistics, moved.statistics, strict=True))
    ]
    return BasisSet(bases.layout, moved.weights, statistics, bases.major)
