"""FedBasis: clients learn K shareable bases together; a client's model is a convex combination of them, block by block.

Chen et al., "Federated Learning of Shareable Bases for Personalization-Friendly Image Classification", AAAI 2024.
A local round learns the coefficients with the bases frozen, sharpens them, and trains the bases with the coefficients
frozen (equation 9). A new client learns coefficients only, or coefficients and a classifier.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedbasis import coefficients
from fedbasis.algorithms.base import Adaptation, Context, Method, MethodConfig, Sent, Task
from fedbasis.algorithms.fedavg import MODEL, FedAvg
from fedbasis.basis import BasisSet
from fedbasis.basis_aggregation import BasisMean, Upload
from fedbasis.basis_learning import (
    CoefficientSettings,
    Work,
    learn_coefficients,
    train_bases,
    train_factored,
    watch_rebuilt,
)
from fedbasis.clustering import cluster_models
from fedbasis.params import State, Tensors
from fedbasis.seeding import seed_for
from fedbasis.train import Examples, MeanLoss
from pflbed.errors import InputError

CLOCK = "clock"


class FedBasisConfig(MethodConfig):
    """Every choice of the paper, with the measured alternatives beside it."""

    bases: int = Field(4, ge=1, description="K, the number of bases besides the major one")
    major: bool = Field(True, description="a major basis that is always half of every combination")
    tau: float = Field(0.1, gt=0, le=1, description="sharpening: temperature of the softmax while bases are trained")
    coordinate_descent: bool = Field(True, description="coefficients first, then bases; false trains both at once")
    warm_start: float = Field(0.3, ge=0, lt=1, description="share of the rounds spent on FedAvg before bases are made")
    cluster: Literal["network", "block"] = Field("block", description="what is grouped when the first bases are made")
    init: Literal["pretrained", "random"] = Field("pretrained", description="all bases equal, or each its own draw")
    upload: Literal["factored", "full"] = Field("factored", description="one model and (a, alpha), or all K bases")
    aggregation: Literal["mean", "usage"] = Field("usage", description="divide by the clients, or by a basis' usage")
    rate: Literal["per-basis", "per-model"] = Field("per-model", description="what moves at the local learning rate")
    coefficient_optimizer: Literal["sgd", "adam"] = Field("adam", description="the optimizer of psi")
    coefficient_rate: float = Field(0.1, gt=0, description="the learning rate of psi")
    coefficient_epochs: int | None = Field(None, ge=0, description="epochs on psi a round; unset: as many as on bases")
    coefficient_statistics: Literal["batch", "frozen"] = Field("batch", description="what normalizes while psi learns")
    new_client_statistics: Literal["batch", "frozen"] = Field("frozen", description="the same, at a new client")
    basis_optimizer: Literal["sgd", "adam"] = Field("sgd", description="adam trains all K bases in every step")
    communicate_every: Literal["round", "step"] = Field("round", description="step: one batch a round, psi kept")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.init == "random" and self.warm_start > 0:
            raise ValueError("init = 'random' draws every basis itself and needs warm_start = 0")
        if self.init == "pretrained" and self.warm_start == 0 and self.bases > 1:
            raise ValueError("bases that start equal stay equal: use warm_start > 0 or init = 'random'")
        wrong = (self.upload, self.aggregation) != ("full", "mean") or self.rate != "per-basis"
        if not self.coordinate_descent and wrong:
            raise ValueError(
                "coordinate_descent = false needs upload = 'full', aggregation = 'mean' and rate = 'per-basis': "
                "the coefficients move while the bases do"
            )
        if self.basis_optimizer != "sgd" and (self.upload, self.aggregation) != ("full", "mean"):
            raise ValueError("a basis_optimizer other than 'sgd' needs upload = 'full' and aggregation = 'mean'")
        return self

    @property
    def factored(self) -> bool:
        """Whether training one combined model trains all bases exactly."""
        return self.coordinate_descent and self.basis_optimizer == "sgd"


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
    config: FedBasisConfig

    def __init__(self, config: FedBasisConfig, task: Task) -> None:
        super().__init__(config, task)
        if config.warm_start > 0 and task.rounds < 2:
            raise InputError("A warm start needs at least 2 rounds, one of FedAvg and one of bases; raise 'rounds'.")
        share = round(config.warm_start * task.rounds)
        self.warm_rounds = min(max(1, share), task.rounds - 1) if config.warm_start > 0 else 0
        self._warm_up = FedAvg(None, task)
        self._only = (0, 1) if config.communicate_every == "step" else None
        if config.init == "random" and task.weights:
            raise InputError(
                "init = 'random' draws every basis anew, so it takes no pretrained weights; leave them out."
            )

    def require_clients(self, count: int) -> None:
        """The last warm-up round must bring at least as many models as there are bases to make of them."""
        if self.warm_rounds and count < self.config.bases:
            raise InputError(
                f"{self.config.bases} bases need at least as many clients a round, but there are {count}; lower "
                "'bases' or raise 'participation'."
            )

    def init(self, seed: int) -> State:
        """Start with one model to warm up, or with bases at once."""
        if self.warm_rounds:
            return {**self._warm_up.init(seed), CLOCK: {"round": torch.tensor(0)}}
        rows = self.config.bases + self.config.major
        apart = self.config.init == "random"
        models = [self.task.initial(seed_for(seed, "basis", i) if apart else seed) for i in range(rows)]
        return BasisSet.from_models(self.task.layout, models, self.config.major).to_state()

    def client_update(
        self, received: State, kept: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Learn coefficients, sharpen them, train the bases (or FedAvg's model during warm-up)."""
        if MODEL in received:
            return self._warm_up.client_update(received, kept, data, context, self._only)
        config, model, by_step = self.config, context.model, self._only is not None
        work = Work(model, data, self.task.recipe, self._only, context.watch)
        psi = (
            self._uniform(model.weights[0])
            if kept is None
            else kept["coefficients"]["psi"].to(model.weights[0], copy=True)
        )
        settings, generator = self._settings(config.coefficient_statistics), context.generator("batches")
        bases = self._bases(received, context)
        whole = bases if config.upload == "full" else None
        psi_loss = MeanLoss()
        if config.coordinate_descent:
            epochs = self.task.recipe.epochs if config.coefficient_epochs is None else config.coefficient_epochs
            quick = replace(work, recipe=replace(self.task.recipe, epochs=epochs))
            for _, step_loss in learn_coefficients(quick, bases, psi, context.generator("coefficients"), settings):
                psi_loss.add(step_loss)
        if config.factored:
            weights = coefficients.alpha(psi, config.tau)
            c = coefficients.combination(weights, config.major)
            bases.combine_into(c, model)
            watch = watch_rebuilt(bases, weights, model, context.watch) if context.watch else None
            del bases  # one model is all that the basis epochs need
            loss, a = train_factored(work, c, generator, config.rate == "per-model", watch)
            upload, trained = Upload(model.tensors(), weights.cpu(), a), None
        else:
            joint = None if config.coordinate_descent else settings
            loss, moved = train_bases(
                work, bases, psi, config.tau, generator, config.rate == "per-model", config.basis_optimizer, joint
            )
            weights, trained = coefficients.alpha(psi, config.tau), moved.weights
            upload = Upload(model.tensors(), weights.cpu(), torch.ones(len(weights), dtype=torch.float64))
        numbers = {"loss": loss.value(), "examples": float(len(data)), "coefficient_loss": psi_loss.value()}
        sent = upload.factored() if whole is None else upload.full(whole, config.aggregation == "usage", trained)
        keeps = {"coefficients": {"psi": psi.cpu().clone()}} if by_step else None
        return Sent(sent, numbers | self._describe(weights)), keeps

    def aggregate(self, server: State, updates: Iterable[tuple[str, Sent]], seed: int) -> State:
        """Average the bases in a stream; the last warm-up round clusters the local models into the first bases."""
        if MODEL in server:
            return self._warm_aggregate(server, updates, seed)
        mean = BasisMean(BasisSet.from_state(self.task.layout, server), self.config.aggregation == "usage")
        for client, sent in updates:
            mean.add(sent.tensors, self.task.weight(int(sent.numbers["examples"])), f"The update of {client}")
        return mean.result().to_state()

    def _warm_aggregate(self, server: State, updates: Iterable[tuple[str, Sent]], seed: int) -> State:
        done = int(server[CLOCK]["round"]) + 1
        if done < self.warm_rounds:
            return {**self._warm_up.aggregate(server, updates, seed), CLOCK: {"round": torch.tensor(done)}}
        arrived = list(updates)  # the one round in which all local models are needed at once
        major = [self._warm_up.aggregate(server, arrived, seed)[MODEL]] if self.config.major else []
        models = [sent.tensors[MODEL] for _, sent in arrived]
        by_block = self.config.cluster == "block"
        counts = [self.task.weight(int(sent.numbers["examples"])) for _, sent in arrived]
        bases = cluster_models(self.task.layout, server[MODEL], models, counts, self.config.bases, seed, by_block)
        return BasisSet.from_models(self.task.layout, major + bases, self.config.major).to_state()

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
        work = Work(context.model, data, plan.recipe(self.task.recipe), None, context.watch)
        bases = self._bases(server, context)
        psi = self._uniform(context.model.weights[0])
        settings, losses = self._settings(self.config.new_client_statistics), MeanLoss()
        for epoch_ends, loss in learn_coefficients(work, bases, psi, context.generator("adapt"), settings, classifier):
            losses.add(loss)
            if epoch_ends:
                yield losses.value(), {"psi": psi.cpu().clone()}
                losses = MeanLoss()

    def diagnostics(self, server: State) -> dict[str, Any]:
        """Report how alike the bases are."""
        if MODEL in server:
            return {"phase": "warm-up"}
        whole, blocks = BasisSet.from_state(self.task.layout, server).cosine()
        return {
            "phase": "bases",
            "cosine": {"network": whole, **dict(zip(self.task.layout.blocks, blocks, strict=True))},
        }

    def _bases(self, state: State, context: Context) -> BasisSet:
        return BasisSet.from_state(self.task.layout, state).to(context.model.weights[0].device)

    def _uniform(self, like: Tensor) -> Tensor:
        return like.new_zeros(len(self.task.layout.blocks), self.config.bases)

    def _settings(self, statistics: Literal["batch", "frozen"]) -> CoefficientSettings:
        return CoefficientSettings(self.config.coefficient_optimizer, self.config.coefficient_rate, statistics)

    def _describe(self, weights: Tensor) -> dict[str, float]:
        numbers = {}
        for block, row in zip(self.task.layout.blocks, weights, strict=True):
            numbers[f"entropy/{block}"] = float(coefficients.entropy(row))
            numbers |= {f"usage/{block}/{k}": float(used) for k, used in enumerate(row)}
        return numbers
