"""Random changes of training images: shifts, mirroring, crops. All work on uint8 batches [N, H, W, C].

The two crops are the usual ones. "resized-crop+flip" is that of training on ImageNet: a part of 8 % to 100 % of the
image's area, with sides between 3:4 and 4:3, scaled to the input's size. "padded-crop+flip" is that of training on
CIFAR: four black pixels are added on every side, and a window of the image's size is cut out.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from pflbed.images import Resolution

Augment = Literal["none", "shift", "flip+shift", "padded-crop+flip", "resized-crop+flip"]
AREA = (0.08, 1.0)
"""Shares of an image's area that a resized crop may have."""
RATIO = (3 / 4, 4 / 3)
"""Width divided by height of a resized crop."""
TRIES = 10
"""Draws of a resized crop; if none fits into the image, the largest central part of an allowed ratio is taken."""
PADDING = 4
"""Black pixels on every side of an image before a padded crop."""


def augmented(
    pixels: Tensor, how: Augment, generator: torch.Generator, reach: int = 2, size: Resolution | None = None
) -> Tensor:
    """Change every image of a batch at random.

    Args:
        pixels: The images, uint8 [N, H, W, C].
        how: "none"; "shift" by up to ``reach`` pixels, edges repeated; "flip+shift"; or one of the two crops. All but
            "shift" mirror an image with chance 1/2.
        generator: Draws what is done; it is on the CPU, whatever the device of the images.
        reach: The longest shift.
        size: The size of resized crops; None: that of the images.
    """
    if how == "none":
        return pixels
    if how == "padded-crop+flip":
        return padded_crops(pixels, generator)
    if how == "resized-crop+flip":
        height, width = pixels.shape[1:3] if size is None else (size, size) if isinstance(size, int) else size
        boxes = crop_boxes(len(pixels), pixels.shape[1], pixels.shape[2], generator)
        return resized_crops(pixels, boxes, _mirrored(len(pixels), generator), (height, width))
    n, height, width, _ = pixels.shape
    moves = torch.randint(-reach, reach + 1, (2, n, 1), generator=generator)
    rows = (torch.arange(height) + moves[0]).clamp(0, height - 1)
    columns = (torch.arange(width) + moves[1]).clamp(0, width - 1)
    if how == "flip+shift":
        columns = torch.where(_mirrored(n, generator), columns.flip(1), columns)
    device = pixels.device
    return pixels[
        torch.arange(n, device=device)[:, None, None], rows.to(device)[:, :, None], columns.to(device)[:, None]
    ]


def padded_crops(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Add ``PADDING`` black pixels on every side, cut a window of the image's size out, mirror every second one."""
    n, height, width, _ = pixels.shape
    moves = torch.randint(0, 2 * PADDING + 1, (n, 2), generator=generator).tolist()
    padded = F.pad(pixels, (0, 0, *[PADDING] * 4))
    crops = torch.stack([padded[i, t : t + height, c : c + width] for i, (t, c) in enumerate(moves)])
    return torch.where(_mirrored(n, generator).to(crops.device)[:, :, None, None], crops.flip(2), crops)


def crop_boxes(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw the parts of ``count`` images that become inputs: int64 [count, 4] of (top, left, height, width)."""
    area = height * width * _between(*AREA, (TRIES, count), generator)
    ratio = _between(math.log(RATIO[0]), math.log(RATIO[1]), (TRIES, count), generator).exp()
    widths, heights = (area * ratio).sqrt().round().long(), (area / ratio).sqrt().round().long()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.byte().argmax(0, keepdim=True)  # the first draw that fits, or the first one if none does
    tall, wide = heights.gather(0, first)[0], widths.gather(0, first)[0]
    places = torch.rand(2, count, generator=generator, dtype=torch.float64)
    top, left = (places[0] * (height - tall + 1)).long(), (places[1] * (width - wide + 1)).long()
    drawn = torch.stack([top, left, tall, wide], dim=1)
    return torch.where(fits.any(0)[:, None], drawn, torch.tensor(_central_box(height, width)))


def resized_crops(pixels: Tensor, boxes: Tensor, mirrored: Tensor, size: tuple[int, int]) -> Tensor:
    """Scale a part of every image to ``size``, by antialiased bilinear interpolation, and mirror some of them.

    Args:
        pixels: The images, uint8 [N, H, W, C].
        boxes: The parts, int64 [N, 4] of (top, left, height, width).
        mirrored: Which images to mirror, bool [N, 1].
        size: Height and width of the result.
    """
    planes = pixels.permute(0, 3, 1, 2)  # a view, whose memory is channels-last
    parts = (planes[i : i + 1, :, t : t + h, c : c + w] for i, (t, c, h, w) in enumerate(boxes.tolist()))
    inputs = torch.cat([_scaled(part, size) for part in parts])
    inputs = torch.where(mirrored.to(inputs.device)[:, :, None, None], inputs.flip(3), inputs)
    return inputs.permute(0, 2, 3, 1).contiguous()


def _scaled(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Scale uint8 images [N, C, H, W]; bytes are scaled directly on the CPU alone."""
    if images.device.type == "cpu":
        return F.interpolate(images, size, mode="bilinear", antialias=True)
    scaled = F.interpolate(images.float(), size, mode="bilinear", antialias=True)
    return scaled.round().clamp(0, 255).to(torch.uint8)


def _central_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Return the largest central part whose ratio is allowed: the whole image, if it is."""
    tall = height if width / height >= RATIO[0] else round(width / RATIO[0])
    wide = width if width / height <= RATIO[1] else round(height * RATIO[1])
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def _mirrored(count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, 1, generator=generator) < 0.5


def _between(low: float, high: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
