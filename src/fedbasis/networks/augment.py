"""Random changes of training images: mirroring, shifts, crops. All work on uint8 batches [N, H, W, C].

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

Augment = Literal["none", "flip", "shift", "flip+shift", "padded-crop+flip", "resized-crop+flip"]
AREA = (0.08, 1.0)
"""Shares of an image's area that a resized crop may have."""
RATIO = (3 / 4, 4 / 3)
"""Width divided by height of a resized crop."""
TRIES = 10
"""Draws of a resized crop; if none fits into the image, the largest central part of an allowed ratio is taken."""
PADDING = 4
"""Black pixels on every side of an image before a padded crop."""

NOTHING = torch.empty(1, 0, dtype=torch.int64)


def augmented(
    pixels: Tensor, how: Augment, generator: torch.Generator, reach: int = 2, size: Resolution | None = None
) -> Tensor:
    """Change every image of a batch at random.

    Args:
        pixels: The images, uint8 [N, H, W, C].
        how: "none"; "flip"; "shift" by up to ``reach`` pixels, edges repeated; "flip+shift"; or one of the two crops.
            All but "shift" mirror an image with chance 1/2.
        generator: Draws what is done; it is on the CPU, whatever the device of the images.
        reach: The longest shift.
        size: The size of resized crops; None: that of the images.
    """
    windows = draw_windows(len(pixels), pixels.shape[1], pixels.shape[2], how, generator, reach)
    return cut(pixels, how, windows, windows.to(pixels.device), size)


def draw_windows(
    count: int, height: int, width: int, how: Augment, generator: torch.Generator, reach: int = 2
) -> Tensor:
    """Draw what is cut out of ``count`` images: int64 [count, 5] of (top, left, height, width, mirrored), on the CPU.

    A window of a shift or of a padded crop may begin outside of the image.
    """
    if how == "none":
        return NOTHING.expand(count, 0)
    if how == "resized-crop+flip":
        boxes = crop_boxes(count, height, width, generator)
    else:
        if how == "flip":
            moves = torch.zeros(count, 2, dtype=torch.int64)
        elif how == "padded-crop+flip":
            moves = torch.randint(0, 2 * PADDING + 1, (count, 2), generator=generator) - PADDING
        else:
            moves = torch.randint(-reach, reach + 1, (2, count, 1), generator=generator)[:, :, 0].t()
        boxes = torch.cat([moves, torch.tensor([[height, width]]).expand(count, 2)], dim=1)
    mirrored = torch.zeros(count, 1, dtype=torch.bool) if how == "shift" else _mirrored(count, generator)
    return torch.cat([boxes, mirrored.long()], dim=1)


def cut(pixels: Tensor, how: Augment, windows: Tensor, there: Tensor, size: Resolution | None = None) -> Tensor:
    """Cut windows out of images, and mirror some of them.

    Args:
        pixels: The images, uint8 [N, H, W, C].
        how: The augmentation.
        windows: What ``draw_windows`` returned, on the CPU.
        there: The same on the device of the images: so no step has to wait for a copy.
        size: The size of resized crops; None: that of the images.
    """
    if how == "none":
        return pixels
    n, height, width, _ = pixels.shape
    if how == "resized-crop+flip":
        sides = (height, width) if size is None else (size, size) if isinstance(size, int) else size
        return resized_crops(pixels, windows[:, :4], there[:, 4:].bool(), sides)
    top, left, _, _, mirrored = there[:, :, None].unbind(1)
    device = pixels.device
    rows, columns = torch.arange(height, device=device) + top, torch.arange(width, device=device) + left
    columns = torch.where(mirrored.bool(), columns.flip(1), columns)
    if how == "padded-crop+flip":
        pixels, rows, columns = F.pad(pixels, (0, 0, *[PADDING] * 4)), rows + PADDING, columns + PADDING
    else:
        rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    return pixels[torch.arange(n, device=device)[:, None, None], rows[:, :, None], columns[:, None]]


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
