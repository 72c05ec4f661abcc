"""SCAFFOLD: control variates correct every local step for the difference between a client's and the mean gradient.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, with option II and
global rate 1. Client m stores c_m (initially 0), the server c. From w_t, client m takes K steps with g - c_m + c and

    c_m+ = c_m - c + (w_t - w_m) / (eta K),    w = mean of w_m,    c <- c + |S| / N  mean of (c_m+ - c_m).

The paper's steps are plain SGD, and its c_m+ is the mean gradient along the client's path. With momentum a gradient
moves the model in all later steps too (ten times in all at 0.9); divided by the number of steps, the variates would
overshoot from round to round until they diverge. So K is the sum of the gradients' weights in the path
(``weight_of``): the number of steps if there is no momentum. Weight decay is part of the gradient. Variates exist for
parameters; normalization statistics are averaged with the model.

N is the number of clients in the federation (``population``). If it is unset, the server counts the clients that have
taken part, and c is the mean of their variates; with every client in every round both are the same.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field

from fedbasis.methods.base import CLOCK, MODEL, About, Context, MethodConfig, Sent, Serving, Update, Updates
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import Adjust, local_sgd
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors, plus
from pflbed.errors import InputError

CONTROL = "control"
FIRST = "first_time"


class ScaffoldConfig(MethodConfig):
    """The number of clients that the server's control variate is a mean over."""

    population: int | None = Field(
        None, ge=1, description="N, number of clients in the federation; unset: clients that have taken part so far"
    )


class ScaffoldUpdates(Updates):
    """How an update is measured and averaged."""

    needs_single_updates: ClassVar[str] = "the server counts the clients that take part for the first time"
    method: "Scaffold"

    def reference(self, server: State, client: str, sent: State) -> State:
        """Return the model only: the variate that is sent is already a change."""
        return {MODEL: server[MODEL]}


class ScaffoldServing(Serving):
    """What is published for new clients."""

    method: "Scaffold"

    def published(self, server: State) -> State:
        """Return the global model only."""
        return {MODEL: server[MODEL]}


class Scaffold(FedAvg):
    """The server's state is the global model, its variate and the number of clients that have taken part."""

    about: ClassVar[About] = replace(
        FedAvg.about,
        name="scaffold",
        title="SCAFFOLD",
        paper="Karimireddy et al. 2020",
        sends="1 model and 1 control variate (2 models)",
        keeps="its control variate",
    )
    updates_type: ClassVar[type[Updates]] = ScaffoldUpdates
    serving_type: ClassVar[type[Serving]] = ScaffoldServing
    Config: ClassVar[type[MethodConfig]] = ScaffoldConfig
    config: ScaffoldConfig

    def init(self, seed: int) -> State:
        """Start from the initial model with variates of zero."""
        model = self.task.initial(seed)
        return {MODEL: model, CONTROL: self._zeros(model), CLOCK: {"clients": torch.tensor(0)}}

    def broadcast(self, server: State, client: str) -> State:
        """Send the model and the server's variate."""
        return {MODEL: server[MODEL], CONTROL: server[CONTROL]}

    def client_update(
        self,
        received: State,
        state: State | None,
        data: Examples,
        context: Context,
        only: tuple[int, int] | None = None,
    ) -> tuple[Sent, State | None]:
        """Train with corrected steps, then estimate the client's mean gradient from the change of its model."""
        recipe, model = self.task.recipe, context.model
        model.load(received[MODEL])
        adjust = self.adjust(received, state, context)
        loss = local_sgd(model, data, recipe, context.generator("batches"), only=only, adjust=adjust)
        trained, reach = model.tensors(), recipe.rate * weight_of(loss.steps, recipe.momentum)
        change = {
            name: (received[MODEL][name] - trained[name]) / reach - control
            for name, control in received[CONTROL].items()
        }
        own = plus(self._own(received, state), change)
        numbers = {"loss": loss.value(), "examples": float(len(data)), FIRST: float(state is None)}
        return Sent({MODEL: trained, CONTROL: change}, numbers), {CONTROL: own}

    def adjust(self, received: State, state: State | None, context: Context) -> Adjust | None:
        """Add ``c - c_m`` to every gradient."""
        difference = plus(received[CONTROL], self._own(received, state), -1.0)
        flats = self.task.layout.flatten({**received[MODEL], **difference})
        correction = [flat.to(context.model.weights[0].device) for flat in flats]

        def correct(model: FlatModel) -> None:
            for gradient, towards in zip(model.gradients, correction, strict=True):
                gradient.add_(towards)

        return correct

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Average models and changes of variates; if the server counts its clients, new ones dilute its variate."""
        models, changes = (self.task.averaging.mean() for _ in range(2))
        received, seen = 0, int(server[CLOCK]["clients"])
        before = self.config.population or seen
        for client, sent in updates:
            weight, where = self.task.weight(int(sent.numbers["examples"])), f"The update of {client}"
            models.add(sent.tensors[MODEL], weight, where)
            changes.add(sent.tensors[CONTROL], weight, where)
            received, seen = received + 1, seen + int(sent.numbers[FIRST])
        clients = self.config.population or max(seen, received)
        if seen > clients:
            raise InputError(
                f"'population' must be the number of clients, but it is {clients} and {seen} took part; raise it."
            )
        rest = {name: tensor * (before / clients) for name, tensor in server[CONTROL].items()}
        control = plus(rest, changes.result(), received / clients)
        return {MODEL: models.result(), CONTROL: control, CLOCK: {"clients": torch.tensor(seen)}}

    def _own(self, received: State, state: State | None) -> Tensors:
        return self._zeros(received[MODEL]) if state is None else state[CONTROL]

    def _zeros(self, model: Tensors) -> Tensors:
        return {name: torch.zeros_like(tensor) for name, tensor in model.items() if name in self.task.parameters}


def weight_of(steps: int, momentum: float) -> float:
    """Return how far a constant gradient of 1 moves in ``steps`` steps at rate 1; without momentum: ``steps``."""
    total = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0
        total += velocity
    return total
