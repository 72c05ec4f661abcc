"""FedAMP: the server combines the clients' models for every client, with larger weights for models similar to its own.

Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021. The objective is
sum_m F_m(w_m) + lambda sum_{i<j} A(||w_i - w_j||^2) with A(x) = 1 - exp(-x / sigma). A round takes a gradient step on
the second sum at the server and a proximal step on the first at the clients:

    u_m = w_m + sum_{j != m} xi_mj (w_j - w_m),   xi_mj = alpha_k A'(||w_m - w_j||^2),   xi_mm = 1 - sum_j xi_mj
    w_m = argmin F_m(w) + lambda / (2 alpha_k) ||w - u_m||^2      (by SGD, from u_m or from the client's own model)

The paper needs alpha_k so small that no xi is negative; here it is lowered in a row in which a client's weight in its
own u_m would be less than 1 / clients. ``cosine`` is the paper's heuristic for deep networks,
HeurFedAMP: xi_mj = (1 - xi_mm) softmax_j(sigma cos(w_m, w_j)) with xi_mm given. Distances and angles are those of the
parameters; normalization statistics are combined with the same weights.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedbasis.methods.base import CLOCK, MODEL, About, Adaptation, Context, Insight, MethodConfig, Sent, Update, Ways
from fedbasis.methods.shared.client_models import RELATIONS, ClientModels, clients, combination, gram, models
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import local_sgd, proximal
from fedbasis.tensors.params import State, Tensors

SIGMA = {"distance": 1e6, "cosine": 25.0}


class FedAMPConfig(MethodConfig):
    """The paper's constants; sigma and alpha are on the scale of squared distances between whole networks."""

    attention: Literal["distance", "cosine"] = Field("distance", description="FedAMP, or its heuristic HeurFedAMP")
    lam: float = Field(1.0, ge=0, description="lambda; the proximal term towards u_m has strength lambda / alpha_k")
    alpha: float = Field(1e4, gt=0, description="alpha_k, the server's step; xi_mj is at most alpha_k / sigma")
    alpha_decay: float = Field(1.0, gt=0, le=1, description="factor on alpha every 'decay_every' rounds")
    decay_every: int = Field(30, ge=1, description="rounds between two decays of alpha")
    sigma: float | None = Field(
        None, gt=0, description="scale of the attention (of squared distances, or factor on cosines); unset: 1e6, or 25"
    )
    self_weight: float | None = Field(
        None, ge=0, le=1, description="xi_mm of 'cosine': a client's weight in its u_m; unset: 1 / clients"
    )
    start: Literal["cloud", "own"] = Field("cloud", description="a client trains from u_m, or from its own model")


def by_distance(products: Tensor, alpha: float, sigma: float) -> Tensor:
    """Return xi from the models' inner products, by alpha A'(squared distance)."""
    squares = products.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2 * products).clamp(min=0)
    others = (alpha / sigma * torch.exp(-distances / sigma)).fill_diagonal_(0)
    most = (len(products) - 1) / len(products)
    others *= (most / others.sum(1, keepdim=True).clamp(min=1e-300)).clamp(max=1)
    return others + torch.diag(1 - others.sum(1))


def by_cosine(products: Tensor, sigma: float, own: float | None) -> Tensor:
    """Return xi from the models' inner products, by a softmax of the cosines."""
    if len(products) == 1:
        return torch.ones_like(products)
    own = 1 / len(products) if own is None else own
    norms = products.diagonal().clamp(min=1e-300).sqrt()
    scores = (sigma * products / norms[:, None] / norms[None, :]).fill_diagonal_(float("-inf"))
    return (1 - own) * torch.softmax(scores, 1) + own * torch.eye(len(products), dtype=products.dtype)


class FedAMPInsight(Insight):
    """Numbers about the state."""

    method: "FedAMP"

    def diagnostics(self, server: State) -> dict[str, Any]:
        """Return a client's mean weight in its own u_m: 1 is local training, 1 / clients is the mean of all."""
        return {"self_weight": float(server[RELATIONS]["attention"].diagonal().mean())} if RELATIONS in server else {}


class FedAMP(ClientModels):
    """The server's state is the clients' models and the attention between them."""

    about: ClassVar[About] = About(
        name="fedamp",
        title="FedAMP",
        paper="Huang et al. 2021",
        sends="1 model",
        keeps="its own model w_m",
        new_client="the mean of all models, trained with a proximal term to it (amp), or without (ft)",
    )
    insight_type: ClassVar[type[Insight]] = FedAMPInsight
    ways: ClassVar[Ways] = Ways(own=("amp",), default=("amp", "ft"))
    Config: ClassVar[type[MethodConfig]] = FedAMPConfig
    config: FedAMPConfig

    def init(self, seed: int) -> State:
        """Start from the initial model in round 0."""
        return {**super().init(seed), CLOCK: {"round": torch.tensor(0)}}

    def alpha(self, round: int) -> float:
        """Return alpha_k."""
        return self.config.alpha * self.config.alpha_decay ** (round // self.config.decay_every)

    def broadcast(self, server: State, client: str) -> State:
        """Send u_m and alpha_k; in a client's first round u_m is the mean of all models."""
        order, cloud = clients(server), server[MODEL]
        if client in order:  # its own weight multiplies w_m - w_m
            mine = models(server, [client])[0]
            cloud = combination(models(server), server[RELATIONS]["attention"][order.index(client)], mine, mine)
        return {MODEL: cloud, RELATIONS: {"alpha": torch.tensor(self.alpha(int(server[CLOCK]["round"])))}}

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Train with the proximal term towards u_m and send the personal model."""
        model, strength = context.model, self.config.lam / float(received[RELATIONS]["alpha"])
        model.load(received[MODEL])
        adjust = proximal(model, strength)
        if self.config.start == "own":
            model.load(self.start(received, state, context))
        loss = local_sgd(model, data, self.task.recipe, context.generator("batches"), adjust=adjust)
        trained = model.tensors()
        return Sent({MODEL: trained}, {"loss": loss.value(), "examples": float(len(data))}), {MODEL: trained}

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Replace the received models, then compute the attention for the next round."""
        state, done, config = super().aggregate(server, updates, seed), int(server[CLOCK]["round"]) + 1, self.config
        products = gram(models(state), self.task.parameters)
        sigma = config.sigma or SIGMA[config.attention]
        near = config.attention == "distance"
        xi = by_distance(products, self.alpha(done), sigma) if near else by_cosine(products, sigma, config.self_weight)
        return {**state, RELATIONS: {"attention": xi.float()}, CLOCK: {"round": torch.tensor(done)}}

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Train from the mean of all models with a proximal term to it: the server has no attention for a new model."""
        context.model.load(self.model(server), "The server's model")
        yield from self.fit(data, context, plan, proximal(context.model, self.config.lam / self.config.alpha))
