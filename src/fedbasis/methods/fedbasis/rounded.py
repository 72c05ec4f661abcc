"""The aggregation when clients received rounded bases: their changes are applied to the server's exact bases.

The server holds v_k, and the clients received Q(v_k). A client starts from theta_0 = sum_k c_k Q(v_k), so its direction
is u = (theta_T - a theta_0) / s with the same Q(v_k). With the weights w_m and the shares b_mk of ``aggregation``,

    v_k = (sum_m w_m b_mk a_m / sum_m w_m b_mk) v_k + sum_m w_m c_mk u_m / sum_m w_m b_mk.

With Q(v) = v this is the aggregation of exact bases, but for float32 rounding. Clients that change nothing (theta_T =
theta_0, a = 1) leave v_k as it is, to the bit: no rounding error ever enters it. Normalization statistics are those of
the uploads, as always, and an unused basis keeps the exact ones.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from fedbasis.methods.base import MODEL
from fedbasis.methods.fedbasis.aggregation import BasisMean
from fedbasis.methods.fedbasis.bases import BasisSet
from fedbasis.methods.fedbasis.coefficients import combination
from fedbasis.methods.fedbasis.received import ReceivedBases
from fedbasis.methods.fedbasis.upload import read_bases
from fedbasis.tensors.params import State, Tensors


class RoundedBasisMean(BasisMean):
    """The mean of the clients' changes, applied to exact bases; one client's upload in memory at a time.

    Args:
        bases: The rounded bases, which the clients received.
        by_usage: Whether the sums are divided by the usage of a basis.
        exact: The server's bases.
    """

    def __init__(self, bases: BasisSet, by_usage: bool, exact: BasisSet) -> None:
        super().__init__(bases, by_usage)
        self.old = exact
        self._received = ReceivedBases(bases.layout, bases.views(), bases.major)  # combines as a client does

    def _add_model(self, tensors: State, alpha: Tensor, a: Tensor, share: Tensor, weight: float, where: str) -> None:
        """Add c_k u of every basis, from the trained model."""
        c = combination(alpha, self.bases.major)
        ends = self.bases.layout.flatten(tensors[MODEL], True, where)
        starts = self._received.combined(c)
        for block, piece in self._pieces():
            moved = ends[block][piece].double() - a[block] * starts[block][piece].double()
            factors = c[block].double()
            self._weights[block][:, piece].addr_(weight * factors / factors.square().sum(), moved)
        self._keep(a, share)

    def _add_bases(self, tensors: State, a: Tensor, share: Tensor, weight: float, where: str) -> None:
        """Add c_k u of every basis, which aggregation by usage has sent; else from all trained bases."""
        sent = read_bases(self.bases, tensors, where)
        for block, piece in self._pieces():
            moved = torch.stack([flats[block][piece] for flats in sent]).double()
            if not self.by_usage:
                moved -= a[block] * self.bases.weights[block][:, piece].double()
            self._weights[block][:, piece].add_(moved, alpha=weight)
        self._keep(a, share)

    def _keep(self, a: Tensor, share: Tensor) -> None:
        """Count how much of its old basis a client keeps: sum of w b a."""
        self._kept += torch.diag_embed(share * a.unsqueeze(1))


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
