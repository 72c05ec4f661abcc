"""FedAvg whose server sums up the last round's local models: what PCA-k and k-means-k share."""

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
    """No method of its own, but the base of two: all rounds are FedAvg's, and the last one is summed up besides."""

    updates_type: ClassVar[type[Updates]] = LastRoundSummaryUpdates

    def init(self, seed: int) -> State:
        """Start from the initial model, and count the rounds."""
        return {**super().init(seed), CLOCK: {"round": torch.tensor(0)}}

    def broadcast(self, server: State, client: str) -> State:
        """Send the global model and nothing else."""
        return {MODEL: server[MODEL]}

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Take the mean of the clients' models; in the last round sum them up as well, put aside on disk."""
        done = int(server[CLOCK]["round"]) + 1
        clock: State = {CLOCK: {"round": torch.tensor(done)}}
        if done < self.task.rounds:
            return {**super().aggregate(server, updates, seed), **clock}
        arrived = spool_updates(updates)
        mean = super().aggregate(server, arrived, seed)
        models = self.task.averaging.clamp_models([sent.tensors[MODEL] for _, sent in arrived])
        weights = [self.task.weight(int(sent.numbers["examples"])) for _, sent in arrived]
        found = self.summary(mean[MODEL], models, torch.tensor(weights, dtype=torch.float64), seed)
        return {**mean, **self.numbered(found), **clock}

    @abstractmethod
    def summary(self, mean: Tensors, models: Sequence[Tensors], weights: Tensor, seed: int) -> list[Tensors]:
        """Make a few models (or directions) of many."""

    def found(self, server: State) -> list[Tensors]:
        """Return the summary that a server holds; none before the last round."""
        return self.models(server) if f"{self.prefix}_0" in server else []

    def deviations(self, models: Sequence[Tensors], weights: Tensor, names: Iterable[str]) -> Iterator[Tensor]:
        """Yield the models' deviations from their weighted mean [models, some columns], a few columns at a time."""
        return (rows - (weights / weights.sum()) @ rows for rows in columns(models, names))

    def gram(self, models: Sequence[Tensors], weights: Tensor) -> Tensor:
        """Return the inner products of the models' deviations: few numbers that hold all of their geometry."""
        names = [entry.name for entry in self.task.layout.select(True)]
        return inner_products(self.deviations(models, weights, names), len(models))
