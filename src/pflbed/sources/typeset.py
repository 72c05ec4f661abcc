"""Digits set in type: matplotlib's bundled typefaces, printed slightly askew in coloured ink. Derived data.

A typeface is a run of ten digits in a font file: the plain ones, or Unicode's mathematical ones (double-struck, sans),
which are drawn separately. A font may claim to hold digits and draw something else there, so its glyph names are read;
a face whose shapes all but coincide with those of an earlier one is left out.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PLAIN = 0x30
MATHEMATICAL = (0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6)
SAME_SHAPE = 0.11
"""Median share of ink that differs below which two faces count as one; DejaVu Sans and Sans Mono are at 0.05."""
CANVAS = 112
SIDE = 28


class Face(NamedTuple):
    """Ten digits of one design, each a mask of ink on the large canvas."""

    name: str
    masks: tuple[Image.Image, ...]


def faces() -> list[Face]:
    """All typefaces in matplotlib's fonts that really show ten different digits, each design once."""
    import matplotlib

    fonts = sorted((Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob("*.ttf"))
    kept: list[Face] = []
    shapes: list[NDArray[np.float64]] = []
    for first in (PLAIN, *MATHEMATICAL):
        for font in fonts:
            masks = _digits(font, first)
            if masks is None:
                continue
            face = Face(f"{font.name}#{first:04X}", masks)
            shape = np.stack([_shape(mask) for mask in face.masks])
            if all(_difference(shape, other) > SAME_SHAPE for other in shapes):
                kept.append(face)
                shapes.append(shape)
    return kept


def printings(mask: Image.Image, count: int, rng: np.random.Generator) -> Iterator[NDArray[np.uint8]]:
    """Print a glyph several times: turned, sheared, scaled and shifted a little, dark on light or light on dark."""
    for _ in range(count):
        turn, shear = rng.uniform(-0.21, 0.21), rng.uniform(-0.15, 0.15)
        scale = rng.uniform(0.85, 1.15, size=2)
        shift = rng.uniform(-0.06, 0.06, size=2) * CANVAS
        rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        inverse = np.linalg.inv(rotation @ np.array([[1.0, shear], [0.0, 1.0]]) @ np.diag(scale))
        offset = CANVAS / 2 - inverse @ (CANVAS / 2 + shift)
        values = (*inverse[0], offset[0], *inverse[1], offset[1])
        moved = mask.transform(mask.size, Image.Transform.AFFINE, values, resample=Image.Resampling.BICUBIC)
        small = moved.resize((SIDE, SIDE), Image.Resampling.BOX)
        ink = np.asarray(small, dtype=np.float64)[:, :, None] / 255
        dark, light = rng.uniform(0, 80, size=3), rng.uniform(175, 255, size=3)
        front, back = (dark, light) if rng.random() < 0.5 else (light, dark)
        yield np.rint(back + ink * (front - back)).astype(np.uint8)


def _digits(font: Path, first: int) -> tuple[Image.Image, ...] | None:
    """Draw the run that starts at ``first``; None if the font lacks it, shows nothing, or its digits are not digits."""
    from matplotlib.ft2font import FT2Font

    face = FT2Font(str(font))
    glyphs = face.get_charmap()
    if any(code + digit not in glyphs for code in (PLAIN, first) for digit in range(10)):
        return None
    if tuple(face.get_glyph_name(glyphs[PLAIN + digit]) for digit in range(10)) != DIGIT_NAMES:
        return None
    loaded = ImageFont.truetype(str(font), 96, layout_engine=ImageFont.Layout.BASIC)
    drawn = tuple(_draw(loaded, chr(first + digit)) for digit in range(10))
    good = all(mask.getbbox() for mask in drawn) and len({mask.tobytes() for mask in drawn}) == 10
    return drawn if good else None


def _draw(font: ImageFont.FreeTypeFont, character: str) -> Image.Image:
    """Draw a character of white ink at the centre of a black canvas."""
    mask = Image.new("L", (CANVAS, CANVAS))
    pen = ImageDraw.Draw(mask)
    left, top, right, bottom = pen.textbbox((0, 0), character, font=font)
    pen.text(((CANVAS - left - right) / 2, (CANVAS - top - bottom) / 2), character, fill=255, font=font)
    return mask


def _shape(mask: Image.Image) -> NDArray[np.float64]:
    """A glyph cut out and brought to one size, so that only its design is compared."""
    return np.asarray(mask.crop(mask.getbbox()).resize((48, 64)), dtype=np.float64) / 255


def _difference(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Over ten digits the median share of ink that lies in only one of two glyphs."""
    apart = np.abs(one - other).sum(axis=(1, 2)) / np.maximum(one, other).sum(axis=(1, 2))
    return float(np.median(apart))
