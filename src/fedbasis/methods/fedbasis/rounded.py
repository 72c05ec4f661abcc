"""The aggregation when clients received rounded bases: their changes are applied to the server's exact bases.

The server holds v_k, and the clients received Q(v_k). A client starts from theta_0 = sum_k c_k Q(v_k), so its direction
is u = (theta_T - a theta_0) / s with the same Q(v_k). With the weights w_m and the shares b_mk of ``aggregation``,

    v_k = (sum_m w_m b_mk a_m / sum_m w_m b_mk) v_k + sum_m w_m c_mk u_m / sum_m w_m b_mk.

With Q(v) = v this is the aggregation of exact bases, but for float32 rounding. Clients that change nothing (theta_T =
theta_0, a = 1) leave v_k as it is, to the bit: no rounding error ever enters it. Normalization statistics are those of
the uploads, as always, and an unused basis keeps the exact ones.
"""

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from fedbasis.methods.base import MODEL
from fedbasis.methods.fedbasis.aggregation import UNUSED, BasisMean, divide, usage_of
from fedbasis.methods.fedbasis.bases import BasisSet
from fedbasis.methods.fedbasis.coefficients import combination
from fedbasis.methods.fedbasis.received import ReceivedBases
from fedbasis.methods.fedbasis.upload import read_bases, read_coefficients
from fedbasis.tensors.params import State, Tensors
from pflbed.errors import InputError


class RoundedBasisMean(BasisMean):
    """The mean of the clients' changes, applied to exact bases; one client's upload in memory at a time.

    Args:
        bases: The rounded bases, which the clients received.
        by_usage: Whether the sums are divided by the usage of a basis.
        exact: The server's bases.
    """

    def __init__(self, bases: BasisSet, by_usage: bool, exact: BasisSet) -> None:
        super().__init__(bases, by_usage)
        self.exact = exact
        self._received = ReceivedBases(bases.layout, bases.views(), bases.major)  # combines as a client does
        self._kept = torch.zeros_like(self._share)  # sum of w b a

    def add(self, tensors: State, weight: float, where: str) -> None:
        """Add one client's upload, factored or full."""
        super().add(tensors, weight, where)
        alpha, a = read_coefficients(self.bases, tensors, where)
        share = usage_of(alpha, self.bases.major) if self.by_usage else torch.ones_like(self._share, dtype=alpha.dtype)
        self._kept += weight * (share.double() * a.double().unsqueeze(1))

    def _moved(
        self, tensors: State, alpha: Tensor, a: Tensor, share: Tensor, where: str
    ) -> Iterator[tuple[int, slice, Tensor]]:
        """Yield c_k u of every basis, piece by piece."""
        bases, c = self.bases, combination(alpha, self.bases.major)
        sent = [] if MODEL in tensors else read_bases(bases, tensors, where)
        directions: dict[int, Tensor] = {}
        if MODEL in tensors:
            ends = bases.layout.flatten(tensors[MODEL], True, where)
            for block, (start, end) in enumerate(zip(self._received.combined(c), ends, strict=True)):
                directions[block] = (end - a[block].to(end.dtype) * start) / c[block].square().sum()
        for block, piece, q in self._pieces():
            if MODEL in tensors:
                yield block, piece, torch.outer(c[block], directions[block][piece])
                continue
            moved = torch.stack([flats[block][piece] for flats in sent])
            yield block, piece, moved if self.by_usage else moved - a[block].to(moved.dtype) * q

    def result(self) -> BasisSet:
        """Return the new bases; unused ones are unchanged. Call this once: it frees the sums."""
        if self._total <= 0:
            raise InputError("The bases need at least one update with a positive weight, but none was received.")
        weights = []
        for kept, share, old in zip(self._kept, self._share, self.exact.weights, strict=True):
            used = (share > UNUSED * self._total).unsqueeze(1)
            safe = torch.where(used, share.unsqueeze(1), torch.ones_like(share).unsqueeze(1))
            moved = (self._weights.pop(0) / safe).add_(old.double().mul_(kept.unsqueeze(1) / safe))
            weights.append(torch.where(used, moved.to(old.dtype), old))
        statistics = [
            divide(self._statistics.pop(0), part, self._total, old)
            for part, old in zip(self._usage, self.exact.statistics, strict=True)
        ]
        return BasisSet(self.exact.layout, weights, statistics, self.exact.major)


def with_rounding_undone(model: Tensors, exact: Tensors, rounded: Tensors, parameters: Collection[str]) -> Tensors:
    """Return a mean of models that were trained from a rounded one as if they had started from the exact one.

    Args:
        model: The mean.
        exact: The server's model.
        rounded: What the clients received of it.
        parameters: The names of the trained parameters; statistics stay as they are.
    """

    def undone(name: str, tensor: Tensor) -> Tensor:
        change = tensor.double() - rounded[name].double()
        return (exact[name].double() + change).to(tensor.dtype)

    return {name: undone(name, tensor) if name in parameters else tensor for name, tensor in model.items()}
