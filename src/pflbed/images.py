"""One image becomes one array of a given size: EXIF orientation applied, transparency on white, scaled, cropped.

Scaling is antialiased bicubic and keeps the aspect ratio; the centre is cropped. A JPEG is always decoded at its full
size: Pillow's ``draft`` would be faster for large files, but gives other pixels. Only the formats of ``FORMATS`` are
opened, whatever a file is called: Pillow knows others that start programs, such as PostScript. No other module opens
image files.
"""

import os
import stat
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from pflbed.errors import InputError
from pflbed.safe_paths import inside

Resolution = int | tuple[int, int]
"""An int is a square; a pair is (height, width)."""
Opener = Callable[[Path, str], Image.Image]
"""(data folder, path of a row) -> image; the caller closes it."""
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, IndexError, RuntimeError, struct.error,
              Image.DecompressionBombWarning, Image.DecompressionBombError)  # fmt: skip
"""The exceptions that Pillow raises for damaged files."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What Pillow may take a file for."""
MAX_BYTES = 2**30
"""Bytes of an image file."""
MAX_PIXELS = 64 * 2**20
"""Above the largest phone cameras; 100 million pixels would take 300 MB in every process."""


def open_file(root: Path, path: str) -> Image.Image:
    """Open an image file below ``root``; reads its header alone."""
    return open_picture(inside(root, path))


def open_picture(path: Path) -> Image.Image:
    """Open an image file of one of ``FORMATS``; reads its header alone, and a damaged file raises ``UNREADABLE``."""
    try:
        status = path.stat()
    except RuntimeError as error:  # links that form a loop
        raise OSError(str(error)) from error
    if not stat.S_ISREG(status.st_mode):
        raise OSError("an image must be a regular file, and this is none")
    if status.st_size > MAX_BYTES:
        raise OSError(f"an image must have at most {MAX_BYTES:,} bytes, and this one has more; scale it down")
    with _damaged():
        return Image.open(path, formats=FORMATS)


def read_image(path: Path, resolution: Resolution, channels: int = 3) -> NDArray[np.uint8]:
    """Decode one image file as ``fit`` does; a damaged file raises one of ``UNREADABLE``."""
    with careful(), open_picture(path) as opened:
        return fit(opened, resolution, channels)


def fit(image: Image.Image, size: Resolution, channels: int = 3) -> NDArray[np.uint8]:
    """Scale and crop an image to a size.

    Args:
        image: Any Pillow image.
        size: The side of a square, or (height, width).
        channels: 3 for RGB, 1 for gray.

    Returns:
        A uint8 array of shape [height, width, channels].

    Example:
        >>> fit(Image.new("RGB", (30, 20)), (8, 12)).shape
        (8, 12, 3)
        >>> fit(Image.new("RGB", (30, 20)), 8, channels=1).shape
        (8, 8, 1)
    """
    height, width, _ = shape_of(size, channels)
    whole = flat(image)
    if channels == 1:
        whole = whole.convert("L")
    fitted = ImageOps.fit(whole, (width, height), method=Image.Resampling.BICUBIC)
    return np.asarray(fitted, dtype=np.uint8).reshape(height, width, channels)


def shape_of(resolution: Resolution, channels: int = 3) -> tuple[int, int, int]:
    """The shape [height, width, channels] of a decoded image; refuses a size or channels that cannot be decoded to."""
    sides = resolution if isinstance(resolution, tuple) else (resolution, resolution)
    for side in sides if len(sides) == 2 else (None,):
        if not isinstance(side, int) or isinstance(side, bool) or side < 1:
            raise InputError(
                f"resolution must be at least 1 pixel, or a pair (height, width) of such, got {resolution!r}; 32 suits "
                "a CPU, the paper uses 224"
            )
    if channels not in (1, 3):
        raise InputError(f"channels must be 3 (RGB) or 1 (gray), got {channels!r}; choose one of these")
    return sides[0], sides[1], channels


def flat(image: Image.Image) -> Image.Image:
    """Turn an image upright and make it RGB on white, at its own size; refuses a huge one before it is decoded."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise Image.DecompressionBombError(
            f"an image must have at most {MAX_PIXELS:,} pixels, got {width:,} x {height:,}; scale it down"
        )
    with careful(), _damaged():
        image.load()  # the EXIF block may follow the pixels
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            image = ImageOps.exif_transpose(image)
        return _rgb(image)


@contextmanager
def careful() -> Iterator[None]:
    """A context to open images in: Pillow's warning about huge images is an error, other warnings are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as a damaged EXIF block or palette
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


@contextmanager
def _damaged() -> Iterator[None]:
    """What Pillow raises for a damaged file by mistake becomes one of ``UNREADABLE``."""
    try:
        yield
    except (TypeError, AttributeError, LookupError, ArithmeticError, AssertionError) as error:
        raise OSError(f"the file is damaged ({type(error).__name__}: {error})") from error


def reason(error: BaseException, root: Path) -> str:
    """The reason why an image was left out, without the path of the data folder."""
    if isinstance(error, Image.DecompressionBombWarning):
        return f"an image must have at most {MAX_PIXELS:,} pixels, and this one has more; scale it down"
    if isinstance(error, UnidentifiedImageError):
        return f"it is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image"
    ours = isinstance(error, InputError | OSError | Image.DecompressionBombError)
    text = str(error) if ours else f"{type(error).__name__}: {error}"
    folders = {str(root.absolute()), str(root.resolve())} - {root.absolute().anchor}
    for folder in sorted(folders, key=len, reverse=True):  # not the relative path, which may be an ordinary word
        text = text.replace(folder + os.sep, "").replace(folder, "")
    return text.encode("utf-8", "backslashreplace").decode().strip()


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        return Image.fromarray(_bytes(image)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _bytes(image: Image.Image) -> NDArray[np.uint8]:
    """The pixels of an image of 32-bit numbers as bytes.

    What lies in 0..255 is kept. Floats in 0..1 count from black to white, and so does the range of a PPM file, which is
    known. Any other image is scaled by its own smallest and largest number, as nothing says where black and white are.
    """
    values = np.asarray(image)
    if not values.size or not np.isfinite(values).all():
        raise OSError("the pixels of an image must be finite numbers, and these are not; convert it to 8 or 16 bits")
    low, high = float(values.min()), float(values.max())
    if image.mode == "I" and image.format == "PPM" and low >= 0 and high <= 65535:
        return (values >> 8).astype(np.uint8)
    if image.mode == "F" and low >= 0 and high <= 1:
        return np.rint(values.astype(np.float64) * 255).astype(np.uint8)
    if low >= 0 and high <= 255:
        return values.astype(np.uint8)
    if low == high:
        raise OSError(f"all pixels are {low:g}, which is neither black nor white; convert it to 8 or 16 bits")
    return np.rint((values.astype(np.float64) - low) * (255 / (high - low))).astype(np.uint8)
