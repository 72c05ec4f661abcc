"""FedBasis: clients learn K shareable bases together; a client's model is a convex combination of them, block by block.

Chen et al., "Federated Learning of Shareable Bases for Personalization-Friendly Image Classification", AAAI 2024.
A local round learns the coefficients with the bases frozen, sharpens them, and trains the bases with the coefficients
frozen (equation 9). A new client learns coefficients only, or coefficients and a classifier.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbasis.methods.base import (
    CLOCK,
    MODEL,
    About,
    Adaptation,
    Context,
    Insight,
    Learns,
    Method,
    MethodConfig,
    Sent,
    Serving,
    Update,
    Updates,
    ValueTable,
    Ways,
    spool_updates,
)
from fedbasis.methods.fedavg import FedAvg
from fedbasis.methods.fedbasis import coefficients
from fedbasis.methods.fedbasis.bases import MAJOR, BasisSet, groups_of
from fedbasis.methods.fedbasis.collected import LocalModels, collected, without_collected
from fedbasis.methods.fedbasis.config import FedBasisConfig
from fedbasis.methods.fedbasis.learning import AnyBases, LocalWork, learn_coefficients
from fedbasis.methods.fedbasis.local_round import train_locally
from fedbasis.methods.fedbasis.received import ReceivedBases
from fedbasis.methods.fedbasis.robust import alone, basis_mean
from fedbasis.methods.fedbasis.rounded import with_rounding_undone
from fedbasis.methods.fedbasis.upload import COEFFICIENTS, reference
from fedbasis.methods.shared.clustering import cluster_models
from fedbasis.methods.shared.warm_start import warm_rounds
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import by_epoch
from fedbasis.tensors.compact import AlikeModels
from fedbasis.tensors.params import State, Tensors
from fedbasis.tensors.seeding import seed_for
from pflbed.errors import InputError

PSI = "psi"
"""The name of the unconstrained coefficients psi, in the client state and in what a new client learns."""


class FedBasisServing(Serving):
    """The bases are published."""

    method: "FedBasis"

    def check(self, published: State) -> None:
        """Raise an ``InputError`` if the number of bases differs from the settings."""
        if MODEL not in published:
            count, expected = BasisSet.from_state(self.method.task.layout, published).count, self.method.config.bases
            if count != expected:
                raise InputError(
                    f"The settings must fit the tensors, but they say {expected} bases and there are {count}."
                )
        super().check(published)

    def learns(self, way: str) -> Learns:
        """Return K coefficients a block, and the block of the classifier where it is trained too."""
        layout, classifier = self.method.task.layout, self.method.classifier_block(way)
        trained = frozenset(entry.name for entry in layout.select(True) if entry.block == classifier)
        return Learns(parameters=trained, besides=self.method.config.bases * len(layout.blocks))

    def alike_models(self, state: State) -> AlikeModels | None:
        """Return the bases, which are near to the major basis, or to their mean; None during the warm start."""
        return None if MODEL in state else AlikeModels(groups_of(state), MAJOR if MAJOR in state else None)


class FedBasisUpdates(Updates):
    """How an update is measured: as the change from the combination that the client started from."""

    method: "FedBasis"

    def require_clients(self, count: int) -> None:
        """Raise an ``InputError`` if the last rounds of the warm start have fewer models than bases."""
        self.method.config.require_clients(count * self.method.collecting)

    def reference(self, server: State, client: str, sent: State) -> State:
        """Return the combination that the client started from; during the warm start, what it received."""
        if COEFFICIENTS not in sent:
            return super().reference(server, client, sent)
        return reference(self.method.bases(server), sent, self.method.config.by_usage)

    def as_averageable(self, server: State, sent: State) -> State:
        """Return all bases as they would be after a round with this client only."""
        return alone(self.method.bases(server), sent).to_state()

    def from_average(self, server: State, mean: State, seed: int) -> State:
        """Return the mean: the mean of whole bases is the next state."""
        return mean

    def aggregate_rounded(self, server: State, received: State, updates: Iterable[Update], seed: int) -> State:
        """Apply the changes from what the clients received to the exact bases, or to the warm start's exact model."""
        if MODEL not in server:
            return self.method.aggregate_bases(received, updates, server)
        after, parameters = self.method.aggregate(received, updates, seed), self.method.task.parameters
        models = [MODEL] if MODEL in after else groups_of(after)
        exact = {
            group: with_rounding_undone(after[group], server[MODEL], received[MODEL], parameters) for group in models
        }
        return {**after, **exact}

    def require_average(self) -> None:
        """Raise an ``InputError`` for aggregation by usage and for a warm start, which need single updates."""
        self.method.config.require_average()


