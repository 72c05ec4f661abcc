"""FedBasis: clients learn K shareable bases together; a client's model is a convex combination of them, block by block.

Chen et al., "Federated Learning of Shareable Bases for Personalization-Friendly Image Classification", AAAI 2024.
A local round learns the coefficients with the bases frozen, sharpens them, and trains the bases with the coefficients
frozen (equation 9). A new client learns coefficients only, or coefficients and a classifier.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbasis.methods.base import CLOCK, MODEL, Adaptation, Context, Method, MethodConfig, Sent, Task, spool_updates
from fedbasis.methods.fedavg import FedAvg
from fedbasis.methods.fedbasis import coefficients
from fedbasis.methods.fedbasis.bases import BasisSet
from fedbasis.methods.fedbasis.config import FedBasisConfig
from fedbasis.methods.fedbasis.learning import LocalWork, learn_coefficients
from fedbasis.methods.fedbasis.local_round import train_locally
from fedbasis.methods.fedbasis.robust import alone, basis_mean, reference
from fedbasis.methods.fedbasis.warm_start import cluster_models
from fedbasis.networks.train import Examples, by_epoch
from fedbasis.tensors.params import State, Tensors
from fedbasis.tensors.seeding import seed_for


class FedBasis(Method):
    """The state is FedAvg's model during warm-up, then the bases."""

    name: ClassVar[str] = "fedbasis"
    title: ClassVar[str] = "FedBasis"
    paper: ClassVar[str] = "Chen et al. 2024"
    sends: ClassVar[str] = "1 model and a few numbers (factored), or K + 1 models (full)"
    keeps: ClassVar[str] = "nothing (psi, if it communicates after every step)"
    new_client: ClassVar[str] = "K coefficients a block (coefficients), and a classifier (coefficients+classifier)"
    Config: ClassVar[type[MethodConfig]] = FedBasisConfig
    personalizers: ClassVar[tuple[str, ...]] = ("coefficients", "coefficients+classifier")
    ways: ClassVar[tuple[str, ...]] = ("coefficients+classifier",)
    rate_free: ClassVar[tuple[str, ...]] = ("coefficients",)  # psi has a rate of its own
    config: FedBasisConfig

    def __init__(self, config: FedBasisConfig, task: Task) -> None:
        super().__init__(config, task)
        config.require(task.rounds, bool(task.weights), task.averaging.robust)
        share = round(config.warm_start * task.rounds)
        self.warm_rounds = min(max(1, share), task.rounds - 1) if config.warm_start > 0 else 0
        self._warm_up = FedAvg(None, task)
        self._only = (0, 1) if config.communicate_every == "step" else None

    def require_clients(self, count: int) -> None:
        """The last warm-up round must bring at least as many models as there are bases to make of them."""
        self.config.require_clients(count)

    def init(self, seed: int) -> State:
        """Start with one model to warm up, or with bases at once."""
        if self.warm_rounds:
            return {**self._warm_up.init(seed), CLOCK: {"round": torch.tensor(0)}}
        rows = self.config.bases + self.config.major
        apart = self.config.init == "random"
        models = [self.task.initial(seed_for(seed, "basis", i) if apart else seed) for i in range(rows)]
        return BasisSet.from_models(self.task.layout, models, self.config.major).to_state()

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Learn coefficients, sharpen them, train the bases (or FedAvg's model during warm-up)."""
        if MODEL in received:
            return self._warm_up.client_update(received, state, data, context, self._only)
        work = LocalWork(context.model, data, self.task.recipe, self._only, context.watch)
        start = self._uniform(context.model.weights[0])
        psi = start if state is None else state["coefficients"]["psi"].to(start, copy=True)
        both = context.generator("coefficients"), context.generator("batches")
        sent, weights, losses = train_locally(self.config, work, lambda: self._bases(received, context), psi, *both)
        numbers = {**losses, "examples": float(len(data)), **coefficients.describe(self.task.layout.blocks, weights)}
        numbers["plain_entropy"] = float(coefficients.entropy(coefficients.alpha(psi)).mean())  # whatever tau is
        keeps = {"coefficients": {"psi": psi.cpu().clone()}} if self._only is not None else None
        return Sent(sent, numbers), keeps

    def aggregate(self, server: State, updates: Iterable[tuple[str, Sent]], seed: int) -> State:
        """Average the bases in a stream; the last warm-up round clusters the local models into the first bases."""
        if MODEL in server:
            return self._warm_aggregate(server, updates, seed)
        mean = basis_mean(BasisSet.from_state(self.task.layout, server), self.config.by_usage, self.task.averaging)
        for client, sent in updates:
            mean.add(sent.tensors, self.task.weight(int(sent.numbers["examples"])), f"The update of {client}")
        return mean.result().to_state()

    def _warm_aggregate(self, server: State, updates: Iterable[tuple[str, Sent]], seed: int) -> State:
        done = int(server[CLOCK]["round"]) + 1
        if done < self.warm_rounds:
            return {**self._warm_up.aggregate(server, updates, seed), CLOCK: {"round": torch.tensor(done)}}
        arrived = spool_updates(updates)  # the one round in which all local models are needed at once
        major = [self._warm_up.aggregate(server, arrived, seed)[MODEL]] if self.config.major else []
        models, mean = (
            self.task.averaging.clamp_models([s.tensors[MODEL] for _, s in arrived]),
            self.task.averaging.mean,
        )
        counts = [self.task.weight(int(sent.numbers["examples"])) for _, sent in arrived]
        sort = self.config.bases, seed, self.config.cluster == "block"
        bases = cluster_models(self.task.layout, server[MODEL], models, counts, *sort, mean)
        return BasisSet.from_models(self.task.layout, major + bases, self.config.major).to_state()

    def reference(self, server: State, client: str, sent: State) -> State:
        """A client's model is measured from the combination it started from; during warm-up, from what it received."""
        if "coefficients" not in sent:
            return super().reference(server, client, sent)
        return reference(BasisSet.from_state(self.task.layout, server), sent, self.config.by_usage)

    def as_averageable(self, server: State, sent: State) -> State:
        """Write what a client sent as all bases, as they would be with this client alone."""
        return alone(BasisSet.from_state(self.task.layout, server), sent).to_state()

    def from_average(self, server: State, mean: State, seed: int) -> State:
        """The mean of whole bases is the next state."""
        return mean

    def require_mean(self) -> None:
        """The mean by usage and the clusters of the warm start are no means over the clients."""
        self.config.require_mean()

    def model(self, server: State) -> Tensors:
        """Return the uniform combination of the bases."""
        if MODEL in server:
            return server[MODEL]
        bases = BasisSet.from_state(self.task.layout, server)
        return bases.merge(coefficients.combination(coefficients.alpha(self._uniform(bases.weights[0])), bases.major))

    def adapt(
        self, how: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Learn psi, and for ``coefficients+classifier`` an offset of the classifier, with the bases frozen."""
        classifier = self.task.layout.block_of(self.task.classifier) if how.endswith("+classifier") else None
        work = LocalWork(context.model, data, plan.recipe(self.task.recipe), None, context.watch)
        bases = self._bases(server, context)
        psi = self._uniform(context.model.weights[0])
        settings = self.config.at_a_new_client(classifier is not None)
        steps = learn_coefficients(work, bases, psi, context.generator("adapt"), settings, classifier)
        for loss in by_epoch(steps):
            yield loss, {"psi": psi.cpu().clone()}

    def diagnostics(self, server: State) -> dict[str, Any]:
        """Report how alike the bases are."""
        if MODEL in server:
            return {"phase": "warm-up"}
        return {"phase": "bases", "cosine": BasisSet.from_state(self.task.layout, server).cosines()}

    def _bases(self, state: State, context: Context) -> BasisSet:
        return BasisSet.from_state(self.task.layout, state).to(context.model.weights[0].device)

    def _uniform(self, like: Tensor) -> Tensor:
        return like.new_zeros(len(self.task.layout.blocks), self.config.bases)
