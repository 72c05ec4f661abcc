"""FedAvg whose server summarizes the last round's local models: the base of PCA-k and k-means-k."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fedbasis.methods.base import CLOCK, MODEL, Update, Updates, spool_updates
from fedbasis.methods.shared.multi_model import MultiModel
from fedbasis.tensors.params import State, Tensors, columns, inner_products


class LastRoundSummaryUpdates(Updates):
    """How an update is measured and averaged."""

    needs_single_updates: ClassVar[str] = "the last round compares the clients' models with one another"
    method: "LastRoundSummary"


class LastRoundSummary(MultiModel):
    """A base class: all rounds are FedAvg's; the last one also summarizes the local models."""

    updates_type: ClassVar[type[Updates]] = LastRoundSummaryUpdates

    def init(self, seed: int) -> State:
        """Start from the initial model, and count the rounds."""
        return {**super().init(seed), CLOCK: {"round": torch.tensor(0)}}

    def broadcast(self, server: State, client: str) -> State:
        """Send the global model only."""
        return {MODEL: server[MODEL]}

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Average the clients' models; in the last round also summarize them, stored on disk."""
        done = int(server[CLOCK]["round"]) + 1
        clock: State = {CLOCK: {"round": torch.tensor(done)}}
        if done < self.task.rounds:
            return {**super().aggregate(server, updates, seed), **clock}
        received = spool_updates(updates)
        mean = super().aggregate(server, received, seed)
        models = self.task.averaging.clamp_models([sent.tensors[MODEL] for _, sent in received])
        weights = [self.task.weight(int(sent.numbers["examples"])) for _, sent in received]
        summary = self.summary(mean[MODEL], models, torch.tensor(weights, dtype=torch.float64), seed)
        return {**mean, **self.numbered(summary), **clock}

    @abstractmethod
    def summary(self, mean: Tensors, models: Sequence[Tensors], weights: Tensor, seed: int) -> list[Tensors]:
        """Return a few models (or directions) that represent the clients' models.

        Args:
            mean: The mean model.
            models: The clients' models.
            weights: Their weights.
            seed: The seed of the run.
        """

    def found(self, server: State) -> list[Tensors]:
        """Return the summary in the server's state; empty before the last round."""
        return self.models(server) if f"{self.prefix}_0" in server else []

    def deviations(self, models: Sequence[Tensors], weights: Tensor, names: Iterable[str]) -> Iterator[Tensor]:
        """Yield the models' deviations from their weighted mean [models, some columns], a few columns at a time."""
        return (rows - (weights / weights.sum()) @ rows for rows in columns(models, names))

    def gram(self, models: Sequence[Tensors], weights: Tensor) -> Tensor:
        """Return the Gram matrix of the models' deviations, which determines all their distances."""
        names = [entry.name for entry in self.task.layout.select(True)]
        return inner_products(self.deviations(models, weights, names), len(models))
