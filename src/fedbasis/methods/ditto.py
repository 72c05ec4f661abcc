"""Ditto: FedAvg's global model, and a personal model of every client with a proximal term towards the global one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021. Client m trains and sends
the global model as in FedAvg. It also trains its personal model, which is its client state (algorithm 1),

    v_m  to minimize  f_m(v) + lambda / 2 ||v - w_t||^2,

with w_t the received global model. A client's first v_m is w_t. Both models are trained on the same batches, as in the
authors' code; so lambda = 0 is local training. The proximal term acts on parameters, not on normalization statistics.

The paper chooses lambda among 0.1, 1 and 2 by a client's validation data and uses 1 if there are too few (smaller
values are for strong attacks); the authors' runs without attack use 1, the default here.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from fedbasis.methods.base import MODEL, About, Adaptation, Context, MethodConfig, Sent, Ways
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import by_epoch, local_sgd, proximal, sgd_steps
from fedbasis.tensors.params import State, Tensors

PERSONAL = "personal"


class DittoConfig(MethodConfig):
    """The proximal term of the personal models."""

    lam: float = Field(1.0, ge=0, description="lambda, the strength of the proximal term towards the global model")


class Ditto(FedAvg):
    """The server's state is the global model; a client's state is its personal model."""

    about: ClassVar[About] = replace(
        FedAvg.about,
        name="ditto",
        title="Ditto",
        paper="Li et al. 2021",
        keeps="its personal model",
        new_client="a personal model, trained from the global one with a proximal term towards it (ditto)",
    )
    ways: ClassVar[Ways] = Ways(own=("ditto",), default=("ditto",))
    state_group: ClassVar[str] = PERSONAL
    Config: ClassVar[type[MethodConfig]] = DittoConfig
    config: DittoConfig

    def client_update(
        self,
        received: State,
        state: State | None,
        data: Examples,
        context: Context,
        only: tuple[int, int] | None = None,
    ) -> tuple[Sent, State | None]:
        """Train the global model and send it, then train the personal model and store it."""
        sent, _ = super().client_update(received, state, data, context, only)
        model, recipe = context.model, self.task.recipe
        model.load(received[MODEL])
        pull = proximal(model, self.config.lam)  # towards the received model, which is loaded now
        if state is not None:
            model.load(state[PERSONAL])
        loss = local_sgd(model, data, recipe, context.generator("batches"), only=only, adjust=pull)
        numbers = {**sent.numbers, "personal_loss": loss.value()}
        return Sent(sent.tensors, numbers), {PERSONAL: model.tensors()}

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Train a personal model from the global one, with the same proximal term."""
        if way not in self.ways.own:
            raise KeyError(way)
        model, recipe = context.model, plan.recipe(self.task.recipe)
        model.load(self.model(server))
        pull = proximal(model, self.config.lam)
        for loss in by_epoch(sgd_steps(model, data, recipe, context.generator("adapt"), adjust=pull)):
            yield loss, {}
