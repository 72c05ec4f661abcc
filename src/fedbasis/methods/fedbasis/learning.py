"""The three local trainings of FedBasis: coefficients with frozen bases, bases with frozen coefficients, and both.

A step on coefficients costs one backward pass and two matrix-vector products. A step on bases by SGD costs as much as
one on a single model (see ``bases``); other optimizers, and joint training, update all K bases in every step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedbasis.methods.fedbasis import coefficients
from fedbasis.methods.fedbasis.bases import BasisSet, FactoredRates, rebuild
from fedbasis.methods.fedbasis.received import ReceivedBases
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples
from fedbasis.networks.optimizers import FlatAdam, FlatSGD, PlainSGD
from fedbasis.networks.train import MeanLoss, backward_passes, local_sgd
from fedbasis.tensors.flat import FlatModel

OptimizerName = Literal["sgd", "adam"]
CoefficientStatistics = Literal["own", "batch", "frozen"]
"""Normalization while psi is learned, and statistics of the resulting model: ``own`` normalizes by the batch and adapts
the running statistics to the client's images, ``batch`` normalizes by the batch and ends with the bases' statistics,
``frozen`` uses the bases' statistics for both."""
Only = tuple[int, int] | None
AnyBases = BasisSet | ReceivedBases
Watch = Callable[[AnyBases, Tensor], None] | None  # called after every local step with the current bases and psi


@dataclass(frozen=True)
class LocalWork:
    """The inputs of local training.

    Args:
        model: The working model.
        data: The client's images.
        recipe: Epochs, batch size, rate, momentum, decay and augmentation.
        only: The range of steps to take, as (start, stop); None: all.
        watch: Called after every step with the current bases and psi.
    """

    model: FlatModel
    data: Examples
    recipe: Recipe
    only: Only = None
    watch: Watch = None


@dataclass(frozen=True)
class CoefficientSettings:
    """How psi is learned: the optimizer, its rate, and the normalization."""

    optimizer: OptimizerName = "adam"
    rate: float = 0.1
    statistics: CoefficientStatistics = "batch"

    def stepper(self, psi: Tensor, momentum: float) -> FlatAdam | PlainSGD:
        """Return the optimizer that updates ``psi`` in place from ``psi.grad``."""
        psi.grad = torch.zeros_like(psi)
        if self.optimizer == "sgd":
            return PlainSGD([psi], self.rate, momentum)
        return FlatAdam(psi, self.rate)


def learn_coefficients(
    work: LocalWork,
    bases: AnyBases,
    psi: Tensor,
    generator: torch.Generator,
    settings: CoefficientSettings,
    classifier: int | None = None,
) -> Iterator[tuple[bool, Tensor]]:
    """Train ``psi`` in place with the bases frozen; the working model always holds the current combination.

    Args:
        work: The working model, the images and the recipe.
        bases: The frozen bases.
        psi: The coefficients, updated in place.
        generator: Draws the batches.
        settings: The optimizer of psi and the normalization.
        classifier: The number of the classifier's block, which then also gets an offset that is added to its
            combination and trained by the recipe's SGD; None: no offset.

    Yields:
        ``(whether the epoch ends here, loss)`` after every step.
    """
    model, recipe = work.model, work.recipe
    optimizer = settings.stepper(psi, recipe.momentum)
    free, offset = None, torch.zeros(0)
    if classifier is not None:
        offset = torch.zeros_like(model.weights[classifier])
        free = FlatSGD([offset], [model.gradients[classifier]], [recipe.rate], [0.0], recipe.momentum)

    def refresh(statistics: bool = settings.statistics != "own") -> None:
        bases.combine_into(coefficients.combination(coefficients.alpha(psi), bases.major), model, statistics)
        if classifier is not None:
            model.weights[classifier] += offset

    refresh(statistics=True)
    by: Literal["batch", "frozen"] = "frozen" if settings.statistics == "frozen" else "batch"
    for epoch_ends, loss in backward_passes(model, work.data, recipe, generator, statistics=by, only=work.only):
        _set_gradient(psi, coefficients.pull_back(psi, bases.pull_back(model.gradients), bases.major))
        optimizer.step()
        if free is not None and classifier is not None:
            model.gradients[classifier].add_(model.weights[classifier], alpha=recipe.decay)
            free.step()
        refresh()
        if work.watch is not None:
            work.watch(bases, psi)
        yield epoch_ends, loss


