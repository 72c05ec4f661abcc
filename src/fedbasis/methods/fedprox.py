"""FedProx: FedAvg with a proximal term that keeps every client's model near the global one.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020. Client m minimizes (equation 2)

    f_m(w) + mu / 2 ||w - w_t||^2,

with w_t the received model; the server averages the models. The proximal term acts on parameters, not on normalization
statistics. The paper tunes mu over 0.001, 0.01, 0.1 and 1 and has no default; 0.01 is the usual choice.
"""

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from fedbasis.methods.base import About, Context, MethodConfig
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks.train import Adjust, proximal
from fedbasis.tensors.params import State


class FedProxConfig(MethodConfig):
    """The proximal term of local training."""

    mu: float = Field(0.01, ge=0, description="strength of the proximal term towards the received model; 0 is FedAvg")


class FedProx(FedAvg):
    """The server's state is the global model; clients have no state."""

    about: ClassVar[About] = replace(
        FedAvg.about,
        name="fedprox",
        title="FedProx",
        paper="Li et al. 2020",
    )
    Config: ClassVar[type[MethodConfig]] = FedProxConfig
    config: FedProxConfig

    def adjust(self, received: State, state: State | None, context: Context) -> Adjust | None:
        """Add the proximal term towards the received model, which is already loaded."""
        return proximal(context.model, self.config.mu)
