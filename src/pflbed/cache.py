"""Images are decoded once into a memory-mapped uint8 array, keyed by the table's digest, the size and the channels.

Several processes decode in parallel, chunk by chunk, directly into the file. An interrupted decode is resumed. An
existing cache file is verified by its checksums before use. An image that cannot be decoded is listed with the reason
and left out.
"""

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflbed.chunks import Chunk, ChunkedArray
from pflbed.errors import InputError
from pflbed.images import UNREADABLE, Opener, Resolution, careful, fit, open_file, reason, shape_of
from pflbed.lock import alone
from pflbed.safe_paths import UnsafePathError
from pflbed.table import Table
from pflbed.workers import Job, how_many, run_jobs

Progress = Callable[[int, int], None]
FORMAT = 2
CHUNK = 32
"""Rows per chunk: what each process may lose when it is killed, and how often progress is reported."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """The rows that could be decoded, their pixels [N, H, W, C], and what was left out as (path, reason).

    Example:
        >>> import pflbed
        >>> decoded = pflbed.find("digits4").decode(28)
        >>> len(decoded.table) == len(decoded.images), decoded.bad
        (True, [])
    """

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


def read_images(root: Path, table: Table, resolution: Resolution, channels: int = 3) -> Decoded:
    """Decode images in memory and write nothing to disk, because a client's images are private."""
    shape = shape_of(resolution, channels)
    _require(table)
    good, bad = _read(open_file, Path(root), table.paths, shape)
    if not good:
        raise _none_readable(Path(root), table, bad)
    return _decoded(table, np.stack(good), bad)


def decode(
    root: Path,
    table: Table,
    resolution: Resolution,
    progress: Progress | None = None,
    open_image: Opener = open_file,
    workers: int | None = None,
    channels: int = 3,
) -> Decoded:
    """Decode the images of a table, or read them from the cache if the files are unchanged.

    Args:
        root: The folder that the table's paths are relative to.
        table: The images to decode.
        resolution: Images are scaled and cropped to this square, or to (height, width).
        progress: Called with (rows done, rows in all) after every chunk.
        open_image: Opens the image of a row; other processes import it by its name.
        workers: The number of processes; None for one per core, or one if the table is small.
        channels: 3 for RGB, 1 for gray.

    Returns:
        The rows that could be decoded, their pixels, and the images that were left out.

    Example:
        >>> import tempfile
        >>> import pflbed
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("photo/cat/1.png", "photo/dog/1.png"):
        ...         (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
        ...         Image.new("RGB", (40, 30)).save(Path(folder) / name)
        ...     decoded = decode(Path(folder), pflbed.scan(Path(folder)), resolution=(24, 32))
        >>> decoded.images.shape, decoded.bad
        ((2, 24, 32, 3), [])
    """
    root = Path(root)
    shape = shape_of(resolution, channels)
    _require(table)
    how_many(workers, len(table))
    place = cache_dir() / "images" / f"{table.digest[:20]}-{_shape_name(shape)}.npy"
    head = {"format": FORMAT, "stamp": stamp(root, table, open_image)}
    array = ChunkedArray(place, len(table), shape, CHUNK, head)
    chunks = array.whole()
    if chunks is None:
        with alone(array.lock) as locked:
            chunks = array.whole()  # another process may have finished it meanwhile
            if chunks is None:
                with contextlib.nullcontext() if locked else array.apart():
                    chunks = _make(array, root, table, progress, open_image, workers)
    return _decoded(table, array.load(), _bad_rows(chunks))


def stamp(root: Path, table: Table, open_image: Opener) -> str:
    """A hash of the sizes and times of the files, so that a changed image is decoded again."""
    reader = f"{getattr(open_image, '__module__', '')}:{getattr(open_image, '__qualname__', '')}"
    digest = hashlib.sha256(f"{table.digest}\n{reader}\n".encode())
    for path in table.paths:
        try:
            status = (root / path).stat()
            digest.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(b"missing\n")
    return digest.hexdigest()


