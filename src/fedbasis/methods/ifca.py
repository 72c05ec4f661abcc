"""IFCA: k models for k clusters of clients; every client trains the one that has the lowest loss on its data.

Ghosh et al., "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020; Algorithm 1, option II (model
averaging). In every round a client i receives theta_1..theta_k,
    chooses j_i = argmin_j F_i(theta_j),   trains theta_{j_i} to theta'_i,   sends theta'_i and j_i,
and theta_j becomes the mean of theta'_i over the clients with j_i = j; a model that no client chose is unchanged.

The paper starts from independent models, with restarts (``start = "noise"``). Pretrained weights make all of them
equal, so by default the first rounds are FedAvg's, and its local models are clustered into theta_1..theta_k.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from fedbasis.methods.base import MODEL, About, Adaptation, Context, Insight, MethodConfig, Sent, Update, Updates, Ways
from fedbasis.methods.shared.warm_start import WarmStartConfig, WarmStarted, WarmStartedInsight, WarmStartedUpdates
from fedbasis.networks.inputs import Examples
from fedbasis.tensors.params import State, StreamingMean, Tensors
from pflbed.errors import InputError

CHOICE, USAGE = "choice", "usage"


class IFCAConfig(WarmStartConfig):
    """The number of clusters and their initial models."""

    clusters: int = Field(4, ge=1, description="k, the number of clusters")


class IFCAUpdates(WarmStartedUpdates):
    """How an update is measured and averaged."""

    needs_single_updates: ClassVar[str] = "every client sends the cluster that its model belongs to"
    method: "IFCA"

    def reference(self, server: State, client: str, sent: State) -> State:
        """Return the model of the cluster that the client chose; during the warm start, what it received."""
        if CHOICE not in sent:
            return super().reference(server, client, sent)
        return {MODEL: self.method.models(server)[int(sent[CHOICE]["cluster"]) % self.method.count]}


class IFCAInsight(WarmStartedInsight):
    """Numbers about the state."""

    method: "IFCA"

    def diagnostics(self, server: State) -> dict[str, Any]:
        """Return the share of the last round's clients that chose each cluster."""
        return {} if MODEL in server else {"usage": [round(share, 4) for share in server[USAGE]["share"].tolist()]}


class IFCA(WarmStarted):
    """The server's state is k models, and the share of the last round's clients that chose each."""

    about: ClassVar[About] = About(
        name="ifca",
        title="IFCA",
        paper="Ghosh et al. 2020",
        sends="1 model and the number of its cluster",
        keeps="nothing",
        new_client="the cluster's model with the lowest loss on its data (cluster); +LP; +FT",
    )
    updates_type: ClassVar[type[Updates]] = IFCAUpdates
    insight_type: ClassVar[type[Insight]] = IFCAInsight
    ways: ClassVar[Ways] = Ways(
        own=("cluster",),
        default=("cluster", "cluster+lp", "cluster+ft"),
        rate_free=("cluster",),
    )
    Config: ClassVar[type[MethodConfig]] = IFCAConfig
    prefix: ClassVar[str] = "cluster"
    config: IFCAConfig

    def first(self, models: Sequence[Tensors]) -> State:
        """Return k models, none of which was chosen more than another."""
        return {**self.numbered(models), USAGE: {"share": torch.full((self.count,), 1 / self.count)}}

    def broadcast(self, server: State, client: str) -> State:
        """Send all models."""
        return {group: tensors for group, tensors in server.items() if group != USAGE}

    def client_update(
        self,
        received: State,
        state: State | None,
        data: Examples,
        context: Context,
        only: tuple[int, int] | None = None,
    ) -> tuple[Sent, State | None]:
        """Choose a model and train it as FedAvg does."""
        if MODEL in received:
            return super().client_update(received, state, data, context, only)
        models = self.models(received)
        chosen, _ = self.lowest(models, data, context)
        sent, _ = super().client_update({MODEL: models[chosen]}, None, data, context, only)
        return Sent({**sent.tensors, CHOICE: {"cluster": torch.tensor(chosen)}}, sent.numbers), None

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Average every cluster's model over the clients that chose it."""
        if MODEL in server:
            return self.aggregate_warm_start(server, updates, seed)
        means = [self.task.averaging.mean() for _ in range(self.count)]
        usage, used = StreamingMean(), set()
        for client, sent in updates:
            chosen = int(sent.tensors[CHOICE]["cluster"])
            if not 0 <= chosen < len(means):
                raise InputError(f"{client} must choose one of {len(means)} clusters, but it sent number {chosen}.")
            weight = self.task.weight(int(sent.numbers["examples"]))
            means[chosen].add(sent.tensors[MODEL], weight, f"The update of {client}")
            usage.add({"share": torch.eye(len(means))[chosen]}, weight)
            used.add(chosen)
        shares = usage.result()  # an error without updates
        old = self.models(server)
        models = [mean.result() if j in used else old[j] for j, mean in enumerate(means)]
        return {**self.numbered(models), USAGE: shares}

    def model(self, server: State) -> Tensors:
        """Return the model that most clients chose last: a mean of independent networks would not be a useful model."""
        if MODEL in server:
            return server[MODEL]
        return self.models(server)[int(server[USAGE]["share"].argmax())]

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Choose the model with the lowest loss, as in training."""
        yield from self.serve_lowest(self.models(server), data, context)
