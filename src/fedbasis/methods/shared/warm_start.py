"""A warm start: the first rounds are FedAvg's, and the clusters of the last one's local models are the first models.

FedBasis makes its bases so. IFCA and FedEM can start in the same way (``WarmStarted``), with the same clusters of whole
networks. Their papers start from independent models instead (``start = "noise"``).
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field

from fedbasis.methods.base import CLOCK, MODEL, Insight, MethodConfig, Task, Update, Updates, spool_updates
from fedbasis.methods.shared.clustering import cluster_models
from fedbasis.methods.shared.multi_model import MultiModel
from fedbasis.tensors.params import State, Tensors
from pflbed.errors import InputError


def warm_rounds(share: float, rounds: int) -> int:
    """Return how many of the rounds are a warm start of this share: at least one, and not all; none if it is zero."""
    return min(max(1, round(share * rounds)), rounds - 1) if share > 0 else 0


def cluster_updates(
    task: Task, start: Tensors, received: Sequence[Update], clusters: int, seed: int, by_block: bool = False
) -> list[Tensors]:
    """Cluster the models of a round that all started from ``start``; return the mean model of every cluster."""
    return cluster_models(
        task.layout,
        [start] * len(received),
        task.averaging.clamp_models([sent.tensors[MODEL] for _, sent in received]),
        [task.weight(int(sent.numbers["examples"])) for _, sent in received],
        clusters=clusters,
        seed=seed,
        by_block=by_block,
        mean=task.averaging.mean,
    )


class WarmStartConfig(MethodConfig):
    """The initial models."""

    start: Literal["warm", "noise"] = Field(
        "warm", description="initial models: clusters of FedAvg's local models, or independent ones (the paper's)"
    )
    warm_start: float = Field(
        0.3, gt=0, lt=1, description="with start = 'warm': share of the rounds that train FedAvg before the clusters"
    )
    noise: float = Field(
        0.1,
        gt=0,
        description="with start = 'noise' and pretrained weights: noise on each initial model, in standard deviations",
    )


class WarmStartedUpdates(Updates):
    """How an update is measured and averaged."""

    method: "WarmStarted"

    def require_clients(self, count: int) -> None:
        """Raise an ``InputError`` if the last round of the warm start has fewer models than clusters."""
        if self.method.warm_rounds and count < self.method.count:
            raise InputError(
                f"{self.method.count} {self.method.prefix}s need at least as many clients a round, but there are "
                f"{count}; lower '{self.method.prefix}s', raise 'participation', or set start = 'noise'."
            )

    def require_average(self) -> None:
        """Raise an ``InputError`` for a warm start, which compares single models."""
        super().require_average()
        if self.method.warm_rounds:
            raise InputError(
                f"[privacy] protects what is averaged over the clients, but the warm start of "
                f"{self.method.about.title} compares their single models; set start = 'noise'."
            )


class WarmStartedInsight(Insight):
    """The phase of training."""

    method: "WarmStarted"

    def phase(self, server: State) -> str:
        """Return "warm start" while one model is trained, then what the models are called."""
        if not self.method.warm_rounds:
            return ""
        return "warm start" if MODEL in server else f"{self.method.prefix}s"

    def ready(self, server: State) -> bool:
        """Return whether there are several models."""
        return MODEL not in server


class WarmStarted(MultiModel):
    """A base class: the server's state is FedAvg's model during the warm start, then several models.

    A single model is FedAvg's in all rounds.
    """

    updates_type: ClassVar[type[Updates]] = WarmStartedUpdates
    insight_type: ClassVar[type[Insight]] = WarmStartedInsight

    def setup(self) -> None:
        """Count the rounds of the warm start."""
        warm = self.config.start == "warm" and self.count > 1
        if warm and self.task.rounds < 2:
            raise InputError(
                f"A warm start needs at least 2 rounds, one of FedAvg and one of {self.prefix}s; raise 'rounds', or "
                "set start = 'noise'."
            )
        self.warm_rounds = warm_rounds(self.config.warm_start, self.task.rounds) if warm else 0

    def init(self, seed: int) -> State:
        """Start with one model for the warm start, or with different models."""
        if self.warm_rounds:
            return {**super().init(seed), CLOCK: {"round": torch.tensor(0)}}
        return self.first(self.starts(seed, self.config.noise))

    def first(self, models: Sequence[Tensors]) -> State:
        """Return the server's state with several models before their first round."""
        return self.numbered(models)

    def aggregate_warm_start(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Average the clients' models as FedAvg does; after the last round of the warm start, cluster them."""
        done = int(server[CLOCK]["round"]) + 1
        if done < self.warm_rounds:
            return {MODEL: self.mean(updates), CLOCK: {"round": torch.tensor(done)}}
        received = spool_updates(updates)  # the one round in which all local models are needed at once
        return self.first(cluster_updates(self.task, server[MODEL], received, self.count, seed))
