"""pFedMe: every client trains its own model with a proximal term towards the global one, which follows these models.

T Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020. The objective is the
mean over the clients of the Moreau envelopes ``F_m(w) = min_theta f_m(theta) + strength / 2 ||theta - w||^2``. On
every batch of the recipe's epochs a client takes ``inner_steps`` gradient steps on theta (from the current theta; from
``w`` at a round's first batch), then moves its copy of w along the envelope's gradient,

    theta <- theta - inner_rate (grad f(theta; batch) + strength (theta - w)),    w <- w - rate strength (w - theta),

and sends w; the server computes ``(1 - beta) w + beta mean_m w_m``. Gradient steps are plain (no momentum) and the
recipe's decay belongs to f. Running statistics are those of the forward passes at theta; theta and w share them. No
step changes them, and the server mixes them with at most ``beta = 1``: a variance must not become negative.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field

from fedbasis.methods.base import MODEL, About, Adaptation, Context, Method, MethodConfig, Sent, Update, Ways
from fedbasis.networks.batches import batches
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import MeanLoss, by_epoch, local_sgd, proximal, sgd_steps
from fedbasis.tensors.params import State, Tensors

PERSONAL = "personal"


class PFedMeConfig(MethodConfig):
    """The paper's settings; its eta is the recipe's rate, and its R the number of batches in the recipe's epochs."""

    strength: float = Field(15.0, ge=0, description="lambda, strength of the proximal term; rate * lambda must be < 1")
    new_client_strength: float | None = Field(
        None, ge=0, description="the same at a new client, which is fine-tuned for many more steps; unset: lambda"
    )
    inner_steps: int = Field(5, ge=1, description="K, gradient steps on theta for every batch")
    inner_rate: float = Field(0.05, gt=0, description="learning rate of theta; inner_rate * lambda must be < 1")
    beta: float = Field(1.0, ge=0, description="step of the server towards the clients' mean; 1 is the mean")


class PFedMe(Method):
    """The server's state is the global model w; a client's state is its own model theta."""

    about: ClassVar[About] = About(
        name="pfedme",
        title="pFedMe",
        paper="T Dinh et al. 2020",
        sends="1 model",
        keeps="its own model theta",
        new_client="all of the model fine-tuned with a proximal term to w (pfedme: ft-prox with prox = lambda)",
    )
    ways: ClassVar[Ways] = Ways(own=("pfedme",), default=("pfedme",))
    state_group: ClassVar[str] = PERSONAL
    Config: ClassVar[type[MethodConfig]] = PFedMeConfig
    config: PFedMeConfig

    def init(self, seed: int) -> State:
        """Start from the initial model."""
        return {MODEL: self.task.initial(seed)}

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Update theta and then w, batch by batch; send w, store theta."""
        model, recipe, config, loss = context.model, self.task.recipe, self.config, MeanLoss()
        model.load(received[MODEL])
        w, generator = [flat.clone() for flat in model.weights], context.generator("batches")
        pull = proximal(model, config.strength, w)  # w itself: the anchor moves with it
        inner = replace(recipe, epochs=config.inner_steps, rate=config.inner_rate, momentum=0.0)
        for rows in (rows for _ in range(recipe.epochs) for rows in batches(len(data), recipe.batch, generator)):
            batch = Examples(data.pixels[rows], data.labels[rows])  # an epoch over one batch is one step
            solved = local_sgd(model, batch, replace(inner, batch=len(batch)), generator, adjust=pull)
            loss.total, loss.steps = loss.total + solved.total, loss.steps + solved.steps
            for ours, theta in zip(w, model.weights, strict=True):
                ours.sub_(ours - theta, alpha=recipe.rate * config.strength)
        personal = model.tensors()
        for flat, ours in zip(model.weights, w, strict=True):
            flat.copy_(ours)
        numbers = {"loss": loss.value(), "examples": float(len(data))}
        return Sent({MODEL: model.tensors()}, numbers), {PERSONAL: personal}

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Go from the old model towards, to or beyond the mean of the clients' models."""
        mean, beta, moving = self.mean(updates), self.config.beta, self.task.parameters
        return {
            MODEL: {
                name: torch.lerp(old, mean[name], beta if name in moving else min(beta, 1.0))
                for name, old in server[MODEL].items()
            }
        }

    def model(self, server: State) -> Tensors:
        """Return the global model w."""
        return server[MODEL]

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Solve a new client's ``min_theta f(theta) + strength / 2 ||theta - w||^2`` by SGD from w."""
        own = self.config.new_client_strength
        model, recipe = context.model, plan.recipe(self.task.recipe)
        model.load(self.model(server), "The server's model")
        pull = proximal(model, self.config.strength if own is None else own)
        for loss in by_epoch(sgd_steps(model, data, recipe, context.generator("adapt"), adjust=pull)):
            yield loss, {}
