"""L2GD: every client has its own model; local steps and steps towards the mean of all models alternate at random.

Hanzely and Richtarik, "Federated Learning of a Mixture of Global and Local Models", 2020 (arXiv 2002.05516). The
objective is ``mean_m f_m(x_m) + lambda / 2 mean_m ||x_m - xbar||^2``. In every iteration one coin, the same for all
clients, decides: heads (probability p) is an aggregation step, tails a local step,

    heads: x_m <- x_m - pull (x_m - xbar),    tails: x_m <- x_m - rate grad f_m(x_m; batch),

with ``pull = alpha lambda / (M p)`` and ``rate = alpha / (M (1 - p))``, thus ``lambda = pull p / (rate (1 - p))``.

How a round maps to iterations: aggregation does not move xbar, so of consecutive heads only the first needs the server.
A round is therefore one communication: a run of h >= 1 heads towards the xbar received (at once, by
``1 - (1 - pull)^h``), then the run of t >= 1 tails up to the next heads, after which x_m is sent; the server takes the
mean. h and t come from the coin of (seed, round), so rounds in a row are exactly the paper's iterations with minibatch
gradients (before the first tails all x_m are equal and heads do nothing). A client that is not sampled misses the
iterations of that round, and xbar is the mean of those that were. The aggregation step also moves running statistics,
as a mean does: with pull = 1 and the recipe's epochs the method is FedAvg, with pull = 0 local training.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedbasis.methods.base import MODEL, About, Adaptation, Context, Method, MethodConfig, Sent, Update, Ways
from fedbasis.networks.batches import batches
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import by_epoch, local_sgd, sgd_steps
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors
from fedbasis.tensors.seeding import torch_generator

PERSONAL = "personal"


class L2GDConfig(MethodConfig):
    """The aggregation step and its probability; the learning rate of local steps is the recipe's."""

    pull: float = Field(
        0.5, ge=0, le=1, description="alpha lambda / (M p), the size of an aggregation step; 1 reaches the mean"
    )
    probability: float | None = Field(
        0.02,
        gt=0,
        lt=1,
        description="p of an aggregation step: 1/p local steps a round on average; null: the recipe's epochs",
    )


class L2GD(Method):
    """The server's state is the mean of the clients' models; a client's state is its own model."""

    about: ClassVar[About] = About(
        name="l2gd",
        title="L2GD",
        paper="Hanzely and Richtárik 2020",
        sends="1 model",
        keeps="its own model x_m",
        new_client="from the mean, local steps alternate with steps back towards it (l2gd)",
    )
    ways: ClassVar[Ways] = Ways(own=("l2gd",), default=("l2gd",))
    state_group: ClassVar[str] = PERSONAL
    Config: ClassVar[type[MethodConfig]] = L2GDConfig
    config: L2GDConfig

    def init(self, seed: int) -> State:
        """Start from the initial model, for all clients."""
        return {MODEL: self.task.initial(seed)}

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Train the client's own model: the round's heads, then its tails."""
        model, recipe = context.model, self.task.recipe
        model.load(received[MODEL] if state is None else state[PERSONAL])
        epoch = _steps(data, recipe.batch)
        heads, tails = self.run(context.seed, context.round, epoch)
        self._pull(model, received[MODEL], heads)
        enough = replace(recipe, epochs=-(-tails // epoch))
        loss = local_sgd(model, data, enough, context.generator("batches"), only=(0, tails))
        own = model.tensors()
        return Sent({MODEL: own}, {"loss": loss.value(), "examples": float(len(data))}), {PERSONAL: own}

    def run(self, seed: int, round: int, epoch: int) -> tuple[int, int]:
        """Draw a round's numbers of heads and of tails; ``epoch`` is the number of steps an epoch."""
        if self.config.probability is None:
            return 1, self.task.recipe.epochs * epoch
        generator, heads, tails = torch_generator(seed, "coin", round), 1, 1
        while float(torch.rand((), generator=generator)) < self.config.probability:
            heads += 1
        while float(torch.rand((), generator=generator)) >= self.config.probability:
            tails += 1
        return heads, tails

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Average the clients' models."""
        return {MODEL: self.mean(updates)}

    def model(self, server: State) -> Tensors:
        """Return the mean."""
        return server[MODEL]

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Simulate rounds 0, 1, 2, ... with a fixed mean; the momentum is not reset by aggregation steps."""
        model, mean = context.model, self.model(server)
        model.load(mean, "The server's model")
        recipe, epoch = plan.recipe(self.task.recipe), _steps(data, plan.batch)

        def steps() -> Iterator[tuple[bool, Tensor]]:
            round, (_, ends) = 0, self.run(context.seed, 0, epoch)
            for number, step in enumerate(sgd_steps(model, data, recipe, context.generator("adapt")), start=1):
                yield step
                if number == ends and number < plan.epochs * epoch:  # the last iteration is a local step
                    round += 1
                    heads, tails = self.run(context.seed, round, epoch)
                    self._pull(model, mean, heads)
                    ends += tails

        for loss in by_epoch(steps()):
            yield loss, {}

    def _pull(self, model: FlatModel, mean: Tensors, heads: int) -> None:
        strength = 1 - (1 - self.config.pull) ** heads
        centre = [*model.layout.flatten(mean, True), *model.layout.flatten(mean, False)]
        for flat, target in zip([*model.weights, *model.statistics], centre, strict=True):
            flat.lerp_(target.to(flat.device), strength)


def _steps(data: Examples, batch: int) -> int:
    """Return the number of batches of an epoch."""
    return len(batches(len(data), batch, torch.Generator()))
