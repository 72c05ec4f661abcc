"""The server's side of the bases where clients are not trusted, or what they send has to be bounded.

A client moves all bases along one direction u (``basis``), the more the more it uses a basis, so what a basis hears of
the clients are their u, weighted by usage:  sum_m c_mk u_m = (sum_m c_mk) R_k,  where R_k is the mean of u weighted by
c_mk. The plain mean and the mean by usage are this with the mean of u; here R_k is a trimmed mean or median instead, of
the same u under the same weights. So a basis that few clients use is still moved by these, not by the many that
contribute nearly nothing to it (their c_mk u_m would be the middle of every coordinate), and with one-hot coefficients
it is the trimmed mean over just the clients that chose it. Coefficients enter as weights only, made convex first.

A few clients could all choose one basis and be most of its weight. So every u is first brought near to the range of
all clients' u (``Averaging.fenced``), whatever basis they use: then these few can move that basis, but not far.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbasis.methods.fedbasis.aggregation import UNUSED, BasisMean, ended, rows_of, usage_of
from fedbasis.methods.fedbasis.bases import BasisSet
from fedbasis.methods.fedbasis.coefficients import combination, convex
from fedbasis.tensors.averaging import CHUNK_NUMBERS, Averaging
from fedbasis.tensors.packed import on_disk
from fedbasis.tensors.params import State
from pflbed.errors import InputError


def basis_mean(bases: BasisSet, by_usage: bool, averaging: Averaging) -> "BasisMean | OrderedBases":
    """Start the mean of the clients' bases that is asked for."""
    return OrderedBases(bases, by_usage, averaging) if averaging.robust else BasisMean(bases, by_usage)


@dataclass(frozen=True)
class _Said:
    """What one client said: u and the statistics block by block (on disk), alpha, a, and its weight."""

    flats: State
    alpha: Tensor
    a: Tensor
    weight: float


class OrderedBases:
    """A trimmed mean or median of the clients' directions, which wait on disk until all have come."""

    def __init__(self, bases: BasisSet, by_usage: bool, averaging: Averaging) -> None:
        self.bases, self.by_usage, self.averaging = bases, by_usage, averaging
        self._said: list[_Said] = []

    def add(self, tensors: State, weight: float, where: str) -> None:
        """Put one client's direction aside, whether it sent one model or all bases."""
        alpha, a = coefficients(tensors)
        flats = {"u": direction(self.bases, tensors, alpha, a, self.by_usage, where)}
        flats["statistics"] = {str(block): flat for block, flat in enumerate(ended(self.bases, tensors, where))}
        self._said.append(_Said(on_disk([flats])[0], alpha, a, weight))

    def result(self) -> BasisSet:
        """Return the new bases; what nobody used is what it was."""
        if not self._said:
            raise InputError("The bases need at least one update with a positive weight, but none arrived.")
        weight = torch.tensor([said.weight for said in self._said], dtype=torch.float64)
        weights, statistics = [], []
        for block, (old, before) in enumerate(zip(self.bases.weights, self.bases.statistics, strict=True)):
            alpha = torch.stack([said.alpha[block] for said in self._said])
            c = combination(alpha, self.bases.major).double().t() * weight  # [rows, clients]
            usage = usage_of(alpha, self.bases.major).double().t() * weight
            share = usage if self.by_usage else weight.expand_as(usage)
            used = (usage.sum(1) > UNUSED * weight.sum()).unsqueeze(1)
            safe = torch.where(used, usage, torch.ones_like(usage))
            a = torch.stack([said.a[block] for said in self._said]).double().unsqueeze(1)
            kept = self.averaging.robust_mean(a, torch.where(used, share, torch.ones_like(share)))  # [rows, 1]
            reach = (c.sum(1) / share.sum(1).clamp_min(1e-300)).unsqueeze(1)
            moved = kept * old.double() + reach * self._middle("u", block, old, safe)
            weights.append(torch.where(used, moved.to(old.dtype), old) if self.by_usage else moved.to(old.dtype))
            seen = self._middle("statistics", block, before, safe)
            statistics.append(torch.where(used, seen.to(before.dtype), before))
        return BasisSet(self.bases.layout, weights, statistics, self.bases.major)

    def _middle(self, kind: str, block: int, like: Tensor, weights: Tensor) -> Tensor:
        """Average one block's vectors under every row's weights, a few coordinates at a time."""
        flats, width = [said.flats[kind][str(block)] for said in self._said], max(1, CHUNK_NUMBERS // len(self._said))
        parts = [
            self.averaging.robust_mean(
                self.averaging.clamp_outliers(torch.stack([f[start : start + width] for f in flats])), weights
            )
            for start in range(0, like.shape[1], width)
        ]
        return torch.cat(parts, dim=1) if parts else like.double()


def coefficients(tensors: State) -> tuple[Tensor, Tensor]:
    """Read a client's convex weights and shrinkage, made into such whatever was sent."""
    return convex(tensors["coefficients"]["alpha"]), tensors["coefficients"]["a"].clamp(0, 1)


def direction(
    bases: BasisSet, tensors: State, alpha: Tensor, a: Tensor, by_usage: bool, where: str
) -> dict[str, Tensor]:
    """Find u, block by block: from the trained model, or from all bases that were sent (as they are consistent)."""
    c = combination(alpha, bases.major)
    found = {}
    if "model" in tensors:
        for block, end in enumerate(bases.layout.flatten(tensors["model"], True, where)):
            start = torch.mv(bases.weights[block].t(), c[block])
            found[str(block)] = (end - a[block].to(end.dtype) * start) / c[block].square().sum()
        return found
    sent = rows_of(bases, tensors, where)
    for block, old in enumerate(bases.weights):
        rows = torch.stack([flats[block] for flats in sent])
        moved = rows if by_usage else rows - a[block].to(old.dtype) * old  # c_k u, row by row
        found[str(block)] = torch.mv(moved.t(), c[block]) / c[block].square().sum()
    return found


def reference(bases: BasisSet, sent: State, by_usage: bool) -> State:
    """Return what an upload is measured from, so that shortening the difference shortens every basis' movement alike.

    The trained model is measured from the combination, whole bases from those received (their movement, sent for
    aggregation by usage, is a difference already), and ``a`` from one: no decay. Coefficients stay as they are.
    """
    alpha, _ = coefficients(sent)
    start = bases.merge(combination(alpha, bases.major))
    small = {"alpha": sent["coefficients"]["alpha"], "a": torch.ones_like(sent["coefficients"]["a"])}
    whole = {} if by_usage else bases.to_state()
    return {**whole, "model": start, "statistics": start, "coefficients": small}


def alone(bases: BasisSet, sent: State) -> BasisSet:
    """Return the bases as they would be with one client alone; its statistics count by its usage of a basis."""
    alpha, a = coefficients(sent)
    mean = BasisMean(bases, by_usage=False)
    mean.add({**sent, "coefficients": {"alpha": alpha, "a": a}}, 1.0, "An update")
    moved, usage = mean.result(), usage_of(alpha, bases.major)
    statistics = [
        old + usage[block].unsqueeze(1).to(old.dtype) * (new - old)
        for block, (old, new) in enumerate(zip(bases.statistics, moved.statistics, strict=True))
    ]
    return BasisSet(bases.layout, moved.weights, statistics, bases.major)
