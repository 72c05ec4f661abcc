"""pFedHN: the server holds a hypernetwork that generates every client's model from the client's embedding.

Shamsian et al., "Personalized Federated Learning using Hypernetworks", ICML 2021. With phi = (b, W, hidden layers):

    theta_m = h(v_m; phi) = b + W z(v_m)            z: linear layers with ReLUs between them; sent down
    d theta_m = theta~_m - theta_m                  after the client's local training; sent up
    phi <- phi + rate * J_phi^T d theta_m,          v_m <- v_m + rate * J_v^T d theta_m

(algorithm 1), by SGD with momentum over phi and all embeddings. A round's clients all start from the round's phi. With
``server_steps = "client"`` the server then takes one step per client, in the order of the round, each through phi and
v_m as they are by then. A step on phi has the client's share in the round (its weight divided by the sum of the
weights): the changes of a round add up, and without the share a rate that suits ten clients would be too large for a
hundred. With one client a round this is the authors' code, which samples one client per step, without its weight decay
of 0.001 on phi and its clipping of gradients at 50. With ``server_steps = "round"`` there is one step along the mean.

b starts as the initial (or pretrained) model and W at zero, so every client's first model is the initial one.
Statistics are averaged and sent too. With robust averaging the changes of a round are clamped before they are used. A
new client trains only an embedding, from the mean of the others.
"""

from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal
from urllib.parse import quote

import torch
from pydantic import Field
from torch import Tensor

from fedbasis.methods.base import (
    CLOCK,
    MODEL,
    About,
    Adaptation,
    Context,
    Learns,
    Method,
    MethodConfig,
    Sent,
    Serving,
    Update,
    Updates,
    Ways,
    clamped_updates,
    spool_updates,
)
from fedbasis.methods.pfedhn.hypernetwork import generate, pull_back
from fedbasis.methods.pfedhn.server_sgd import EmbeddingSGD, ServerSGD
from fedbasis.networks.inputs import Examples
from fedbasis.networks.optimizers import PlainSGD
from fedbasis.networks.train import backward_passes, by_epoch, local_sgd
from fedbasis.tensors.params import State, Tensors, only, plus, require_same, without
from fedbasis.tensors.seeding import torch_generator

HYPER, EMBEDDINGS, START, CHANGE = "hypernetwork", "embeddings", "start", "change"


