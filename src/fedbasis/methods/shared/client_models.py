"""The base of methods whose server stores every client's latest model.

The server's state has one group ``client/<name>`` for every client that has sent a model, replaced when the client
sends again. ``table/examples`` is the number of images of each, in the order of the sorted names. ``model`` is the mean
of these models, from which clients start that the server does not know. So the state is as large as all clients' models
together; besides it one update is in memory at a time.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from fedbasis.methods.base import MODEL, Adaptation, Context, Method, Serving, Update, Updates, clamped_updates
from fedbasis.networks.hold_out import hold_out
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import Adjust, by_epoch, sgd_steps
from fedbasis.tensors.params import State, Tensors, columns, inner_products, require_same

CLIENT = "client/"
TABLE = "table"
RELATIONS = "relations"


def clients(server: State) -> list[str]:
    """Return the names of the stored clients, in the order of the rows of all vectors and matrices about them."""
    return sorted(group.removeprefix(CLIENT) for group in server if group.startswith(CLIENT))


def models(server: State, names: Iterable[str] | None = None) -> list[Tensors]:
    """Return all stored models, or those of the named clients."""
    return [server[CLIENT + name] for name in (clients(server) if names is None else names)]


def gram(table: Sequence[Tensors], names: Collection[str]) -> Tensor:
    """Return the Gram matrix of models over the named tensors."""
    return inner_products(columns(table, sorted(names)), len(table))


def combination(
    table: Sequence[Tensors], weights: Tensor, names: Iterable[str], base: Tensors | None = None
) -> Tensors:
    """Return ``sum_j weights_j w_j``, or ``base + sum_j weights_j (w_j - base)``, for the named tensors.

    With a base, models equal to it add exactly nothing, and a weight of one gives its model.
    """
    factors = [float(weight) for weight in weights]
    result = {}
    for name in names:
        like = next(iter(table))[name] if base is None else base[name]
        start = torch.zeros_like(like, dtype=torch.float64) if base is None else like.double()
        total = start.clone()
        for model, factor in zip(table, factors, strict=True):
            if factor:
                total.add_(model[name].double() if base is None else model[name].double() - start, alpha=factor)
        result[name] = total.to(like.dtype)
    return result


class ClientModelsUpdates(Updates):
    """How an update is measured and averaged."""

    needs_single_updates: ClassVar[str] = "the server stores every client's own model"
    method: "ClientModels"

    def reference(self, server: State, client: str, sent: State) -> State:
        """Return the last model that the client sent, or the mean of all."""
        return {MODEL: server.get(CLIENT + client, server[MODEL])}


class ClientModelsServing(Serving):
    """What is published for new clients."""

    method: "ClientModels"

    def published(self, server: State) -> State:
        """Return the mean of the clients' models."""
        return {MODEL: server[MODEL]}


class ClientModels(Method):
    """A server that stores every client's latest model; a subclass defines how they are related."""

    updates_type: ClassVar[type[Updates]] = ClientModelsUpdates
    serving_type: ClassVar[type[Serving]] = ClientModelsServing
    state_group: ClassVar[str] = MODEL

    def init(self, seed: int) -> State:
        """Start from the initial model, with no stored models."""
        return {MODEL: self.task.initial(seed)}

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Replace the received models and average all stored ones, weighted by ``task.weighting``."""
        table = {group: tensors for group, tensors in server.items() if group.startswith(CLIENT)}
        examples = dict(zip(clients(server), server[TABLE]["examples"].tolist() if table else [], strict=True))
        for client, sent in clamped_updates(updates, self.task.averaging):
            require_same(sent.tensors[MODEL], self.task.layout.shapes, f"The update of {client}")
            table[CLIENT + client] = sent.tensors[MODEL]
            examples[client] = int(sent.numbers["examples"])
        mean = self.task.averaging.mean()
        for client in clients(table):
            mean.add(table[CLIENT + client], self.task.weight(examples[client]))
        counts = torch.tensor([examples[client] for client in clients(table)])
        return {MODEL: mean.result(), **table, TABLE: {"examples": counts}}

    def model(self, server: State) -> Tensors:
        """Return the mean of the clients' models."""
        return server[MODEL]

    def start(self, received: State, state: State | None, context: Context) -> Tensors:
        """Return the model a client starts from: its own, else the received one, else the initial one."""
        if state is not None:
            return state[MODEL]
        return received[MODEL] if MODEL in received else self.task.initial(context.seed)

    def fit(
        self, data: Examples, context: Context, plan: Adaptation, adjust: Adjust
    ) -> Iterator[tuple[float, Tensors]]:
        """Train all parameters of a new client's working model, with gradients changed by ``adjust``."""
        recipe = plan.recipe(self.task.recipe)
        for loss in by_epoch(sgd_steps(context.model, data, recipe, context.generator("adapt"), adjust=adjust)):
            yield loss, {}

    @staticmethod
    def held_out(data: Examples, context: Context) -> tuple[Examples, Examples]:
        """Split off a fifth of a client's images, the same in every round; with fewer than five, both parts are all."""
        draw = partial(torch.randperm, generator=context.at(context.client).generator("validation"))
        held = hold_out(data.labels, lambda rows: rows // 5, draw, by_class=False)
        if not held.any():
            return data, data
        return Examples(data.pixels[held], data.labels[held]), Examples(data.pixels[~held], data.labels[~held])

    @staticmethod
    def enlarged(matrix: Tensor, before: Sequence[str], after: Sequence[str]) -> Tensor:
        """Extend a matrix over the clients ``before`` to the clients ``after``, with zeros for new ones."""
        places = torch.tensor([after.index(client) for client in before], dtype=torch.int64)
        larger = matrix.new_zeros(len(after), len(after))
        larger[places[:, None], places[None, :]] = matrix
        return larger
