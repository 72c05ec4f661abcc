"""The format of a client's upload after a round of bases: its groups, how it is written, and how it is read.

A factored upload is one trained model, the convex weights alpha [B, K] and the shrinkage ``a`` [B]. A full upload has
every basis instead of the model. No other module uses the group names of an upload.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbasis.methods.base import MODEL
from fedbasis.methods.fedbasis.bases import MAJOR, BasisSet, basis_name, rebuild
from fedbasis.methods.fedbasis.coefficients import combination, convex
from fedbasis.tensors.params import State, Tensors
from pflbed.errors import InputError

COEFFICIENTS, STATISTICS = "coefficients", "statistics"


@dataclass(frozen=True)
class Upload:
    """A client's upload: its trained model, its convex weights alpha [B, K], and the shrinkage ``a`` [B]."""

    model: Tensors
    weights: Tensor
    a: Tensor

    def factored(self) -> State:
        """Return the factored upload: one model and the coefficients."""
        return {MODEL: self.model, **self._coefficients()}

    def full(self, bases: BasisSet, by_usage: bool, trained: list[Tensor] | None = None) -> State:
        """Return the full upload: every basis, the statistics, and the coefficients.

        For aggregation by usage the change c_k u is sent instead of the basis: a basis that was hardly used hardly
        changes, and the change would be lost in the rounding of the basis.

        Args:
            bases: The received bases.
            by_usage: Whether the server aggregates by usage.
            trained: The trained bases, one matrix per block; None: rebuild them from the model.
        """
        if trained is None:
            device = bases.weights[0].device
            c = combination(self.weights.to(device), bases.major)
            share = torch.zeros_like(c) if by_usage else torch.ones_like(c)
            ends = [theta.to(device) for theta in bases.layout.flatten(self.model)]
            blocks = zip(bases.weights, c.unbind(), self.a, ends, share.unbind(), strict=True)
            trained = [rebuild(*block) for block in blocks]
        names = {entry.name for entry in bases.layout.select(True)}
        state: State = {}
        for index in range(bases.count + bases.major):
            tensors = bases.layout.unflatten(
                [m[index].cpu() for m in trained], [m[index].cpu() for m in bases.statistics]
            )
            group = MAJOR if bases.major and index == 0 else basis_name(index - bases.major)
            state[group] = {name: tensor.clone() for name, tensor in tensors.items() if name in names}
        statistics = {name: tensor for name, tensor in self.model.items() if name not in names}
        return {**state, STATISTICS: statistics, **self._coefficients()}

    def _coefficients(self) -> State:
        return {COEFFICIENTS: {"alpha": self.weights, "a": self.a}}


def read_bases(bases: BasisSet, tensors: State, where: str) -> list[list[Tensor]]:
    """Return the bases of a full upload, each as one vector per block."""
    groups = [MAJOR] * bases.major + [basis_name(k) for k in range(bases.count)]
    return [bases.layout.flatten({**tensors[group], **tensors[STATISTICS]}, True, where) for group in groups]


def read_statistics(bases: BasisSet, tensors: State, where: str) -> list[Tensor]:
    """Return the statistics of an upload, one vector per block."""
    whole = tensors.get(MODEL) or {**tensors[basis_name(0)], **tensors[STATISTICS]}
    return bases.layout.flatten(whole, False, where)


def bounded_coefficients(tensors: State) -> tuple[Tensor, Tensor]:
    """Return the convex weights and the shrinkage of an upload, forced into their valid range."""
    return convex(tensors[COEFFICIENTS]["alpha"]), tensors[COEFFICIENTS]["a"].clamp(0, 1)


def direction(
    bases: BasisSet, tensors: State, alpha: Tensor, a: Tensor, by_usage: bool, where: str
) -> dict[str, Tensor]:
    """Return the direction u of every block, from the trained model or from all sent bases (assumed consistent)."""
    c = combination(alpha, bases.major)
    directions = {}
    if MODEL in tensors:
        for block, end in enumerate(bases.layout.flatten(tensors[MODEL], True, where)):
            start = torch.mv(bases.weights[block].t(), c[block])
            directions[str(block)] = (end - a[block].to(end.dtype) * start) / c[block].square().sum()
        return directions
    sent = read_bases(bases, tensors, where)
    for block, old in enumerate(bases.weights):
        rows = torch.stack([flats[block] for flats in sent])
        moved = rows if by_usage else rows - a[block].to(old.dtype) * old  # c_k u, row by row
        directions[str(block)] = torch.mv(moved.t(), c[block]) / c[block].square().sum()
    return directions


def reference(bases: BasisSet, sent: State, by_usage: bool) -> State:
    """Return the tensors to subtract from an upload, such that clipping the difference scales every basis' change.

    For the trained model this is the combination, for whole bases the received bases (the changes that are sent for
    aggregation by usage are already differences), and for ``a`` it is one, which means no decay. Coefficients are
    subtracted from themselves, so clipping does not change them.
    """
    alpha, _ = bounded_coefficients(sent)
    start = bases.merge(combination(alpha, bases.major))
    small = {"alpha": sent[COEFFICIENTS]["alpha"], "a": torch.ones_like(sent[COEFFICIENTS]["a"])}
    whole = {} if by_usage else bases.to_state()
    return {**whole, MODEL: start, STATISTICS: start, COEFFICIENTS: small}


def read_coefficients(bases: BasisSet, tensors: State, where: str) -> tuple[Tensor, Tensor]:
    """Return the convex weights and the shrinkage of an upload; an error if their shapes do not fit the bases."""
    alpha, a = tensors[COEFFICIENTS]["alpha"], tensors[COEFFICIENTS]["a"]
    expected = (len(bases.weights), bases.count)
    if tuple(alpha.shape) != expected or a.shape != (expected[0],):
        raise InputError(f"{where} must hold coefficients of shape {expected}, but they are {tuple(alpha.shape)}.")
    return alpha, a


def with_coefficients(tensors: State, alpha: Tensor, a: Tensor) -> State:
    """Return an upload with other coefficients."""
    return {**tensors, COEFFICIENTS: {"alpha": alpha, "a": a}}
