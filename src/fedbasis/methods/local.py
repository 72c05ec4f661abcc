"""Local: no federation. Every client trains its own whole model and sends nothing.

The lower baseline: what a client reaches with its own data alone. In each round in which it is sampled a client trains
its model further, so that it takes as many steps as with any other method. The server's state is the initial model and
never changes.
"""

from collections.abc import Iterable
from typing import ClassVar

from fedbasis.methods.base import MODEL, About, Context, Method, Sent, Update, Updates, Ways
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import local_sgd
from fedbasis.tensors.params import State, Tensors


class LocalUpdates(Updates):
    """How an update is measured and averaged."""

    averages: ClassVar[bool] = False
    needs_single_updates: ClassVar[str] = "there is no mean, because nothing leaves a client"
    method: "Local"


class Local(Method):
    """The server's state is the initial model; a client's state is its own model."""

    about: ClassVar[About] = About(
        name="local",
        title="Local",
        paper="no federation",
        sends="nothing",
        keeps="its model",
        new_client="the initial model, trained on the client's own data (ft)",
    )
    updates_type: ClassVar[type[Updates]] = LocalUpdates
    ways: ClassVar[Ways] = Ways(default=("ft",))
    state_group: ClassVar[str] = MODEL

    def init(self, seed: int) -> State:
        """Start from the initial model."""
        return {MODEL: self.task.initial(seed)}

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Train the client's own model further; in its first round it starts from the initial model."""
        context.model.load((received if state is None else state)[MODEL])
        loss = local_sgd(context.model, data, self.task.recipe, context.generator("batches"))
        return Sent({}, {"loss": loss.value(), "examples": float(len(data))}), {MODEL: context.model.tensors()}

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Read all updates, so that every client trains (updates are computed as they are read), and ignore them."""
        for _ in updates:
            pass
        return server

    def model(self, server: State) -> Tensors:
        """Return the initial model."""
        return server[MODEL]
