"""A dataset that is an array: any bytes [N, H, W, C], such as activations of a network, and a table of what they are.

A folder holds ``images.npy`` (uint8 [N, H, W, C]) and ``images.parquet`` or ``images.csv``: row i of the table
describes row i of the array, with the columns path (any unique name) and class, and optionally domain, user, group,
split and content. ``arrays.json`` may say how bytes become numbers (mean and std of every channel), how the array was
made, and its sha256. The array is memory-mapped and used as it is.

The column content has the number that decides whether an image is in the tuning part (16 hexadecimal digits, see
``pflbed.parts``). Without it, the number is that of the bytes in the array.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pflbed.cache import Decoded, Progress
from pflbed.errors import InputError
from pflbed.files import hidden_beside, sha256_of, write_json
from pflbed.foreign import map_array, read_json_object
from pflbed.normalization import Normalization
from pflbed.sources.base import Source
from pflbed.spec import Spec
from pflbed.table import Contents, Table
from pflbed.table_file import FIELDS, read_columns, table_of

FORMAT = 1
ARRAY, CARD = "images.npy", "arrays.json"
TABLES = ("images.parquet", "images.csv")
COLUMNS = {**FIELDS, "content": ("content",)}
OPTIONAL = ("domain", "user", "group", "split", "content")
DOMAIN = "data"
"""The one domain of a table without that column."""
KEYS = {"format", "version", "mean", "std", "sha256", "about"}
MAX_CARD = 2**20
DIGITS = 16
"""Of a content number."""


@dataclass(frozen=True)
class ArrayCard:
    """What a folder says about its array.

    Args:
        normalization: How bytes become numbers; None: as for any image.
        about: How the array was made, as plain data.
        sha256: The digest of the file of the array; empty if it is not known.
    """

    normalization: Normalization | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    sha256: str = ""


def is_array_folder(folder: Path) -> bool:
    """Whether a folder holds an array of images."""
    return (folder / ARRAY).is_file()


def scan(root: Path) -> Table:
    """Read the table of a folder; its digest covers the array too."""
    return _opened(*_place(root)).table


def read(root: Path, _: Progress | None = None) -> Decoded:
    """Return the table and the memory-mapped array."""
    found = _opened(*_place(root))
    return Decoded(found.table, found.images, [])


def read_card(root: Path) -> ArrayCard:
    """Return what a folder says about its array; a folder may say nothing."""
    return _opened(*_place(root)).card


def open_image(root: Path, path: str) -> Image.Image:
    """Return a row as an image, to be scaled or exported; it must be gray or RGB."""
    found = _opened(*_place(root))
    if path not in found.rows:
        raise InputError(f"A row must be one of those in {root}, got {path[:200]!r}; scan the folder again")
    require_image(found.images, root)
    row = np.array(found.images[found.rows[path]])
    return Image.fromarray(row[:, :, 0] if row.shape[2] == 1 else row)


def require_image(images: NDArray[np.uint8], root: Path) -> None:
    """Refuse to scale or export an array that is not gray or RGB."""
    _, height, width, channels = images.shape
    if channels not in (1, 3):
        size = str(height) if height == width else f"[{height}, {width}]"
        raise InputError(
            f"Only gray and RGB images can be scaled or exported, but those in {root} have {channels} channels; use "
            f"them as they are: resolution {size}, channels {channels}"
        )


def write_arrays(
    folder: Path,
    images: NDArray[np.uint8],
    table: Table,
    normalization: Normalization | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a folder of an array, complete or not at all.

    Args:
        folder: Where to write; it must not exist.
        images: The array, uint8 [N, H, W, C].
        table: What its rows are; with contents, these decide which rows are the tuning part.
        normalization: How bytes become numbers.
        about: How the array was made, as plain data.

    Example:
        >>> import tempfile
        >>> import pflbed
        >>> images, labels = np.zeros((80, 6, 6, 112), dtype=np.uint8), np.arange(80) % 2
        >>> table = pflbed.from_arrays(images, labels, clients=3, new=2).benchmark.table
        >>> with tempfile.TemporaryDirectory() as place:
        ...     write_arrays(Path(place) / "features", images, table)
        ...     pflbed.find(Path(place) / "features").decode(6, channels=112).images.shape
        (80, 6, 6, 112)
    """
    if folder.exists():
        raise InputError(f"The folder {folder} must not exist yet, but it does; choose another name")
    if images.dtype != np.uint8 or images.ndim != 4 or len(images) != len(table):
        raise InputError(
            f"The array must be uint8 [N, H, W, C] with one row per row of the table, got {images.dtype} "
            f"{images.shape} for {len(table)} rows"
        )
    from pyarrow import parquet

    from pflbed.manifest import installed_version

    with hidden_beside(folder) as written:
        with (written / ARRAY).open("wb") as file:
            np.lib.format.write_array(file, np.ascontiguousarray(images), version=(1, 0), allow_pickle=False)
        parquet.write_table(_columns(table), written / TABLES[0], compression="zstd")
        both = {} if normalization is None else {"mean": normalization.mean, "std": normalization.std}
        card = {"format": FORMAT, "version": installed_version(), "sha256": sha256_of(written / ARRAY)}
        write_json(written / CARD, {**card, **both, "about": dict(about or {})})
        written.rename(folder)


