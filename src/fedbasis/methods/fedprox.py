"""FedProx: FedAvg with a pull that keeps every client's model near the global one it started from.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020. Client m minimizes (equation 2)

    f_m(w) + mu / 2 ||w - w_t||^2,

with w_t the received model; the server takes the mean. The pull acts on parameters, not on normalization statistics.
The paper tunes mu over 0.001, 0.01, 0.1 and 1 and has no default; 0.01 is the usual one of these.
"""

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from fedbasis.methods.base import About, Context, MethodConfig
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks.train import Adjust, proximal
from fedbasis.tensors.params import State


class FedProxConfig(MethodConfig):
    """One number."""

    mu: float = Field(0.01, ge=0, description="strength of the pull towards the received model; 0 is FedAvg")


class FedProx(FedAvg):
    """The global model is the only state."""

    about: ClassVar[About] = replace(
        FedAvg.about,
        name="fedprox",
        title="FedProx",
        paper="Li et al. 2020",
    )
    Config: ClassVar[type[MethodConfig]] = FedProxConfig
    config: FedProxConfig

    def adjust(self, received: State, state: State | None, context: Context) -> Adjust | None:
        """Add the pull towards the received model, which has just been loaded."""
        return proximal(context.model, self.config.mu)
