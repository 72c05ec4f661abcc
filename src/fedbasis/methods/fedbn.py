"""FedBN: normalization layers are personal; everything else is averaged.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021 (algorithm 1): all
clients train the whole network by SGD; for every layer that is not a normalization layer the server takes the mean
``w <- 1/K sum_k w_k``, while scale, shift and running statistics of a normalization layer stay on the client.

A new client has no normalization layers of its own, and in the paper the server has only the initial ones. The FedBasis
paper compares with new clients that start from the mean normalization layers and train only those. So
``share_normalization_for_new_clients`` sends them in a separate group: the server averages it for new clients and never
sends it to participating clients, whose training does not depend on it. If it is off, a client sends exactly what the
paper says, and a new client starts from the initial normalization layers.
With a network without normalization layers this is FedAvg.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from fedbasis.methods.base import MODEL, About, Context, MethodConfig, Sent, Serving, Update, Ways
from fedbasis.methods.shared.partial import PERSONAL, Partial
from fedbasis.networks.inputs import Examples
from fedbasis.tensors.params import State, Tensors, only, without

NORMALIZATION = "normalization"
"""The group of the mean normalization layers, which are for new clients only."""


class FedBnConfig(MethodConfig):
    """What new clients start from."""

    share_normalization_for_new_clients: bool = Field(
        True, description="also send the normalization layers; only new clients get their mean; false: as in the paper"
    )


class FedBnServing(Serving):
    """What is published for new clients."""

    method: "FedBn"

    def published(self, server: State) -> State:
        """Return one model with the mean normalization layers."""
        return {MODEL: self.method.model(server)}


class FedBn(Partial):
    """The normalization layers are personal."""

    about: ClassVar[About] = About(
        name="fedbn",
        title="FedBN",
        paper="Li et al. 2021",
        sends="1 model (its normalization layers separately, for new clients; this can be turned off)",
        keeps="the normalization layers",
        new_client="the mean model; its normalization layers are trained (bn), the head (lp), or all (ft)",
    )
    serving_type: ClassVar[type[Serving]] = FedBnServing
    ways: ClassVar[Ways] = Ways(default=("bn", "lp", "ft"))
    Config: ClassVar[type[MethodConfig]] = FedBnConfig
    config: FedBnConfig

    @property
    def personal(self) -> frozenset[str]:
        """The normalization layers' parameters and statistics."""
        return self.task.normalization

    @property
    def shares(self) -> bool:
        """Whether there are normalization layers and clients send them for new clients."""
        return self.config.share_normalization_for_new_clients and bool(self.personal)

    def init(self, seed: int) -> State:
        """Start from the initial model; its normalization layers are also the initial ones for new clients."""
        state = super().init(seed)
        return {**state, NORMALIZATION: only(state[MODEL], self.personal)} if self.shares else state

    def broadcast(self, server: State, client: str) -> State:
        """Send the model without the mean normalization layers."""
        return {MODEL: server[MODEL]}

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Train everything; store the normalization layers, and send a copy of them for new clients."""
        sent, own = super().client_update(received, state, data, context)
        if self.shares and own is not None:
            sent = replace(sent, tensors={**sent.tensors, NORMALIZATION: own[PERSONAL]})
        return sent, own

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Average the normalization layers and the other layers, in separate groups."""
        if not self.shares:
            return super().aggregate(server, updates, seed)
        mean = self.mean(_joined(updates))
        rest = {**server[MODEL], **without(mean, self.personal)}
        return {MODEL: rest, NORMALIZATION: only(mean, self.personal)}

    def model(self, server: State) -> Tensors:
        """Return the averaged layers with the mean normalization layers, or with the initial ones."""
        return {**server[MODEL], **server.get(NORMALIZATION, {})}


def _joined(updates: Iterable[Update]) -> Iterator[tuple[str, Sent]]:
    """Merge the two groups of every update, so that both are averaged in one pass."""
    for client, sent in updates:
        yield client, replace(sent, tensors={MODEL: {**sent.tensors[MODEL], **sent.tensors[NORMALIZATION]}})
