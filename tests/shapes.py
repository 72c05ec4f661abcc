"""Small real images, drawn here: the class is a shape, the domain its colours and noise."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedbasis.networks.inputs import Examples

CLASSES = ("circle", "cross", "square")


def draw(label: int, domain: int, rng: np.random.Generator, size: int = 12) -> np.ndarray:
    """Draw a small real shape: the class is its form, the domain its colours and noise."""
    canvas = np.zeros((size, size), dtype=bool)
    y, x = np.mgrid[:size, :size]
    cy, cx = rng.uniform(4.5, 6.5, 2)
    radius = rng.uniform(3.0, 4.0)
    distance = np.hypot(y - cy, x - cx)
    if label == 0:
        canvas = np.abs(distance - radius) < 1.0
    elif label == 1:
        canvas = (np.abs(y - cy) < 1.0) | (np.abs(x - cx) < 1.0)
    else:
        canvas = (np.maximum(np.abs(y - cy), np.abs(x - cx)) - radius + 0.5).__abs__() < 0.8
    ink, paper = ((230, 230, 230), (20, 20, 20)) if domain == 0 else ((40, 90, 200), (250, 220, 120))
    image = np.where(canvas[..., None], np.array(ink), np.array(paper)) + rng.normal(0, 12, (size, size, 3))
    return np.clip(image, 0, 255).astype(np.uint8)


def shapes_examples(count: int, domain: int = 0, seed: int = 0, classes: int = 3) -> Examples:
    """Draw labelled images; whoever asks for the same ones gets a copy."""
    pixels, labels = _drawn(count, domain, seed, classes)
    return Examples(torch.from_numpy(pixels.copy()), torch.from_numpy(labels.copy()))


@cache
def _drawn(count: int, domain: int, seed: int, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    return np.stack([draw(int(label), domain, rng) for label in labels]), labels


def write_images(root: Path, per_class: int, domain: int = 0, seed: int = 0, classes: int = 3) -> Path:
    """Write a client's folder <class>/<image>."""
    rng = np.random.default_rng(seed)
    for label, name in enumerate(CLASSES[:classes]):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(per_class):
            Image.fromarray(draw(label, domain, rng)).save(root / name / f"{i:03d}.png")
    return root