class PFedHNConfig(MethodConfig):
    """The size of the hypernetwork and the server's rate."""

    embedding: int = Field(13, ge=1, description="length of an embedding (paper: 1 + clients / 4; 13 for 50 clients)")
    hidden: int = Field(32, ge=1, description="width of its layers (authors: 100); its size is that many models")
    layers: int = Field(1, ge=0, description="hidden layers after the first (authors: 3, which learn more slowly)")
    server_steps: Literal["client", "round"] = Field(
        "client", description="one server step per client, as the authors do, or one per round along the mean"
    )
    rate: float = Field(
        0.5, gt=0, description="the server's rate (authors: 0.01 with momentum 0.9, one client a round)"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of the server's SGD (authors: 0.9)")


class PFedHNUpdates(Updates):
    """How an update is measured and averaged."""

    needs_single_updates: ClassVar[str] = "the server learns an embedding of every client"
    method: "PFedHN"

    def reference(self, server: State, client: str, sent: State) -> State:
        """Return the server's statistics only: the parameters are sent as a change."""
        return {"statistics": server[MODEL]}


class PFedHNServing(Serving):
    """What is published for new clients."""

    method: "PFedHN"

    def check(self, published: State) -> None:
        """Compare the hypernetwork and the mean embedding with the settings."""
        config, layout = self.method.config, self.method.task.layout
        expected = {}
        for layer in range(config.layers + 1):
            inputs = config.hidden if layer else config.embedding
            expected[f"hidden_{layer}.weight"] = torch.Size((config.hidden, inputs))
            expected[f"hidden_{layer}.bias"] = torch.Size((config.hidden,))
        for block in range(len(layout.blocks)):
            expected[f"output_{block}.weight"] = torch.Size((layout.size(block, True), config.hidden))
        require_same(published[HYPER], expected, "The hypernetwork")
        require_same(published[START], {"embedding": torch.Size((config.embedding,))}, "The mean embedding")
        super().check(published)

    def learns(self, way: str) -> Learns:
        """Return the embedding."""
        return Learns(besides=self.method.config.embedding)

    def published(self, server: State) -> State:
        """Return the hypernetwork and the mean embedding, without the clients' embeddings."""
        return {group: server[group] for group in (MODEL, HYPER, START)}


class PFedHN(Method):
    """The server's group "model" holds b, the output layer's bias, and the running statistics."""

    about: ClassVar[About] = About(
        name="pfedhn",
        title="pFedHN",
        paper="Shamsian et al. 2021",
        sends="1 model (the change of it)",
        keeps="nothing (the server holds its embedding)",
        new_client="an embedding of its own through the frozen hypernetwork, then lp or ft",
    )
    updates_type: ClassVar[type[Updates]] = PFedHNUpdates
    serving_type: ClassVar[type[Serving]] = PFedHNServing
    ways: ClassVar[Ways] = Ways(
        own=("embedding",), default=("embedding", "embedding+lp", "embedding+ft"), frozen=("embedding",)
    )
    Config: ClassVar[type[MethodConfig]] = PFedHNConfig
    flat_state: ClassVar[bool] = True  # the hypernetwork's outputs are flat vectors
    config: PFedHNConfig

    def init(self, seed: int) -> State:
        """Initialize the hidden layers as torch does linear layers; the output layer starts at the initial model."""
        width, generator, hyper = self.config.hidden, torch_generator(seed, "hypernetwork"), Tensors()
        for layer in range(self.config.layers + 1):
            inputs = width if layer else self.config.embedding
            for part, shape in (("weight", (width, inputs)), ("bias", (width,))):
                hyper[f"hidden_{layer}.{part}"] = (2 * torch.rand(shape, generator=generator) - 1) / inputs**0.5
        for block in range(len(self.task.layout.blocks)):
            hyper[f"output_{block}.weight"] = torch.zeros(self.task.layout.size(block, True), width)
        small = {START: {"embedding": torch.zeros(self.config.embedding)}, CLOCK: {"seed": torch.tensor(seed)}}
        return {MODEL: self.task.initial(seed), HYPER: hyper, **small}

    def broadcast(self, server: State, client: str) -> State:
        """Generate the client's model."""
        return {MODEL: self._model(server, self.embedding(server, client))}

    def embedding(self, server: State, client: str) -> Tensor:
        """Return a client's current embedding, or its first one, drawn by the run's seed and the client's name."""
        known = server.get(EMBEDDINGS, {}).get(quote(client, safe=""))
        generator = torch_generator(int(server[CLOCK]["seed"]), "embedding", client)
        return torch.randn(self.config.embedding, generator=generator) if known is None else known

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Train the generated model; send the change of its parameters, and its statistics if it has any."""
        context.model.load(received[MODEL])
        loss = local_sgd(context.model, data, self.task.recipe, context.generator("batches"))
        trained, names = context.model.tensors(), self.task.parameters
        sent = {CHANGE: plus(only(trained, names), only(received[MODEL], names), -1.0)}
        sent |= {"statistics": statistics} if (statistics := without(trained, names)) else {}
        return Sent(sent, {"loss": loss.value(), "examples": float(len(data))}), None

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Backpropagate every change to the hypernetwork and to its client's embedding; step along it, or the mean."""
        averaging, names, config = self.task.averaging, self.task.parameters, self.config
        how = config.rate, config.momentum
        phi = {
            group: ServerSGD(tensors, server.get(f"velocity_{group}", {}), *how)
            for group, tensors in ((MODEL, only(server[MODEL], names)), (HYPER, server[HYPER]))
        }
        embeddings = EmbeddingSGD(server.get(EMBEDDINGS, {}), server.get(f"velocity_{EMBEDDINGS}", {}), *how)
        single = config.server_steps == "client"
        received = clamped_updates(updates, averaging, CHANGE)
        if single and not isinstance(received, list):
            received = spool_updates(received)  # on disk: a share needs the weights of all
        total = sum(self._weight(sent) for _, sent in received) if single else 1.0
        means, step = (averaging.mean(), averaging.mean()), 0
        for client, sent in received:
            where, known = f"The update of {client}", quote(client, safe="")  # the name of a tensor holds no slash
            v = embeddings.before(step, known, self.embedding(server, client))
            model = {**sent.tensors[CHANGE], **sent.tensors.get("statistics", {})}
            *steps, v_step = pull_back(phi[HYPER].tensors, v, self.task.layout.flatten(model, True, where))
            towards = dict(zip(server[HYPER], steps, strict=True))
            embeddings.move(step, known, v_step)
            means[0].add(model, self._weight(sent), where)
            if single:
                phi[MODEL].step(model, self._weight(sent) / total)  # the Jacobian of the bias is the identity
                phi[HYPER].step(towards, self._weight(sent) / total)
                step += 1
            else:
                means[1].add(towards, self._weight(sent), where)
        model = means[0].result()
        if not single:
            phi[MODEL].step(model)
            phi[HYPER].step(means[1].result())
            step = 1
        learned, velocity = embeddings.after(step)
        start = {"embedding": torch.stack([learned[name] for name in sorted(learned)]).mean(0)}
        moved = {MODEL: {**model, **phi[MODEL].tensors}, HYPER: phi[HYPER].tensors, EMBEDDINGS: learned, START: start}
        if config.momentum:
            moved |= {f"velocity_{group}": sgd.velocity for group, sgd in phi.items()}
            moved |= {f"velocity_{EMBEDDINGS}": velocity}
        return {**server, **moved}

    def model(self, server: State) -> Tensors:
        """Return the model generated from the mean embedding."""
        return self._model(server, server[START]["embedding"])

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Train a new embedding through the frozen hypernetwork."""
        (model := context.model).load(self.model(server))
        device, recipe = model.weights[0].device, plan.recipe(self.task.recipe)
        bias = [flat.to(device) for flat in self.task.layout.flatten(server[MODEL])]
        hyper = {name: tensor.to(device) for name, tensor in server[HYPER].items()}
        v = server[START]["embedding"].to(device, copy=True).requires_grad_()
        optimizer = PlainSGD([v], plan.rate, plan.momentum, plan.decay)

        def step() -> None:
            (v.grad,) = torch.autograd.grad(generate(hyper, bias, v), v, model.gradients)
            optimizer.step()
            for weights, flat in zip(model.weights, generate(hyper, bias, v.detach()), strict=True):
                weights.copy_(flat)

        passes = backward_passes(model, data, recipe, context.generator("adapt"))
        for loss in by_epoch(passes, step):
            yield loss, {"embedding": v.detach().cpu().clone()}

    def _weight(self, sent: Sent) -> float:
        return self.task.weight(int(sent.numbers["examples"]))

    def _model(self, server: State, v: Tensor) -> Tensors:
        bias, statistics = (self.task.layout.flatten(server[MODEL], trained) for trained in (True, False))
        return self.task.layout.unflatten(generate(server[HYPER], bias, v), statistics)
