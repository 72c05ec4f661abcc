"""APFL: a client's personal model is a mixture of its own model and the global one.

Deng et al., "Adaptive Personalized Federated Learning", arXiv 2003.13461, 2020. With the mixture
b = alpha_m v_m + (1 - alpha_m) w_m, client m takes on every batch the steps (algorithm 1, all gradients at the step
before)

    w_m <- w_m - eta grad f(w_m),    v_m <- v_m - eta alpha_m grad f(b),

sends w_m, which the server averages, and stores v_m, which starts as the received model. If alpha is learned,

    alpha_m <- alpha_m - rate <v_m - w_m, grad f(b)>, clipped to [0, 1].

The recipe's momentum and weight decay act on both w_m and v_m. A mixture is one network, so its normalization
statistics are those of its own passes; they are stored with v_m. The authors' code starts from alpha = 0.5, does not
learn it by default, and with that option learns it once a round; the equation, and this file, do so in every step.
A new client trains v and mixes it with the global model, which is frozen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedbasis.methods.base import MODEL, About, Adaptation, Context, MethodConfig, Sent, Serving, Ways
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples
from fedbasis.networks.optimizers import FlatSGD
from fedbasis.networks.train import MeanLoss, backward_passes, by_epoch, local_sgd
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors

PERSONAL, MIXTURE = "personal", "mixture"


class APFLConfig(MethodConfig):
    """The weight of a client's own model in its mixture, and whether it is learned."""

    alpha: float = Field(0.5, ge=0, le=1, description="initial weight of the client's own model in its mixture")
    adaptive: bool = Field(False, description="learn alpha for every client")
    alpha_rate: float | None = Field(None, gt=0, description="learning rate of alpha; unset: that of the models")


@dataclass
class Mixture:
    """The mixture, in a working model with its statistics, and the client's own parameters v."""

    model: FlatModel
    recipe: Recipe
    alpha: Tensor
    alpha_rate: float  # zero: alpha is fixed
    own: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.own = [flat.clone() for flat in self.model.weights]
        self._gradients = [torch.zeros_like(flat) for flat in self.own]
        blocks, recipe = len(self.own), self.recipe
        self._optimizer = FlatSGD(
            self.own, self._gradients, [recipe.rate] * blocks, [recipe.decay] * blocks, recipe.momentum
        )

    def mix(self, other: Sequence[Tensor]) -> None:
        """Write ``alpha v + (1 - alpha) other`` into the working model."""
        for flat, own, weights in zip(self.model.weights, self.own, other, strict=True):
            torch.lerp(weights, own, self.alpha, out=flat)

    def step(self, other: Sequence[Tensor]) -> None:
        """Update v, and alpha if it is learned, by the mixture's gradient; ``other`` is what v was mixed with."""
        slope = torch.zeros_like(self.alpha)
        for mine, gradient, own, weights in zip(self._gradients, self.model.gradients, self.own, other, strict=True):
            torch.mul(gradient, self.alpha, out=mine)
            if self.alpha_rate:
                slope += torch.dot(own - weights, gradient)
        self._optimizer.step()
        self.alpha = (self.alpha - self.alpha_rate * slope).clamp(0, 1)

    def tensors(self) -> Tensors:
        """Return a copy of v on the CPU, with the mixture's statistics."""
        kinds = ([flat.to("cpu", copy=True) for flat in flats] for flats in (self.own, self.model.statistics))
        return self.model.layout.unflatten(*kinds)


class APFLServing(Serving):
    """What is published for new clients, and how they predict."""

    method: "APFL"

    def participant(self, server: State, state: State | None) -> Tensors:
        """Mix the client's own model with the server's; the statistics are the mixture's, stored with v."""
        w, v = self.method.model(server), super().participant(server, state)
        share = self.method.config.alpha if state is None else float(state[MIXTURE]["alpha"])
        return {
            name: torch.lerp(w[name], v[name], share) if name in self.method.task.parameters else v[name] for name in v
        }


class APFL(FedAvg):
    """The server's state is the global model; a client's state is its own model and alpha."""

    about: ClassVar[About] = replace(
        FedAvg.about,
        name="apfl",
        title="APFL",
        paper="Deng et al. 2020",
        keeps="its own model and alpha",
        new_client="its own model, trained within its mixture with the global one (apfl)",
    )
    serving_type: ClassVar[type[Serving]] = APFLServing
    ways: ClassVar[Ways] = Ways(own=("apfl",), default=("apfl",))
    state_group: ClassVar[str] = PERSONAL
    Config: ClassVar[type[MethodConfig]] = APFLConfig
    config: APFLConfig

    def client_update(
        self,
        received: State,
        state: State | None,
        data: Examples,
        context: Context,
        only: tuple[int, int] | None = None,
    ) -> tuple[Sent, State | None]:
        """Train the global model by its own gradient and v by the mixture's, on the same batches."""
        model, recipe = context.model, self.task.recipe
        model.load(received[MODEL])
        second = FlatModel(model.module, model.layout, model.weights[0].device, precision=model.precision)
        second.load(received[MODEL] if state is None else state[PERSONAL])
        mixture = self._mixture(second, recipe, None if state is None else state[MIXTURE]["alpha"])
        mixture.mix(model.weights)
        personal = MeanLoss()
        passes = backward_passes(second, data, recipe, context.generator("batches"), only=only)

        def beside(_: FlatModel) -> None:
            personal.add(next(passes)[1])
            mixture.step(model.weights)  # both gradients are computed, and w is not updated yet

        def after(_: int) -> None:
            mixture.mix(model.weights)

        generator = context.generator("batches")
        loss = local_sgd(model, data, recipe, generator, only=only, adjust=beside, on_step=after)
        numbers = {"loss": loss.value(), "examples": float(len(data)), "personal_loss": personal.value()}
        after_round = {PERSONAL: mixture.tensors(), MIXTURE: {"alpha": mixture.alpha.cpu()}}
        return Sent({MODEL: model.tensors()}, numbers), after_round

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Train v within its mixture with the global model; the mixture is in ``context.model``."""
        if way not in self.ways.own:
            raise KeyError(way)
        model, recipe = context.model, plan.recipe(self.task.recipe)
        model.load(self.model(server))
        mixture, fixed = self._mixture(model, recipe, None), [flat.clone() for flat in model.weights]

        def step() -> None:
            mixture.step(fixed)
            mixture.mix(fixed)

        for loss in by_epoch(backward_passes(model, data, recipe, context.generator("adapt")), step):
            yield loss, {"alpha": mixture.alpha.cpu()}

    def _mixture(self, model: FlatModel, recipe: Recipe, alpha: Tensor | None) -> Mixture:
        rate = (self.config.alpha_rate or recipe.rate) if self.config.adaptive else 0.0
        share = torch.tensor(self.config.alpha) if alpha is None else alpha
        return Mixture(model, recipe, share.to(model.weights[0]), rate)
