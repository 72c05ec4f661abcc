"""The base of methods with personal layers: these stay on the client, the others are averaged as in FedAvg.

With ``S`` the shared names and ``P`` the personal ones, client ``m`` trains ``(w_S, v_m)`` from the server's ``w_S``
and its own ``v_m`` of its last round (in its first: of the initial model), sends ``w_S`` and stores ``v_m``. The
server's model holds the mean of ``w_S``; its personal part stays the initial one, from which new clients start.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from fedbasis.methods.base import MODEL, Context, Method, Sent, Update
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import MeanLoss, local_sgd
from fedbasis.tensors.params import State, Tensors, only, without
from pflbed.errors import InputError

PERSONAL = "personal"
"""The group of the client state."""


class Partial(Method):
    """A subclass defines which tensors are personal and, unless by one joint SGD, how a client trains."""

    state_group: ClassVar[str] = PERSONAL

    @property
    @abstractmethod
    def personal(self) -> frozenset[str]:
        """The names of the tensors that never leave a client; statistics belong to their layer."""

    def init(self, seed: int) -> State:
        """Start from the initial model."""
        return {MODEL: self.task.initial(seed)}

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Train the shared layers together with this client's own; send the former and store the latter."""
        mine = {} if state is None else state[PERSONAL]
        context.model.load({**received[MODEL], **mine})
        loss = self.fit(data, context)
        trained = context.model.tensors()
        # A copy: the tensors are views, and a view would keep the whole model in memory for every client.
        own = {name: tensor.clone() for name, tensor in only(trained, self.personal).items()}
        numbers = {"loss": loss.value(), "examples": float(len(data))}
        return Sent({MODEL: without(trained, self.personal)}, numbers), {PERSONAL: own} if own else None

    def fit(self, data: Examples, context: Context) -> MeanLoss:
        """Train the working model; here all of it at once, as FedAvg does."""
        return local_sgd(context.model, data, self.task.recipe, context.generator("batches"))

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Average the shared layers; the personal ones stay the initial ones."""
        return {MODEL: {**server[MODEL], **self.mean(updates)}}

    def model(self, server: State) -> Tensors:
        """Return the shared layers with the initial personal ones."""
        return server[MODEL]

    def tensors_of(self, first: int, end: int) -> frozenset[str]:
        """Return the names of the tensors in the blocks numbered from ``first`` to before ``end``."""
        return frozenset(entry.name for entry in self.task.layout.entries if first <= entry.block < end)

    def require_blocks(self, setting: str, count: int | None) -> None:
        """Raise an ``InputError`` if a setting is greater than the number of the network's blocks."""
        blocks = self.task.layout.blocks
        if count is not None and count > len(blocks):
            raise InputError(
                f"'{setting}' must be at most {len(blocks)}, the number of the network's blocks "
                f"({', '.join(blocks)}), but it is {count}; lower it."
            )
