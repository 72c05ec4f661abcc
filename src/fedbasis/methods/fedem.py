"""FedEM: K shared component models; a client's predictor is their mixture with the client's own weights.

Marfoq et al., "Federated Multi-Task Learning under a Mixture of Distributions", NeurIPS 2021; Algorithm 1. With
l_k(i) the loss of client m's example i under component k, a round at client m is
    E step:  q_i(k) = pi_mk exp(-l_k(i)) / sum_j pi_mj exp(-l_j(i))
    M step:  pi_mk = mean_i q_i(k);   theta_k is trained on the weighted loss  mean_i q_i(k) l_k(i)
and the server averages each theta_k over the clients, by their examples (or uniformly, as the task says). A client
predicts sum_k pi_mk softmax(h_k(x)). A new client repeats both steps for pi, with the components frozen; ``fedem+ft``
and ``fedem+lp`` then train all components, or their classifiers, by both steps, an epoch of SGD in every M step.

The paper starts from independent components (``start = "noise"``). Pretrained weights make all of them equal, so by
default the first rounds are FedAvg's, and its local models are clustered into K components.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedbasis.methods.base import (
    MODEL,
    About,
    Adaptation,
    Context,
    MethodConfig,
    Sent,
    Serving,
    Update,
    Ways,
    require_tensor,
)
from fedbasis.methods.shared.warm_start import WarmStartConfig, WarmStarted
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import Objective, local_sgd
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors, require_same
from pflbed.errors import InputError

MIXTURE = "mixture"


class FedEMConfig(WarmStartConfig):
    """The number of components and their initial models."""

    components: int = Field(3, ge=1, description="K, the number of components (the paper's M)")


class FedEMServing(Serving):
    """How a personalized client predicts."""

    method: "FedEM"

    def check_learned(self, learned: Tensors) -> None:
        """Check the weights, and all components but the one in the model."""
        pi = require_tensor(learned, "pi", (self.method.count,))
        others: dict[str, Tensors] = {}
        for name, tensor in learned.items():
            if name != "pi":
                number, _, inner = name.partition(":")
                others.setdefault(number, {})[inner] = tensor
        known = {str(k) for k in range(self.method.count)}
        if not set(others) <= known or len(others) != self.method.count - 1 or float(pi.min()) < 0:
            raise InputError(f"A mixture must hold {self.method.count} components and their weights, but it does not.")
        for number, tensors in others.items():
            require_same(tensors, self.method.task.layout.shapes, f"Component {number}")

    def probabilities(self, model: FlatModel, learned: Tensors, pixels: Tensor) -> Tensor:
        """Mix the components' probabilities; without mixture weights they are the model's."""
        if "pi" not in learned:
            return super().probabilities(model, learned, pixels)
        own = model.tensors()
        mixed = torch.zeros(())
        for k, share in enumerate(learned["pi"].tolist()):
            other = {name.partition(":")[2]: t for name, t in learned.items() if name.startswith(f"{k}:")}
            model.load(other or own)
            mixed = mixed + share * super().probabilities(model, {}, pixels)
        model.load(own)
        return mixed


class FedEM(WarmStarted):
    """The server's state is K components; a personalized client is all of them and their weights."""

    about: ClassVar[About] = About(
        name="fedem",
        title="FedEM",
        paper="Marfoq et al. 2021",
        sends="K models",
        keeps="the K mixture weights pi",
        new_client="K mixture weights by EM, the components frozen (fedem)",
    )
    serving_type: ClassVar[type[Serving]] = FedEMServing
    ways: ClassVar[Ways] = Ways(
        own=("fedem",),
        default=("fedem",),
        followed=("fedem+lp", "fedem+ft"),
        rate_free=("fedem",),
        one_network=False,
    )
    Config: ClassVar[type[MethodConfig]] = FedEMConfig
    prefix: ClassVar[str] = "component"
    config: FedEMConfig

    def client_update(
        self,
        received: State,
        state: State | None,
        data: Examples,
        context: Context,
        only: tuple[int, int] | None = None,
    ) -> tuple[Sent, State | None]:
        """Compute the responsibilities, and train each component on its weighted loss (over the same batches)."""
        if MODEL in received:
            return super().client_update(received, state, data, context, only)
        components = self.models(received)
        pi = self._uniform() if state is None else state[MIXTURE]["pi"]
        q = responsibilities(self.losses(components, data, context), pi)
        trained, loss = [], 0.0
        for k, component in enumerate(components):
            context.model.load(component)
            objective = weighted(q[:, k].to(context.model.weights[0]))
            steps = local_sgd(
                context.model,
                data,
                self.task.recipe,
                context.generator("batches"),
                only=only,
                objective=objective,
            )
            trained.append(context.model.tensors())
            loss += steps.value()
        numbers = {"loss": loss, "examples": float(len(data))}
        return Sent(self.numbered(trained), numbers), {MIXTURE: {"pi": q.mean(0).float()}}

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Average every component."""
        if MODEL in server:
            return self.aggregate_warm_start(server, updates, seed)
        means = {group: self.task.averaging.mean() for group in server}
        for client, sent in updates:
            weight = self.task.weight(int(sent.numbers["examples"]))
            for group, mean in means.items():
                mean.add(sent.tensors[group], weight, f"The update of {client}")
        return {group: mean.result() for group, mean in means.items()}

    def model(self, server: State) -> Tensors:
        """Return the first component: a mean of independent networks would not be a useful model."""
        if MODEL in server:
            return server[MODEL]
        return self.models(server)[0]

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Take EM steps for pi, then train the components if the way says so.

        The component with the most weight is in the model, the others are in ``learned``.
        """
        components = self.models(server)
        losses, pi = self.losses(components, data, context), self._uniform()
        for _ in range(plan.epochs):
            pi = responsibilities(losses, pi).mean(0)
            if way == "fedem":
                yield self._mixture(components, pi, losses, context)
        if way == "fedem":
            return
        names = self.task.head & self.task.parameters if way.endswith("+lp") else None
        recipe = replace(plan.recipe(self.task.recipe), epochs=1)
        for epoch in range(plan.epochs):
            q = responsibilities(losses, pi)
            for k, component in enumerate(components):
                context.model.load(component)
                objective = weighted(q[:, k].to(context.model.weights[0]))
                generator = context.generator("adapt", epoch)
                local_sgd(context.model, data, recipe, generator, names=names, objective=objective)
                components[k] = context.model.tensors()
            pi, losses = q.mean(0), self.losses(components, data, context)
            yield self._mixture(components, pi, losses, context)

    def _mixture(
        self, components: Sequence[Tensors], pi: Tensor, losses: Tensor, context: Context
    ) -> tuple[float, Tensors]:
        """Load the component with the most weight; return the negative log-likelihood, and the weights and others."""
        first = int(pi.argmax())
        context.model.load(components[first])
        others = {
            f"{k}:{name}": tensor
            for k, component in enumerate(components)
            if k != first
            for name, tensor in component.items()
        }
        likelihood = torch.logsumexp(pi.log() - losses, dim=1).mean()
        return -float(likelihood), {"pi": pi.float(), **others}

    def _uniform(self) -> Tensor:
        return torch.full((self.count,), 1 / self.count)


def responsibilities(losses: Tensor, pi: Tensor) -> Tensor:
    """The E step: return the responsibility of every component for every example [examples, components]."""
    return torch.softmax(pi.to(losses.dtype).log() - losses, dim=1)


def weighted(shares: Tensor) -> Objective:
    """Return the mean cross entropy with one weight per example."""

    def objective(logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        return (shares[rows.to(shares.device)] * cross_entropy(logits, labels, reduction="none")).mean()

    return objective
