"""Fed-MTL: every client is a task with its own model, and the server learns how the tasks are related.

Smith et al., "Federated Multi-Task Learning" (MOCHA), NeurIPS 2017, with the relations of Zhang & Yeung, "A Convex
Formulation for Learning Task Relationships in Multi-Task Learning", UAI 2010. With the models as the columns of W,

    min over W, Omega of  sum_m L_m(w_m) + l1 tr(W Omega W^T) + l2 ||W||^2   subject to tr(Omega^-1) = 1.

For fixed W the minimiser is Omega^-1 = (W^T W)^(1/2) / tr (W^T W)^(1/2), which the server computes from the Gram matrix
of the models; a ridge, W^T W + epsilon mean_m ||w_m||^2 I, keeps it invertible. For fixed Omega a client's part of the
penalty has the gradient 2 l1 (Omega_mm w + sum_{j != m} Omega_mj w_j) + 2 l2 w: the sum is one model that the server
sends. MOCHA solves the clients' parts in the dual, which needs linear models; here they are trained by SGD. Penalties
act on parameters, not on normalization statistics.
"""

from collections.abc import Iterable, Iterator
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedbasis.methods.base import MODEL, About, Adaptation, Context, MethodConfig, Sent, Update, Ways
from fedbasis.methods.shared.client_models import RELATIONS, ClientModels, clients, combination, gram, models
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import Adjust, local_sgd, proximal
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors

PULL = "pull"


class FedMTLConfig(MethodConfig):
    """The two penalties and the ridge."""

    l1: float = Field(1e-3, ge=0, description="strength of the relations between the clients, l1 tr(W Omega W^T)")
    l2: float = Field(0.0, ge=0, description="strength of l2 ||W||^2, besides the recipe's own weight decay")
    epsilon: float = Field(1e-4, gt=0, description="ridge of W^T W in units of the models' mean squared norm")


def relations(products: Tensor, epsilon: float) -> Tensor:
    """Return Omega = tr(S) S^-1 with S = (W^T W + ridge)^(1/2), from W^T W."""
    ridge = epsilon * products.diagonal().mean()
    values, vectors = torch.linalg.eigh(products + ridge * torch.eye(len(products), dtype=products.dtype))
    roots = values.clamp(min=max(float(ridge), torch.finfo(values.dtype).tiny)).sqrt()
    omega: Tensor = (vectors * (roots.sum() / roots)) @ vectors.T
    return omega


class FedMTL(ClientModels):
    """The server's state is the clients' models and Omega."""

    about: ClassVar[About] = About(
        name="fed-mtl",
        title="Fed-MTL",
        paper="Smith et al. 2017",
        sends="1 model",
        keeps="its own model w_m",
        new_client="the mean of all models, trained with the penalty l1 ||w - mean||^2 + l2 ||w||^2 (mtl)",
    )
    ways: ClassVar[Ways] = Ways(own=("mtl",), default=("none", "mtl"))
    Config: ClassVar[type[MethodConfig]] = FedMTLConfig
    config: FedMTLConfig

    def broadcast(self, server: State, client: str) -> State:
        """Send the other clients' term of the penalty's gradient, or the mean in a client's first round."""
        order = clients(server)
        if client not in order:
            return {MODEL: server[MODEL]}
        own = order.index(client)
        row = server[RELATIONS]["omega"][own]
        others = row.index_fill(0, torch.tensor(own), 0.0)
        return {PULL: combination(models(server), others, sorted(self.task.parameters)), RELATIONS: {"own": row[own]}}

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Train the client's own model with the penalty and send it."""
        context.model.load(self.start(received, state, context))
        adjust = self.penalty(received, context) if PULL in received else None
        loss = local_sgd(context.model, data, self.task.recipe, context.generator("batches"), adjust=adjust)
        trained = context.model.tensors()
        return Sent({MODEL: trained}, {"loss": loss.value(), "examples": float(len(data))}), {MODEL: trained}

    def penalty(self, received: State, context: Context) -> Adjust:
        """Return a function that adds the gradient of the penalty, with the other clients' models fixed."""
        l1, l2 = self.config.l1, self.config.l2
        own = 2 * (l1 * float(received[RELATIONS]["own"]) + l2)
        entries = self.task.layout.select(True)
        device = context.model.weights[0].device
        pull = [
            torch.cat([entry.flat(received[PULL][entry.name]) for entry in entries if entry.block == block]).to(device)
            for block in range(len(self.task.layout.blocks))
        ]

        def add(model: FlatModel) -> None:
            for gradient, flat, others in zip(model.gradients, model.weights, pull, strict=True):
                if own:  # zero adds nothing, not even a rounding
                    gradient.add_(flat, alpha=own)
                if l1:
                    gradient.add_(others, alpha=2 * l1)

        return add

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Replace the received models, then compute Omega from all models."""
        state = super().aggregate(server, updates, seed)
        omega = relations(gram(models(state), self.task.parameters), self.config.epsilon)
        return {**state, RELATIONS: {"omega": omega.float()}}

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Train from the mean of all models with a proximal term to it.

        The relations of a new task are unknown, so all are assumed equal: with Omega = I - 1 1^T / M the penalty is
        l1 sum_m ||w_m - mean||^2, and this is the new task's term of it.
        """
        context.model.load(self.model(server), "The server's model")
        towards, l2 = proximal(context.model, 2 * self.config.l1), self.config.l2

        def add(model: FlatModel) -> None:
            towards(model)
            if l2:
                for gradient, flat in zip(model.gradients, model.weights, strict=True):
                    gradient.add_(flat, alpha=2 * l2)

        yield from self.fit(data, context, plan, add)
