"""FedFomo: a client downloads a few other clients' models and moves towards those that are better on its own images.

Zhang et al., "Personalized Federated Learning with First Order Model Optimization", ICLR 2021. On a fifth of its
images, which are held out from training, a client compares the models theta_n it has (including its own after its last
training) with theta_prev, its model before that training:

    w_n = (L(theta_prev) - L(theta_n)) / ||theta_n - theta_prev||
    theta = theta_prev + sum_n w+_n (theta_n - theta_prev),   w+ = max(w, 0) / sum max(w, 0),

trains theta, and sends it with the w_n of its downloads. The server adds these to the client's affinities, p_m += w,
and sends it next time the models with the highest affinities, each replaced by a random one with probability epsilon.
Distances are those of the parameters; normalization statistics are combined with the same weights.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedbasis.methods.base import CLOCK, MODEL, About, Adaptation, Context, MethodConfig, Sent, Serving, Update, Ways
from fedbasis.methods.shared.client_models import CLIENT, RELATIONS, ClientModels, clients, combination, models
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import forward, local_sgd
from fedbasis.tensors.params import State, Tensors
from fedbasis.tensors.seeding import torch_generator

AFFINITY = "affinity"
PREVIOUS = "previous"


class FedFomoConfig(MethodConfig):
    """How many models a client downloads, and how they are chosen."""

    models: int = Field(4, ge=1, description="models a client downloads a round; with its own this is the paper's 5")
    epsilon: float = Field(0.3, ge=0, le=1, description="probability that a download is a random model")
    epsilon_decay: float = Field(0.05, ge=0, description="decrease of epsilon every round")
    compare: Literal["previous", "own"] = Field("previous", description="theta_prev: before or after the last training")


class FedFomoServing(Serving):
    """What is published for new clients."""

    method: "FedFomo"

    def published(self, server: State) -> State:
        """Return the mean and the participating clients' models."""
        return {group: tensors for group, tensors in server.items() if group == MODEL or group.startswith(CLIENT)}


class FedFomo(ClientModels):
    """The server's state is the clients' models and their affinities."""

    about: ClassVar[About] = About(
        name="fedfomo",
        title="FedFomo",
        paper="Zhang et al. 2021",
        sends="1 model and one number for every model it downloaded",
        keeps="its model before and after its last training (2 models)",
        new_client="the mean of all models, moved towards some participating clients' models (fomo)",
    )
    serving_type: ClassVar[type[Serving]] = FedFomoServing
    ways: ClassVar[Ways] = Ways(
        own=("fomo",),
        default=("fomo", "fomo+ft"),
        rate_free=("fomo",),
    )
    Config: ClassVar[type[MethodConfig]] = FedFomoConfig
    config: FedFomoConfig

    def init(self, seed: int) -> State:
        """Start from the initial model; the seed draws the later downloads."""
        return {**super().init(seed), CLOCK: {"round": torch.tensor(0), "seed": torch.tensor(seed)}}

    def downloads(self, server: State, client: str) -> list[str]:
        """Choose whose models a client downloads: those of the highest affinities, ties at random, or random ones."""
        order, round = clients(server), int(server[CLOCK]["round"])
        generator = torch_generator(int(server[CLOCK]["seed"]), "downloads", client, round)
        shuffled = [order[i] for i in torch.randperm(len(order), generator=generator) if order[i] != client]
        affinity = server[RELATIONS][AFFINITY][order.index(client)].tolist() if client in order else [0.0] * len(order)
        best = sorted(shuffled, key=lambda name: -affinity[order.index(name)])
        explore = torch.rand(self.config.models, generator=generator, dtype=torch.float64)
        chosen: list[str] = []
        for chance in explore[: len(shuffled)]:
            queue = shuffled if chance < self.config.epsilon - self.config.epsilon_decay * round else best
            chosen.append(next(name for name in queue if name not in chosen))
        return sorted(chosen)

    def broadcast(self, server: State, client: str) -> State:
        """Send the chosen models, and in a client's first round also the mean of all."""
        start = [] if CLIENT + client in server else [MODEL]
        return {group: server[group] for group in start + [CLIENT + name for name in self.downloads(server, client)]}

    def loss(self, tensors: Tensors, data: Examples, context: Context) -> float:
        """Load a model and return its mean loss on images."""
        context.model.load(tensors)
        logits = forward(context.model.module, data.pixels, self.task.recipe.preprocessing)
        return float(cross_entropy(logits, data.labels.to(logits.device)))

    def weights(self, base: Tensors, table: Sequence[Tensors], data: Examples, context: Context) -> Tensor:
        """Compute by how much every model is better than the base on these images, over its distance from it."""
        before, weights = self.loss(base, data, context), torch.zeros(len(table), dtype=torch.float64)
        origin = torch.cat(self.task.layout.flatten(base)).double()
        for i, model in enumerate(table):
            distance = (torch.cat(self.task.layout.flatten(model)).double() - origin).norm()
            weights[i] = (before - self.loss(model, data, context)) / distance
        return weights.nan_to_num(0.0, 0.0, 0.0)  # for the base itself, and for a model whose loss is NaN

    @staticmethod
    def moved(base: Tensors, table: Sequence[Tensors], weights: Tensor) -> Tensors:
        """Return the base moved towards the better models; unchanged if none is better."""
        better = weights.clamp(min=0)
        return combination(table, better / better.sum().clamp(min=1e-300), base, base)

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Weight the downloads, move, train on the images not held out, and send the model and the weights."""
        held, rest = self.held_out(data, context)
        own, base = [], self.start(received, state, context)
        if state is not None and self.config.compare == "previous":
            own, base = [state[MODEL]], state[PREVIOUS]
        table = own + models(received)
        weights = self.weights(base, table, held, context)
        start = self.moved(base, table, weights)
        context.model.load(start)
        loss = local_sgd(context.model, rest, self.task.recipe, context.generator("batches"))
        trained = context.model.tensors()
        sent = {MODEL: trained, AFFINITY: {"weights": weights[len(own) :].float()}}
        before = {PREVIOUS: start} if self.config.compare == "previous" else {}
        return Sent(sent, {"loss": loss.value(), "examples": float(len(data))}), {MODEL: trained, **before}

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Replace the received models and add the received weights to the affinities."""
        increments: list[tuple[str, str, float]] = []

        def recorded() -> Iterator[tuple[str, Sent]]:
            for client, sent in updates:
                weights = zip(self.downloads(server, client), sent.tensors[AFFINITY]["weights"].tolist(), strict=True)
                increments.extend((client, name, weight) for name, weight in weights)
                yield client, sent

        state = super().aggregate(server, recorded(), seed)
        known, order = server[RELATIONS][AFFINITY] if RELATIONS in server else torch.zeros(0, 0), clients(state)
        affinity = self.enlarged(known, clients(server), order)
        for client, name, weight in increments:
            affinity[order.index(client), order.index(name)] += weight
        clock = {**server[CLOCK], "round": server[CLOCK]["round"] + 1}
        return {**state, RELATIONS: {AFFINITY: affinity}, CLOCK: clock}

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Move the mean of all models towards a few randomly drawn models, weighted by the losses on all images."""
        order = clients(server)
        drawn = torch.randperm(len(order), generator=context.generator("downloads"))[: self.config.models]
        table, base = models(server, [order[i] for i in sorted(drawn.tolist())]), self.model(server)
        fitted = self.moved(base, table, self.weights(base, table, data, context))
        yield self.loss(fitted, data, context), {}