def _make(
    array: ChunkedArray,
    root: Path,
    table: Table,
    progress: Progress | None,
    open_image: Opener,
    workers: int | None,
) -> list[Chunk]:
    """Decode the missing chunks; finished chunks are kept if this is interrupted."""
    chunks = array.begin()
    jobs = {i: _job(array, i, root, table) for i in range(len(array.spans)) if i not in chunks}
    done = sum(len(array.spans[i]) for i in chunks)
    if chunks and progress is not None:
        progress(done, len(table))
    processes = how_many(workers, len(table) - done)
    with contextlib.closing(run_jobs(decode_chunk, open_image, jobs, processes)) as answers:
        for i, answer in answers:
            chunks[i] = Chunk.parse(answer, array.spans[i])
            array.log({i: chunks[i]})
            done += len(array.spans[i])
            if progress is not None:
                progress(done, len(table))
    bad = _bad_rows(chunks[i] for i in range(len(array.spans)))
    if len(bad) == len(table):
        array.discard()
        raise _none_readable(root, table, bad)
    return array.finish(chunks)


def _job(array: ChunkedArray, i: int, root: Path, table: Table) -> Job:
    rows = array.spans[i]
    return {
        "root": str(root),
        "paths": table.paths[rows.start : rows.stop],
        "first": rows.start,
        "shape": list(array.row_shape),
        "part": str(array.part),
        "offset": array.slots[i],
    }


def decode_chunk(open_image: Opener, job: Job) -> Any:
    """Decode a chunk and write it to the partial file, in any process; returns what ``Chunk.parse`` reads."""
    good, bad = _read(open_image, Path(job["root"]), job["paths"], job["shape"], job["first"])
    pixels = b"".join(image.tobytes() for image in good)
    with Path(job["part"]).open("r+b") as file:  # not a memory map: on a full disk it crashes the process
        file.seek(job["offset"])
        file.write(pixels)
    return {"sha256": hashlib.sha256(pixels).hexdigest(), "bad": bad}


def _read(
    open_image: Opener, root: Path, paths: Iterable[str], shape: Sequence[int], first: int = 0
) -> tuple[list[NDArray[np.uint8]], list[tuple[int, str]]]:
    """Decode images; return those that could be decoded, and the row numbers of the others with the reason."""
    height, width, channels = shape
    good: list[NDArray[np.uint8]] = []
    bad: list[tuple[int, str]] = []
    for row, path in enumerate(paths, start=first):
        try:
            with careful(), open_image(root, path) as opened:
                good.append(fit(opened, (height, width), channels))
        except InputError as error:
            if not isinstance(error, UnsafePathError):
                raise
            bad.append((row, reason(error, root)))
        except UNREADABLE as error:
            bad.append((row, reason(error, root)))
    return good, bad


def _bad_rows(chunks: Iterable[Chunk]) -> list[tuple[int, str]]:
    return [pair for chunk in chunks for pair in chunk.bad]


def _decoded(table: Table, images: NDArray[np.uint8], bad: list[tuple[int, str]]) -> Decoded:
    kept = np.delete(np.arange(len(table)), [row for row, _ in bad])
    return Decoded(table.take(kept), images, [(table.paths[row], why) for row, why in bad])


def _shape_name(shape: tuple[int, int, int]) -> str:
    """What distinguishes the files of one table: "32", "32x48", "32-gray"."""
    height, width, channels = shape
    return (str(height) if height == width else f"{height}x{width}") + ("" if channels == 3 else "-gray")


def _require(table: Table) -> None:
    if not len(table):
        raise InputError("A table must have at least one row to be decoded, got none; check how it was made")


def _none_readable(root: Path, table: Table, bad: list[tuple[int, str]]) -> InputError:
    row, why = bad[0]
    return InputError(
        f"At least one image must be readable, got {len(bad)} that are not in {root}, "
        f"the first being {table.paths[row]} ({why}); check the files"
    )