class FedBasisInsight(Insight):
    """How similar the bases are, and how much of each a client uses."""

    method: "FedBasis"

    def diagnostics(self, server: State) -> dict[str, Any]:
        """Return the mean pairwise cosine similarity of the bases."""
        return {} if MODEL in server else {"cosine": self.method.bases(server).cosines()}

    def phase(self, server: State) -> str:
        """Return "warm start" while one model is trained, then "bases"."""
        return "warm start" if MODEL in server else "bases"

    def ready(self, server: State) -> bool:
        """Return whether there are bases, which coefficients need."""
        return MODEL not in server

    def describe(self, published: State) -> list[ValueTable]:
        """Return the mean pairwise cosine similarity of the bases, per block."""
        if MODEL in published:
            return []
        bases = self.method.bases(published)
        title = f"{bases.count} bases{' and a major basis' if bases.major else ''}: mean pairwise cosine"
        cosines = bases.cosines()
        return [ValueTable(title=title, columns=list(cosines), rows={"": list(cosines.values())})]

    def learned(self, learned: Tensors) -> dict[str, ValueTable]:
        """Return the coefficients alpha of a client, per block."""
        if PSI not in learned:
            return {}
        rows: list[list[float]] = coefficients.alpha(learned[PSI]).tolist()
        return {
            "alpha": ValueTable(
                title="Coefficients: how much of each basis, block by block",
                columns=[f"basis {k}" for k in range(len(rows[0]))],
                rows=dict(zip(self.method.task.layout.blocks, rows, strict=True)),
                shares=True,
            )
        }


