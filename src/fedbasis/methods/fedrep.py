"""FedRep: a client first fits its own head to the body it received, then trains the body under that head.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021. With body ``phi``
and head ``h_i``, in every round

    ``h_i <- h_i - alpha grad_h f_i(h_i, phi)``       for ``head_epochs`` epochs, ``phi`` frozen,
    ``phi_i <- phi_i - alpha grad_phi f_i(h_i, phi_i)`` for ``body_epochs`` epochs, ``h_i`` frozen,

and the server takes the mean of ``phi_i``. While the head is fitted the body is frozen as a whole: its normalization
uses the running statistics and does not change them. The paper's image experiments train the head for 10 epochs, and
the body for as many as the compared methods train their whole model (1 for CIFAR, 5 for FEMNIST): so the body gets the
recipe's epochs. A new client fits a head to the mean body, which is the linear probe (``lp``).
"""

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from fedbasis.methods.base import About, Context, MethodConfig, Ways
from fedbasis.methods.shared.partial import Partial
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import MeanLoss, local_sgd


class FedRepConfig(MethodConfig):
    """The epochs of the two phases."""

    head_epochs: int = Field(10, ge=1, description="epochs a round on the head, with the body frozen")
    body_epochs: int | None = Field(
        None, ge=1, description="epochs a round on the body, with the head frozen; unset: the recipe's"
    )


class FedRep(Partial):
    """The head is personal, and never trained at the same time as the body."""

    about: ClassVar[About] = About(
        name="fedrep",
        title="FedRep",
        paper="Collins et al. 2021",
        sends="the body (less than 1 model)",
        keeps="the head",
        new_client="a head fitted to the mean body (lp), or both trained (ft)",
    )
    ways: ClassVar[Ways] = Ways(default=("lp", "ft"))
    Config: ClassVar[type[MethodConfig]] = FedRepConfig
    config: FedRepConfig

    @property
    def personal(self) -> frozenset[str]:
        """The classifier."""
        return self.task.head

    def fit(self, data: Examples, context: Context) -> MeanLoss:
        """Train the head, then the body; the returned loss is the body's."""
        model, task, generator = context.model, self.task, context.generator("batches")
        first = replace(task.recipe, epochs=self.config.head_epochs)
        then = replace(task.recipe, epochs=self.config.body_epochs or task.recipe.epochs)
        local_sgd(model, data, first, generator, names=task.head & task.parameters, statistics="frozen")
        return local_sgd(model, data, then, generator, names=task.body & task.parameters)
