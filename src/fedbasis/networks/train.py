"""The local training loop: batches by index from uint8 pixels, augmentation, backward passes, evaluation.

``backward_passes`` yields after every backward pass, and its caller decides what to do with the gradient. So plain SGD,
coefficient learning and all other methods share the batches, their order and the arithmetic.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedbasis.networks.augment import Augment as Augment  # noqa: PLC0414  (settings import it from here)
from fedbasis.networks.augment import cut, draw_windows
from fedbasis.tensors.flat import FlatModel
from pflbed.errors import InputError
from pflbed.images import Resolution

Adjust = Callable[[FlatModel], None]  # changes the gradients in place before a step: a penalty, a control variate
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]  # logits, labels, row numbers of the batch -> the loss
MAX_PIXELS = 2**22
"""Pixels that are predicted at once: 256 images of 128 x 128, 4 of 1024 x 1024."""
MAX_DRAWN = 2**20
"""Images whose batches are drawn in advance, at most."""


@dataclass(frozen=True)
class Preprocessing:
    """How pixels become inputs: cropped, divided by 255, minus the mean, divided by the deviation, per channel.

    Args:
        resolution: The size to which images are decoded.
        mean: The mean of every channel.
        std: The standard deviation of every channel.
        crop: The size of the inputs, which are the centres of the images; None: the whole images.
    """

    resolution: Resolution
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    crop: Resolution | None = None

    @classmethod
    def of(cls, resolution: Resolution, channels: int, crop: Resolution | None = None) -> "Preprocessing":
        """Return the default: ImageNet's mean and deviation for RGB, their mean for gray, else 0.5 and 0.25."""
        if channels == 3:
            return cls(resolution, crop=crop)
        mean, std = (0.449, 0.226) if channels == 1 else (0.5, 0.25)
        return cls(resolution, (mean,) * channels, (std,) * channels, crop)

    def __call__(self, pixels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Turn uint8 pixels [N, H, W, C] into a float batch [N, C, H, W] in the channels-last memory format.

        Images that have the size of a crop already, as random crops have, are not cropped again.
        """
        pixels = pixels if self.crop is None else _centre(pixels, self.crop)
        n, height, width, channels = pixels.shape
        start, scale = _line(self, width, pixels.device, dtype)
        lines = pixels.reshape(n, height, channels * width).to(dtype, copy=True)
        return torch.addcmul(start, lines, scale, out=lines).view(n, height, width, channels).permute(0, 3, 1, 2)


def _centre(pixels: Tensor, size: Resolution) -> Tensor:
    """Cut the centre out of images [N, H, W, C]."""
    height, width = (size, size) if isinstance(size, int) else size
    above, left = pixels.shape[1] - height, pixels.shape[2] - width
    if above < 0 or left < 0:
        raise InputError(
            f"Images must be at least as large as the crop, {height} x {width} pixels, but they are "
            f"{pixels.shape[1]} x {pixels.shape[2]}."
        )
    above, left = above // 2, left // 2
    return pixels[:, above : above + height, left : left + width]


@lru_cache(maxsize=16)
def _line(how: Preprocessing, width: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Repeat the shift and the scale along a line of pixels: broadcasting over three numbers is slow."""
    shift = [-m / s for m, s in zip(how.mean, how.std, strict=True)]
    scale = [1 / (255 * s) for s in how.std]
    return tuple(torch.tensor(v, device=device, dtype=dtype).repeat(width) for v in (shift, scale))  # type: ignore[return-value]


@dataclass(frozen=True)
class Examples:
    """One client's images and labels, which are all that a method sees of its data.

    Args:
        pixels: The images, uint8 [N, H, W, C].
        labels: Their classes, int64 [N].
    """

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise InputError(
                f"Pixels must be uint8 [N, H, W, C], but they are {self.pixels.dtype} {self.pixels.shape}."
            )
        if len(self.pixels) != len(self.labels) or len(self.labels) == 0:
            raise InputError(f"A client needs one label per image, but has {len(self.pixels)} and {len(self.labels)}.")

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Examples":
        """Return the same images on a device, where batches are then made without a copy a step."""
        pixels, labels = to_device(self.pixels, device), to_device(self.labels, device)
        return self if pixels is self.pixels and labels is self.labels else Examples(pixels, labels)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as plain arrays."""
        return _examples, (self.pixels.numpy(), self.labels.numpy())


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device; to a GPU from pinned memory, so that nobody waits for it."""
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _examples(pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> Examples:
    return Examples(torch.from_numpy(pixels), torch.from_numpy(labels))


def examples_of(images: Any) -> Examples:
    """Turn PFLBed's numpy images into ``Examples`` that share their memory; ``Examples`` are returned unchanged."""
    return images if isinstance(images, Examples) else _examples(images.pixels, images.labels)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a client trains locally: SGD with momentum and weight decay over shuffled batches.

    Args:
        preprocessing: How pixels become inputs.
        epochs: Local epochs per round.
        batch: Images per batch.
        rate: The learning rate.
        momentum: The momentum of SGD.
        decay: The weight decay.
        augment: The augmentation of every batch.
    """

    preprocessing: Preprocessing
    epochs: int = 5
    batch: int = 16
    rate: float = 0.01
    momentum: float = 0.9
    decay: float = 1e-4
    augment: Augment = "none"


def batches(count: int, batch: int, generator: torch.Generator) -> list[Tensor]:
    """Shuffle row numbers into batches; a last batch of one is merged into the one before it (BatchNorm needs two)."""
    parts = list(torch.split(torch.randperm(count, generator=generator), batch))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


@dataclass(frozen=True)
class Batch:
    """The images of one step.

    Args:
        rows: Their row numbers, on the device of the images.
        windows: What augmentation cuts out of them, on the CPU.
        there: The same on the device of the images.
        epoch_ends: Whether it is the last batch of an epoch.
    """

    rows: Tensor
    windows: Tensor
    there: Tensor
    epoch_ends: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def inputs(self, data: Examples, recipe: Recipe, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the augmented inputs and the labels, as the network with the weights ``like`` needs them."""
        pixels, labels = (all_of.index_select(0, self.rows) for all_of in (data.pixels, data.labels))
        pixels = cut(pixels, recipe.augment, self.windows, self.there, recipe.preprocessing.crop)
        return recipe.preprocessing(pixels.to(like.device), like.dtype), labels.to(like.device)


def draw_batches(
    data: Examples, recipe: Recipe, generator: torch.Generator, only: tuple[int, int] | None = None
) -> Iterator[Batch]:
    """Draw the batches of all epochs; on a device many of them in advance, so that they are copied to it at once.

    Args:
        data: The client's images.
        recipe: Epochs, batch size and augmentation.
        generator: Draws the order of the images and their augmentation; it is on the CPU, whatever the device.
        only: The range of batches to draw, as (start, stop), of all epochs; None: all.
    """
    return _on_device(_drawn(data, recipe, generator, only), data, recipe.batch)


def augment_batches(
    rows: Sequence[Tensor], data: Examples, recipe: Recipe, generator: torch.Generator
) -> Iterator[Batch]:
    """Draw the augmentation of batches of given rows."""
    drawn = (Batch(part, windows := _windows(len(part), data, recipe, generator), windows) for part in rows)
    return _on_device(drawn, data, recipe.batch)


def _drawn(data: Examples, recipe: Recipe, generator: torch.Generator, only: tuple[int, int] | None) -> Iterator[Batch]:
    passed = 0
    for _ in range(recipe.epochs):
        parts = batches(len(data), recipe.batch, generator)
        for number, rows in enumerate(parts, start=1):
            passed += 1
            if only is None or only[0] < passed <= only[1]:
                windows = _windows(len(rows), data, recipe, generator)
                yield Batch(rows, windows, windows, number == len(parts))


def _windows(count: int, data: Examples, recipe: Recipe, generator: torch.Generator) -> Tensor:
    return draw_windows(count, data.pixels.shape[1], data.pixels.shape[2], recipe.augment, generator)


def _on_device(drawn: Iterator[Batch], data: Examples, size: int) -> Iterator[Batch]:
    """Return batches whose numbers are where the images are."""
    device = data.pixels.device
    return drawn if device.type == "cpu" else _copied(drawn, device, max(1, MAX_DRAWN // size))


def _copied(drawn: Iterator[Batch], device: torch.device, count: int) -> Iterator[Batch]:
    """Copy batches to a device, so many at once."""
    while part := list(islice(drawn, count)):
        rows = at_once([batch.rows for batch in part], device)
        there = at_once([batch.windows for batch in part], device)
        yield from (replace(b, rows=mine, there=same) for b, mine, same in zip(part, rows, there, strict=True))


def at_once(parts: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """Copy tensors to a device by one copy."""
    return list(torch.split(to_device(torch.cat(list(parts)), device), [len(part) for part in parts]))


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
    like = model.weights[0]
    for batch in draw_batches(data, recipe, generator, only):
        by_batch = statistics == "batch" and not model.frozen_statistics and len(batch) > 1
        if model.module.training is not by_batch:  # setting the mode costs as much as a small layer
            model.module.train(by_batch)
        inputs, labels = batch.inputs(data, recipe, like)
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


class FlatSGD:
    """SGD that updates flat vectors in place, with one rate and decay per block.

    The arithmetic is that of ``torch.optim.SGD(fused=True)``, called directly: on small networks the overhead of the
    class takes as long as a step.
    """

    def __init__(
        self,
        flats: Sequence[Tensor],
        gradients: Sequence[Tensor],
        rates: Sequence[float],
        decays: Sequence[float],
        momentum: float,
    ) -> None:
        self._blocks = list(zip(flats, gradients, rates, decays, strict=True))
        self._momentum = momentum
        self._buffers: list[list[Tensor | None]] = [[None] for _ in self._blocks]

    @torch.no_grad()
    def step(self) -> None:
        """Take a step along the gradients as they are now."""
        for (flat, gradient, rate, decay), buffer in zip(self._blocks, self._buffers, strict=True):
            sgd(
                [flat], [gradient], buffer, fused=True, lr=rate, weight_decay=decay, momentum=self._momentum,
                dampening=0.0, nesterov=False, maximize=False,
            )  # fmt: skip


class PlainSGD:
    """SGD that updates tensors in place from their ``grad``; a tensor without one is not changed.

    The arithmetic is that of ``torch.optim.SGD`` on the CPU, called directly: the class makes torch import its
    compiler.
    """

    def __init__(self, tensors: Iterable[Tensor], rate: float, momentum: float = 0.0, decay: float = 0.0) -> None:
        self._tensors = list(tensors)
        self._rate, self._momentum, self._decay = rate, momentum, decay
        self._buffers: list[list[Tensor | None]] = [[None] for _ in self._tensors]

    def zero_grad(self) -> None:
        """Set the gradients to zero in place, so that a working model's gradients stay views."""
        for tensor in self._tensors:
            if tensor.grad is not None:
                tensor.grad = tensor.grad.detach().zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Take a step along the gradients as they are now."""
        for tensor, buffer in zip(self._tensors, self._buffers, strict=True):
            if tensor.grad is not None:
                sgd(
                    [tensor], [tensor.grad], buffer, foreach=False, fused=False, lr=self._rate, dampening=0.0,
                    momentum=self._momentum, weight_decay=self._decay, nesterov=False, maximize=False,
                )  # fmt: skip


class FlatAdam:
    """Adam that updates a tensor in place from its ``grad``.

    The arithmetic is that of ``torch.optim.Adam``, called directly: the class makes torch import its compiler, a second
    and 76 MiB in every process that trains or serves a client.
    """

    def __init__(self, flat: Tensor, rate: float, decay: float = 0.0) -> None:
        self._flat, self._rate, self._decay = flat, rate, decay
        self._first, self._second = torch.zeros_like(flat), torch.zeros_like(flat)
        self._steps = torch.tensor(0.0)

    @torch.no_grad()
    def step(self) -> None:
        """Take a step along the gradient as it is now."""
        assert self._flat.grad is not None
        adam(
            [self._flat], [self._flat.grad], [self._first], [self._second], [], [self._steps], foreach=False,
            amsgrad=False, beta1=0.9, beta2=0.999, lr=self._rate, weight_decay=self._decay, eps=1e-8, maximize=False,
        )  # fmt: skip


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
