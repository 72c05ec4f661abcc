"""A client's images, and how their pixels become the inputs of a network: cropped, scaled, normalized per channel."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflbed.errors import InputError
from pflbed.images import Resolution


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

    def __call__(self, pixels: Tensor, dtype: torch.dtype = torch.float32, *, channels_last: bool = True) -> Tensor:
        """Turn uint8 pixels [N, H, W, C] into a float batch [N, C, H, W], which has the same numbers in either layout.

        Images that have the size of a crop already, as random crops have, are not cropped again.

        Args:
            pixels: The images.
            dtype: Of the batch.
            channels_last: The layout that is fastest for convolutions. A network without them is spared a copy of the
                floats if the bytes are laid out channel by channel.
        """
        pixels = pixels if self.crop is None else _centre(pixels, self.crop)
        n, height, width, channels = pixels.shape
        if not channels_last:
            start, scale = _planes(self, height * width, pixels.device, dtype)
            flat = pixels.permute(0, 3, 1, 2).reshape(n, channels * height * width).to(dtype, copy=True)
            return torch.addcmul(start, flat, scale, out=flat).view(n, channels, height, width)
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
    shift, scale = _shift_and_scale(how, device, dtype)
    return shift.repeat(width), scale.repeat(width)


@lru_cache(maxsize=16)
def _planes(how: Preprocessing, pixels: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Repeat them channel by channel."""
    shift, scale = _shift_and_scale(how, device, dtype)
    return shift.repeat_interleave(pixels), scale.repeat_interleave(pixels)


def _shift_and_scale(how: Preprocessing, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shift = [-m / s for m, s in zip(how.mean, how.std, strict=True)]
    scale = [1 / (255 * s) for s in how.std]
    return torch.tensor(shift, device=device, dtype=dtype), torch.tensor(scale, device=device, dtype=dtype)


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
