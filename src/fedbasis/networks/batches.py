"""The batches of local training: how a client trains, the order of its images, and their augmentation.

On a device, batches are drawn in advance and copied at once, so that no step waits for a copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from fedbasis.networks.augment import Augment, cut, draw_windows
from fedbasis.networks.inputs import Examples, Preprocessing, to_device
from fedbasis.tensors.flat import FlatModel

MAX_DRAWN = 2**20
"""Images whose batches are drawn in advance, at most."""


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

    def inputs(self, data: Examples, recipe: Recipe, model: FlatModel) -> tuple[Tensor, Tensor]:
        """Return the augmented inputs and the labels, as a model needs them."""
        like = model.weights[0]
        pixels, labels = (all_of.index_select(0, self.rows) for all_of in (data.pixels, data.labels))
        pixels = cut(pixels, recipe.augment, self.windows, self.there, recipe.preprocessing.crop)
        inputs = recipe.preprocessing(pixels.to(like.device), like.dtype, channels_last=model.convolutional)
        return inputs, labels.to(like.device)


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