def train_factored(
    work: LocalWork,
    c: Tensor,
    generator: torch.Generator,
    per_model: bool,
    on_step: Callable[[Tensor], None] | None = None,
) -> tuple[MeanLoss, Tensor]:
    """Train the combined model, which must be in ``work.model``.

    The bases are not needed until they are rebuilt, so they need not be in memory.

    Args:
        work: The working model with the combination, the images and the recipe.
        c: The coefficients of the combination.
        generator: Draws the batches.
        per_model: Whether the learning rate applies to the combined model instead of each basis.
        on_step: Called with the current ``a`` after every step.

    Returns:
        The loss, and ``a`` per block.
    """
    recipe = work.recipe
    rates = FactoredRates.of(c, recipe.rate, recipe.momentum, recipe.decay, per_model)
    loss = local_sgd(
        work.model, work.data, recipe, generator, only=work.only,
        rates=rates.theta_rates, decays=rates.theta_decays,
        on_step=None if on_step is None else lambda steps: on_step(rates.shrinkage(steps)),
    )  # fmt: skip
    return loss, rates.shrinkage(loss.steps)


def watch_rebuilt(
    bases: BasisSet, psi: Tensor, c: Tensor, model: FlatModel, watch: Callable[[AnyBases, Tensor], None]
) -> Callable[[Tensor], None]:
    """Return a callback for ``train_factored`` that passes the rebuilt bases to ``watch`` after every step."""

    def on_step(a: Tensor) -> None:
        now = zip(bases.weights, c.unbind(), a, model.weights, strict=True)
        watch(replace(bases, weights=[rebuild(*block) for block in now]), psi)

    return on_step


def train_bases(
    work: LocalWork,
    bases: BasisSet,
    psi: Tensor,
    tau: float,
    generator: torch.Generator,
    per_model: bool,
    optimizer: OptimizerName = "sgd",
    joint: CoefficientSettings | None = None,
) -> tuple[MeanLoss, BasisSet]:
    """Train a copy of every basis: K times the cost of one model, for any optimizer, optionally together with ``psi``.

    ``joint`` updates ``psi`` in place in the same steps, through the softmax at ``tau`` (at 1 this is the paper's
    baseline, equations 5 and 6; at 0.1 its ablation); without it the combination is frozen.
    """
    recipe, model, major = work.recipe, work.model, bases.major
    trained = replace(bases, weights=[matrix.clone() for matrix in bases.weights])
    c = coefficients.combination(coefficients.alpha(psi, tau), major)
    trained.combine_into(c, model)
    gradients = [torch.zeros_like(matrix) for matrix in trained.weights]
    rates = FactoredRates.of(c, recipe.rate, recipe.momentum, recipe.decay, per_model).basis_rates
    take_step = _basis_step(optimizer, trained.weights, gradients, rates, recipe)
    psi_stepper = joint.stepper(psi, recipe.momentum) if joint is not None else None
    mean = MeanLoss()
    for _, loss in backward_passes(model, work.data, recipe, generator, only=work.only):
        for gradient, row, g in zip(gradients, c.unbind(), model.gradients, strict=True):
            torch.outer(row, g, out=gradient)
        if psi_stepper is not None:
            _set_gradient(psi, coefficients.pull_back(psi, trained.pull_back(model.gradients), major, tau))
            psi_stepper.step()
            c = coefficients.combination(coefficients.alpha(psi, tau), major)
        take_step()
        for matrix, row, flat in zip(trained.weights, c.unbind(), model.weights, strict=True):
            torch.mv(matrix.t(), row, out=flat)
        mean.add(loss)
        if work.watch is not None:
            work.watch(trained, psi)
    return mean, trained


def _basis_step(
    name: OptimizerName, flats: list[Tensor], gradients: list[Tensor], rates: list[float], recipe: Recipe
) -> Callable[[], None]:
    if name == "sgd":
        return FlatSGD(flats, gradients, rates, [recipe.decay] * len(flats), recipe.momentum).step
    optimizers = []
    for flat, gradient, rate in zip(flats, gradients, rates, strict=True):
        view = flat.detach()
        view.grad = gradient
        optimizers.append(FlatAdam(view, rate, recipe.decay))

    def step() -> None:
        for optimizer in optimizers:
            optimizer.step()

    return step


def _set_gradient(tensor: Tensor, gradient: Tensor) -> None:
    tensor.grad = gradient
