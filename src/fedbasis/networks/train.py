"""The local training loop: backward passes over batches, steps, evaluation.

``backward_passes`` yields after every backward pass, and its caller decides what to do with the gradient. So plain SGD,
coefficient learning and all other methods share the batches, their order and the arithmetic.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fedbasis.networks.batches import Recipe, draw_batches
from fedbasis.networks.inputs import Examples, Preprocessing
from fedbasis.networks.optimizers import FlatSGD
from fedbasis.tensors.flat import FlatModel
from pflbed.errors import InputError

Adjust = Callable[[FlatModel], None]  # changes the gradients in place before a step: a penalty, a control variate
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]  # logits, labels, row numbers of the batch -> the loss
MAX_PIXELS = 2**22
"""Pixels that are predicted at once: 256 images of 128 x 128, 4 of 1024 x 1024."""


def backward_passes(
    model: FlatModel,
    data: Examples,
    recipe: Recipe,
    generator: torch.Generator,
    *,
    statistics: Literal["batch", "frozen"] = "batch",
    only: tuple[int, int] | None = None,
    objective: Objective | None = None,
) -> Iterator[tuple[bool, Tensor]]:
    """Run the batches of all epochs; after every backward pass the gradient is in ``model.gradients``.

    Args:
        model: The working model.
        data: The client's images.
        recipe: Epochs, batch size, augmentation and preprocessing.
        generator: Draws the batches and the augmentation.
        statistics: "batch" normalizes by the batch, as in training; "frozen" uses the running statistics and does not
            change them, as does a model with ``frozen_statistics``.
        only: The range of passes to run, as (start, stop); None: all.
        objective: The loss; None: the mean cross entropy.

    Yields:
        ``(whether the epoch ends here, loss)``.
    """
    for batch in draw_batches(data, recipe, generator, only):
        by_batch = statistics == "batch" and not model.frozen_statistics and len(batch) > 1
        if model.module.training is not by_batch:  # setting the mode costs as much as a small layer
            model.module.train(by_batch)
        inputs, labels = batch.inputs(data, recipe, model)
        model.zero_gradients()
        logits = model.logits(inputs)
        loss = F.cross_entropy(logits, labels) if objective is None else objective(logits, labels, batch.rows)
        loss.backward()  # type: ignore[no-untyped-call]
        yield batch.epoch_ends, loss.detach()


@dataclass
class MeanLoss:
    """The mean training loss over the steps; the sum is a tensor, so that no step waits for the device."""

    total: Tensor | float = 0.0
    steps: int = 0

    def add(self, loss: Tensor) -> None:
        """Count one step."""
        self.total, self.steps = self.total + loss, self.steps + 1

    def value(self) -> float:
        """Return the mean, or NaN if there was no step."""
        return float(self.total) / self.steps if self.steps else float("nan")


def local_sgd(
    model: FlatModel,
    data: Examples,
    recipe: Recipe,
    generator: torch.Generator,
    *,
    rates: Sequence[float] | None = None,
    decays: Sequence[float] | None = None,
    on_step: Callable[[int], None] | None = None,
    only: tuple[int, int] | None = None,
    names: Collection[str] | None = None,
    adjust: Adjust | None = None,
    statistics: Literal["batch", "frozen"] = "batch",
    objective: Objective | None = None,
) -> MeanLoss:
    """Train a model by SGD and return the mean loss.

    Args:
        model: The working model.
        data: The client's images.
        recipe: Epochs, batch size, rate, momentum, decay and augmentation.
        generator: Draws the batches and the augmentation.
        rates: The learning rate of every block; None: the recipe's.
        decays: The weight decay of every block; None: the recipe's.
        on_step: Called with the number of steps after every step.
        only: The range of steps to take, as (start, stop); None: all.
        names: The parameters to train, the others are frozen; None: all.
        adjust: Changes the gradients before every step.
        statistics: "batch" or "frozen", as in ``backward_passes``.
        objective: The loss; None: the mean cross entropy.
    """
    mean = MeanLoss()
    steps = sgd_steps(
        model, data, recipe, generator, rates=rates, decays=decays, only=only, names=names, adjust=adjust,
        statistics=statistics, objective=objective,
    )  # fmt: skip
    for _, loss in steps:
        mean.add(loss)
        if on_step is not None:
            on_step(mean.steps)
    return mean


def sgd_steps(
    model: FlatModel,
    data: Examples,
    recipe: Recipe,
    generator: torch.Generator,
    *,
    rates: Sequence[float] | None = None,
    decays: Sequence[float] | None = None,
    only: tuple[int, int] | None = None,
    names: Collection[str] | None = None,
    adjust: Adjust | None = None,
    statistics: Literal["batch", "frozen"] = "batch",
    objective: Objective | None = None,
) -> Iterator[tuple[bool, Tensor]]:
    """Train as ``local_sgd`` does, and yield ``(whether the epoch ends here, loss)`` after every step."""
    weights, gradients = (model.weights, model.gradients) if names is None else views(model, names)
    optimizer = FlatSGD(
        weights,
        gradients,
        [recipe.rate] * len(weights) if rates is None else rates,
        [recipe.decay] * len(weights) if decays is None else decays,
        recipe.momentum,
    )
    with training_only(model, names):
        passes = backward_passes(model, data, recipe, generator, statistics=statistics, only=only, objective=objective)
        for step in passes:
            if adjust is not None:
                adjust(model)
            optimizer.step()
            yield step


def by_epoch(steps: Iterable[tuple[bool, Tensor]], step: Callable[[], None] | None = None) -> Iterator[float]:
    """Yield the mean loss of every epoch.

    Args:
        steps: ``(whether the epoch ends here, loss)``, from ``sgd_steps`` or ``backward_passes``.
        step: Called after every backward pass to take the optimizer's step; None if ``steps`` does that.
    """
    mean = MeanLoss()
    for epoch_ends, loss in steps:
        if step is not None:
            step()
        mean.add(loss)
        if epoch_ends:
            yield mean.value()
            mean = MeanLoss()


def views(model: FlatModel, names: Collection[str]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights and the gradients of some parameters as views into the model's flat vectors."""
    known = {entry.name: entry for entry in model.layout.select(True)}
    if not names or (unknown := sorted(set(names) - known.keys())):
        raise InputError(f"Training needs names of parameters, but got {unknown[:3] if names else 'none'}.")
    chosen = [known[name] for name in sorted(names)]
    return tuple(  # type: ignore[return-value]
        [flats[entry.block][entry.start : entry.stop] for entry in chosen] for flats in (model.weights, model.gradients)
    )


