"""Images are decoded once: a memory-mapped uint8 array, keyed by the table's digest and the resolution.

Every image is turned as its EXIF says, laid on white where it is transparent, scaled by antialiased bicubic until its
shorter side fits, and cropped at the centre. An image that cannot be decoded is listed with its reason and left out.
"""

import hashlib
import json
import os
import struct
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pflbed.errors import InputError
from pflbed.files import replacing, sha256_of, write_json
from pflbed.table import Table

Progress = Callable[[int, int], None]
FORMAT = 1
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, Image.DecompressionBombWarning,
              Image.DecompressionBombError)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Decoded:
    """The rows that could be decoded, their pixels [N, H, W, 3], and what was left out as (path, reason)."""

    table: Table
    images: NDArray[np.uint8]
    bad: list[tuple[str, str]]


def cache_dir() -> Path:
    """``FEDBASIS_CACHE`` if set, else ``fedbasis`` in the user's cache folder."""
    if chosen := os.environ.get("FEDBASIS_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fedbasis"


def read_images(root: Path, table: Table, resolution: int) -> Decoded:
    """Decode a few images in memory and leave nothing on the disk, as befits a client's private folder."""
    images: list[NDArray[np.uint8]] = []
    kept: list[int] = []
    bad: list[tuple[str, str]] = []
    for row, path in enumerate(table.paths):
        try:
            images.append(read_image(Path(root) / path, resolution))
            kept.append(row)
        except UNREADABLE as error:
            bad.append((path, _reason(error, Path(root))))
    if not images:
        raise _none_readable(Path(root), bad)
    return Decoded(table.take(kept), np.stack(images), bad)


def decode(root: Path, table: Table, resolution: int, progress: Progress | None = None) -> Decoded:
    """Give the table's images at ``resolution``, from the cache if that is whole and the files are unchanged."""
    if resolution < 1:
        raise InputError(f"resolution must be at least 1 pixel, got {resolution}; 32 suits a CPU, the paper uses 224")
    place = cache_dir() / "images" / f"{table.digest[:20]}-{resolution}.npy"
    stamp = _stamp(Path(root), table)
    card = _read_card(place, stamp)
    if card is None:
        card = _decode_all(Path(root), table, resolution, progress=progress, place=place, stamp=stamp)
    bad = [(path, reason) for path, reason in card["bad"]]
    left_out = {path for path, _ in bad}
    kept = [i for i, path in enumerate(table.paths) if path not in left_out]
    return Decoded(table.take(kept), np.load(place, mmap_mode="r", allow_pickle=False), bad)


def _decode_all(
    root: Path, table: Table, resolution: int, *, progress: Progress | None, place: Path, stamp: str
) -> dict[str, Any]:
    """Stream the images into a file, then put it in its place with a card beside it."""
    bad: list[tuple[str, str]] = []
    with replacing(place) as temporary:
        with temporary.open("wb") as file:
            _write_header(file, len(table), resolution)
            for done, path in enumerate(table.paths, start=1):
                try:
                    file.write(read_image(root / path, resolution).tobytes())
                except UNREADABLE as error:
                    bad.append((path, _reason(error, root)))
                if progress is not None:
                    progress(done, len(table))
            if len(bad) == len(table):
                raise _none_readable(root, bad)
            file.seek(0)
            _write_header(file, len(table) - len(bad), resolution)
        card = {"format": FORMAT, "stamp": stamp, "sha256": sha256_of(temporary), "bad": bad}
    write_json(place.with_suffix(".json"), card)
    return card


def _reason(error: Exception, root: Path) -> str:
    return f"{type(error).__name__}: {error}".replace(str(root), "").strip()


def _none_readable(root: Path, bad: list[tuple[str, str]]) -> InputError:
    return InputError(
        f"at least one image must be readable, got {len(bad)} that are not in {root}, "
        f"the first being {bad[0][0]} ({bad[0][1]}); check the files"
    )


def _write_header(file: Any, count: int, resolution: int) -> None:
    """Write the head of an .npy file; numpy pads it for any length of the first axis, so it can be written over."""
    shape = (count, resolution, resolution, 3)
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})


def read_image(path: Path, resolution: int) -> NDArray[np.uint8]:
    """Decode one image: turned, on white, scaled and cropped to a square."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a damaged EXIF block or a palette is no reason to stop
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path) as opened:
            image = _rgb(ImageOps.exif_transpose(opened))
    fitted = ImageOps.fit(image, (resolution, resolution), method=Image.Resampling.BICUBIC)
    return np.asarray(fitted, dtype=np.uint8)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def _stamp(root: Path, table: Table) -> str:
    """Sizes and times of the files, so that an image changed in place is decoded again."""
    digest = hashlib.sha256()
    for path in table.paths:
        try:
            status = (root / path).stat()
            digest.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(b"missing\n")
    return digest.hexdigest()


def _read_card(place: Path, stamp: str) -> dict[str, Any] | None:
    """The card of a cached array, or None if the array must be made (again)."""
    try:
        card = json.loads(place.with_suffix(".json").read_text(encoding="utf-8"))
        whole = card["format"] == FORMAT and card["stamp"] == stamp and card["sha256"] == sha256_of(place)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return card if whole else None
