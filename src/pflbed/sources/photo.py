"""Digits in photographs, made as MNIST-M was (Ganin et al., 2016): ``|patch - digit|`` in every channel. Derived data.

MNIST-M took its patches from BSDS500; here they come from the three photographs that scikit-learn and matplotlib carry,
at random places, scales and flips. Where a patch is mid-grey its negative looks the same and the digit would vanish,
so a patch is drawn again until the two differ enough.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pflbed.images import open_picture

SIDE = 28
LARGEST_PATCH = 160
CONTRAST = 70.0
"""Mean distance between a patch and its negative, of 255, that makes a digit legible."""
TRIES = 20


def photographs() -> list[NDArray[np.uint8]]:
    """China and flower from scikit-learn, Grace Hopper from matplotlib."""
    from matplotlib import cbook
    from sklearn.datasets import load_sample_images

    with open_picture(Path(str(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)))) as opened:
        hopper = np.asarray(opened.convert("RGB"), dtype=np.uint8)
    return [*(np.asarray(image, dtype=np.uint8) for image in load_sample_images().images), hopper]


def blend(digit: NDArray[np.uint8], photos: list[NDArray[np.uint8]], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Set a grey digit [28, 28] into a patch of a photograph."""
    for _ in range(TRIES):
        patch = _patch(photos[rng.integers(len(photos))], rng)
        if np.abs(255.0 - 2.0 * patch).mean() >= CONTRAST:
            break
    blended: NDArray[np.int16] = np.abs(patch.astype(np.int16) - digit.astype(np.int16)[:, :, None])
    return blended.astype(np.uint8)


def _patch(photo: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Cut a square of random size and place, flip it at random, and bring it to 28 x 28."""
    side = int(np.exp(rng.uniform(np.log(SIDE), np.log(LARGEST_PATCH + 1))))
    top, left = rng.integers(photo.shape[0] - side + 1), rng.integers(photo.shape[1] - side + 1)
    square = photo[top : top + side, left : left + side]
    if rng.random() < 0.5:
        square = square[:, ::-1]
    small = Image.fromarray(np.ascontiguousarray(square)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return np.asarray(small, dtype=np.uint8)