@contextmanager
def training_only(model: FlatModel, names: Collection[str] | None) -> Iterator[None]:
    """Compute gradients of these parameters only, so that backward passes are no longer than needed.

    If a GroupNorm is among them, all gradients are computed: torch 2.13 crashes on the CPU in the backward pass of a
    GroupNorm whose input needs no gradient.
    """
    groups = (name for name, child in model.module.named_modules() if isinstance(child, nn.GroupNorm))
    if names is None or any(f"{group}.weight" in names for group in groups):
        yield
        return
    frozen = [p for name, p in model.module.named_parameters() if name not in names and p.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def proximal(model: FlatModel, strength: float, anchor: Sequence[Tensor] | None = None) -> Adjust:
    """Return a function that adds the gradient of the proximal term ``strength / 2 ||w - anchor||^2``.

    Args:
        model: The working model.
        strength: The factor of the term.
        anchor: Flat vectors, one per block; None: a copy of the model's current parameters.
    """
    fixed = [flat.clone() for flat in model.weights] if anchor is None else list(anchor)

    def pull(now: FlatModel) -> None:
        if strength:  # zero adds nothing, not even a rounding
            for gradient, flat, start in zip(now.gradients, now.weights, fixed, strict=True):
                gradient.add_(flat - start, alpha=strength)

    return pull


@torch.no_grad()
def forward(module: nn.Module, pixels: Tensor, preprocessing: Preprocessing, batch: int = 256) -> Tensor:
    """Return the logits of images, with the module in evaluation mode; fewer at once if they are large."""
    module.eval()
    batch = max(1, min(batch, MAX_PIXELS // max(1, pixels.shape[1] * pixels.shape[2])))
    device = next(module.parameters()).device
    return torch.cat([module(preprocessing(part.to(device))) for part in torch.split(pixels, batch)])


def predict(module: nn.Module, pixels: Tensor, preprocessing: Preprocessing, batch: int = 256) -> Tensor:
    """Return the class probabilities of images, on the CPU, with the module in evaluation mode."""
    return torch.softmax(forward(module, pixels, preprocessing, batch), dim=1).cpu()
