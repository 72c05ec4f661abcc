"""Local: no federation. Every client trains a whole model of its own, and nothing leaves it.

The lower end of every comparison: what a client reaches with its own data alone. In each round in which it is drawn
a client trains its model further, so that it spends as much work as with any other method. The server's state is the
initial model and never changes.
"""

from collections.abc import Iterable
from typing import ClassVar

from fedbasis.methods.base import MODEL, Context, Method, Sent
from fedbasis.networks.train import Examples, local_sgd
from fedbasis.tensors.params import State, Tensors


class Local(Method):
    """The initial model is the server's only state."""

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "Local"
    paper: ClassVar[str] = "no federation"
    sends: ClassVar[str] = "nothing"
    keeps: ClassVar[str] = "its model"
    new_client: ClassVar[str] = "the initial model, trained on the client's own data (ft)"
    ways: ClassVar[tuple[str, ...]] = ("ft",)
    own: ClassVar[str] = MODEL
    averages: ClassVar[bool] = False
    needs_single_updates: ClassVar[str] = "there is no mean, because nothing leaves a client"

    def init(self, seed: int) -> State:
        """Start from the initial model."""
        return {MODEL: self.task.initial(seed)}

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Train the client's own model further; its first time it starts from the initial model."""
        context.model.load((received if state is None else state)[MODEL])
        loss = local_sgd(context.model, data, self.task.recipe, context.generator("batches"))
        return Sent({}, {"loss": loss.value(), "examples": float(len(data))}), {MODEL: context.model.tensors()}

    def aggregate(self, server: State, updates: Iterable[tuple[str, Sent]], seed: int) -> State:
        """Let every client train (the updates are made as they are read) and learn nothing from it."""
        for _ in updates:
            pass
        return server

    def model(self, server: State) -> Tensors:
        """Return the initial model."""
        return server[MODEL]