def _columns(table: Table) -> Any:
    import pyarrow as pa

    columns: dict[str, Any] = {
        "path": table.paths,
        "class": [table.class_names[i] for i in table.labels],
        "domain": [table.domain_names[i] for i in table.domains],
    }
    if table.users is not None:
        columns["user"] = [table.user_names[i] for i in table.users]
    if table.groups is not None:
        columns["group"] = table.groups
    if table.official_test is not None:
        columns["split"] = ["test" if held else "train" for held in table.official_test]
    if table.contents is not None:
        columns["content"] = [f"{number:0{DIGITS}x}" for number in table.contents.tolist()]
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})


@dataclass(frozen=True, eq=False)
class _Opened:
    table: Table
    images: NDArray[np.uint8]
    card: ArrayCard
    rows: Mapping[str, int]


Stamps = tuple[tuple[str, int, int, int], ...]


def _place(root: Path) -> tuple[Path, Path, Stamps]:
    """Return the folder, its table, and what changes when one of its files is written."""
    if not is_array_folder(root):
        raise InputError(SOURCE.missing(root, f"the file {ARRAY}"))
    tables = [root / name for name in TABLES if (root / name).exists()]
    if len(tables) != 1:
        raise InputError(
            f"{root} must hold one of {' and '.join(TABLES)}, got {len(tables)}; see docs/how-to/benchmark"
        )
    files = [path for path in (root / ARRAY, tables[0], root / CARD) if path.exists()]
    status = [path.stat() for path in files]
    return (
        root,
        tables[0],
        tuple((path.name, s.st_size, s.st_mtime_ns, s.st_ino) for path, s in zip(files, status, strict=True)),
    )


@lru_cache(maxsize=4)
def _opened(root: Path, file: Path, _stamps: Stamps) -> _Opened:
    """Read and check a folder; unless its files change, it is read once."""
    images = map_array(root / ARRAY, "The array of images", (None, None, None, None))
    if 0 in images.shape:
        raise InputError(f"The array {root / ARRAY} must hold images, got shape {images.shape}; write it again")
    columns = read_columns(file, COLUMNS, OPTIONAL)
    table = table_of(columns, file, DOMAIN)
    if len(table) != len(images):
        raise InputError(
            f"{file} must have a row for each of the {len(images):,} rows of {ARRAY}, got {len(table):,}; write both "
            "again"
        )
    if "content" in columns:
        table = replace(table, contents=_contents(columns["content"].to_pylist(), file))
    card = _card(root, images.shape[3])
    sha256 = sha256_of(root / ARRAY)
    if card.sha256 not in ("", sha256):
        raise InputError(f"The array {root / ARRAY} must be the one of its {CARD}, but it differs; write both again")
    both = None if card.normalization is None else [card.normalization.mean, card.normalization.std]
    digest = hashlib.sha256(json.dumps([table.digest, sha256, both]).encode()).hexdigest()
    return _Opened(replace(table, digest=digest), images, card, {path: i for i, path in enumerate(table.paths)})


def _contents(texts: list[str], file: Path) -> Contents:
    for row, text in enumerate(texts):
        if len(text) != DIGITS or not set(text) <= set("0123456789abcdef"):
            raise InputError(
                f"content must be {DIGITS} hexadecimal digits, got {text[:40]!r} in row {row + 1} of {file}; leave the "
                "column out to take the bytes of the array"
            )
    return np.array([int(text, 16) for text in texts], dtype=np.uint64)


def _card(root: Path, channels: int) -> ArrayCard:
    """Read what a folder says about its array, and compare it with the array."""
    place = root / CARD
    if not place.exists():
        return ArrayCard()
    raw = read_json_object(place, "The card", MAX_CARD)
    if not isinstance(raw.get("format"), int) or raw["format"] > FORMAT or not raw.keys() <= KEYS:
        raise InputError(
            f"The card {place} must have format {FORMAT} and only the keys {', '.join(sorted(KEYS))}, got format "
            f"{raw.get('format')!r:.40} and {', '.join(sorted(raw))!r:.200}; upgrade, or write it again"
        )
    sha256, about = raw.get("sha256", ""), raw.get("about", {})
    if not isinstance(sha256, str) or not isinstance(about, dict):
        raise InputError(f"In the card {place} sha256 must be text and about an object; write it again")
    normalization = None
    if raw.keys() & {"mean", "std"}:
        try:
            normalization = Normalization(raw.get("mean", ()), raw.get("std", ()))
        except InputError as error:
            raise InputError(f"The card {place} is not valid: {error}") from error
        if len(normalization.mean) != channels:
            raise InputError(
                f"The card {place} must have a mean and a std for each of {channels} channels, got "
                f"{len(normalization.mean)}; write it again"
            )
    return ArrayCard(normalization, about, sha256)


SOURCE = Source(
    name="arrays",
    title="a folder of arrays",
    home="an array of your own, or the features that 'fedbasis features' writes",
    layout=f"it as {ARRAY} (uint8 [N, H, W, C]) and its table as {TABLES[0]} or {TABLES[1]} (path, class, domain) into "
    "the data folder",
    scan=scan,
    open_image=open_image,
    counts={},
    spec=Spec(),
    decoded=read,
    card=read_card,
)