class FedBasis(Method):
    """FedBasis: the server's state is FedAvg's model during the warm start, then the bases.

    Args:
        network: A built-in network's name, ``"module:factory"``, a factory, or an ``nn.Module`` instance.
        **settings: The fields of ``FedBasisConfig``, such as ``bases``, ``major``, ``tau`` and ``warm_start``.

    Example:
        >>> from fedbasis import FedBasis
        >>> method = FedBasis(network="cnn-small", bases=2, warm_start=0.5)
        >>> method.config.bases, method.config.upload
        (2, 'factored')
    """

    about: ClassVar[About] = About(
        name="fedbasis",
        title="FedBasis",
        paper="Chen et al. 2024",
        sends="1 model and a few numbers (factored), or K + 1 models (full)",
        keeps="nothing (psi, if it communicates after every step)",
        new_client="K coefficients a block (coefficients), and a classifier (coefficients+classifier)",
        charts={"cosine": "mean pairwise cosine of the bases", "entropy": "entropy of α (nats)"},
    )
    ways: ClassVar[Ways] = Ways(
        own=("coefficients", "coefficients+classifier"),
        default=("coefficients+classifier",),
        frozen=("coefficients",),
        suffixes={"coefficients": " (α only)", "lp": " without coefficients"},
    )
    Config: ClassVar[type[MethodConfig]] = FedBasisConfig
    serving_type: ClassVar[type[Serving]] = FedBasisServing
    updates_type: ClassVar[type[Updates]] = FedBasisUpdates
    insight_type: ClassVar[type[Insight]] = FedBasisInsight
    config: FedBasisConfig

    def setup(self) -> None:
        """Check the settings against the task, and count the rounds of the warm start."""
        config, task = self.config, self.task
        config.require(task.rounds, bool(task.weights), task.averaging.robust)
        self.warm_rounds = warm_rounds(config.warm_start, task.rounds)
        self.collecting = min(config.cluster_rounds, max(1, self.warm_rounds))
        self._warm_start = FedAvg.build(None, task)
        self._only = (0, 1) if config.communicate_every == "step" else None

    def init(self, seed: int) -> State:
        """Start with one model for the warm start, or with the bases."""
        if self.warm_rounds:
            return {**self._warm_start.init(seed), CLOCK: {"round": torch.tensor(0)}}
        rows = self.config.bases + self.config.major
        random = self.config.init == "random"
        models = [self.task.initial(seed_for(seed, "basis", i) if random else seed) for i in range(rows)]
        return BasisSet.from_models(self.task.layout, models, self.config.major).to_state()

    def broadcast(self, server: State, client: str) -> State:
        """Send all but the local models that the server collects for clustering."""
        return without_collected(server)

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Learn coefficients, sharpen them, train the bases (or FedAvg's model during the warm start)."""
        if MODEL in received:
            return self._warm_start.client_update(received, state, data, context, self._only)
        work = LocalWork(context.model, data, self.task.recipe, self._only, _watched(context))
        psi = self._uniform(context.model.weights[0])
        if state is not None:
            psi = state[COEFFICIENTS][PSI].to(psi, copy=True)
        sent, alpha, losses = train_locally(
            self.config,
            work,
            lambda: self._on_device(received, context),  # so that they can be freed when one model is enough
            psi,
            coefficient_batches=context.generator("coefficients"),
            basis_batches=context.generator("batches"),
        )
        numbers = {**losses, "examples": float(len(data)), **coefficients.describe(self.task.layout.blocks, alpha)}
        numbers["plain_entropy"] = float(coefficients.entropy(coefficients.alpha(psi)).mean())  # without sharpening
        after = {COEFFICIENTS: {PSI: psi.cpu().clone()}} if self._only is not None else None
        return Sent(sent, numbers), after

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Average the bases, one update at a time; the warm start's last round clusters local models into bases."""
        if MODEL in server:
            return self._aggregate_warm_start(server, updates, seed)
        return self.aggregate_bases(server, updates)

    def aggregate_bases(self, received: State, updates: Iterable[Update], exact: State | None = None) -> State:
        """Average the bases, one update at a time.

        Args:
            received: The state with the bases that the clients received.
            updates: ``(client, update)``.
            exact: The server's state, if they received rounded bases.
        """
        precise = None if exact is None else self.bases(exact)
        mean = basis_mean(self.bases(received), self.config.by_usage, self.task.averaging, precise)
        for client, sent in updates:
            mean.add(sent.tensors, self.task.weight(int(sent.numbers["examples"])), f"The update of {client}")
        return mean.result().to_state()

    def _aggregate_warm_start(self, server: State, updates: Iterable[Update], seed: int) -> State:
        done = int(server[CLOCK]["round"]) + 1
        clock: State = {CLOCK: {"round": torch.tensor(done)}}
        if done <= self.warm_rounds - self.collecting:
            return {**self._warm_start.aggregate(server, updates, seed), **clock}
        received = spool_updates(updates)  # the only rounds in which all local models are needed at once
        now = LocalModels.of(
            server[MODEL], received, [self.task.weight(int(sent.numbers["examples"])) for _, sent in received]
        )
        if done < self.warm_rounds:
            before = {group: server[group] for group in server.keys() - without_collected(server).keys()}
            return {**self._warm_start.aggregate(server, received, seed), **clock, **before, **now.to_state(done)}
        major = [self._warm_start.aggregate(server, received, seed)[MODEL]] if self.config.major else []
        averaging = self.task.averaging
        rounds = [*collected(server), now]
        bases = cluster_models(
            self.task.layout,
            [local.start for local in rounds for _ in local.models],
            [model for local in rounds for model in averaging.clamp_models(local.models)],
            [weight for local in rounds for weight in local.weights],
            clusters=self.config.bases,
            seed=seed,
            by_block=self.config.cluster == "block",
            mean=averaging.mean,
        )
        return BasisSet.from_models(self.task.layout, major + bases, self.config.major).to_state()

    def model(self, server: State) -> Tensors:
        """Return the uniform combination of the bases."""
        if MODEL in server:
            return server[MODEL]
        bases = self.bases(server)
        return bases.merge(coefficients.combination(coefficients.alpha(self._uniform(bases.weights[0])), bases.major))

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Learn psi, and for ``coefficients+classifier`` an offset of the classifier, with the bases frozen."""
        classifier = self.classifier_block(way)
        work = LocalWork(context.model, data, plan.recipe(self.task.recipe), None, _watched(context))
        bases = self._on_device(server, context)
        psi = self._uniform(context.model.weights[0])
        settings = self.config.at_a_new_client(plan.rate, context.model.frozen_statistics)
        steps = learn_coefficients(work, bases, psi, context.generator("adapt"), settings, classifier)
        for loss in by_epoch(steps):
            yield loss, {PSI: psi.cpu().clone()}

    def classifier_block(self, way: str) -> int | None:
        """Return the number of the block that gets a trained offset in this way; None: none does."""
        return self.task.layout.block_of(self.task.classifier) if way.endswith("+classifier") else None

    def bases(self, state: State) -> BasisSet:
        """Return the bases of a state."""
        return BasisSet.from_state(self.task.layout, state)

    def _on_device(self, state: State, context: Context) -> AnyBases:
        """Return the bases where a client learns: read where they were received, or copied to its GPU."""
        device = context.model.weights[0].device
        if device.type == "cpu":
            return ReceivedBases.from_state(self.task.layout, state)
        return self.bases(state).to(device)

    def _uniform(self, like: Tensor) -> Tensor:
        return like.new_zeros(len(self.task.layout.blocks), self.config.bases)


def _watched(context: Context) -> Callable[[AnyBases, Tensor], None] | None:
    """Return a callback that reports the cosine of the bases and the entropy of alpha to ``context.watch``."""
    if (watch := context.watch) is None:
        return None

    def step(bases: AnyBases, psi: Tensor) -> None:
        entropy = float(coefficients.entropy(coefficients.alpha(psi)).mean())
        watch({"cosine": bases.cosine()[0], "plain_entropy": entropy})

    return step
