"""A csv or parquet file that lists images is read as a table, column by column. No image file is accessed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pflbed import foreign_tables
from pflbed.errors import InputError
from pflbed.foreign_tables import TEXT, UNIQUE, WHOLE, Kinds
from pflbed.safe_paths import first_unsafe, unsafe
from pflbed.table import Rows, Table, in_order

FIELDS: Mapping[str, Sequence[str]] = {
    "path": ("path", "file", "filename", "image"),
    "class": ("class", "label"),
    "domain": ("domain",),
    "user": ("user", "user_id"),
    "group": ("group",),
    "split": ("split",),
}
"""The fields of a table, and the column names that are accepted for each."""
SPLITS = ("", "train", "test")


def read_table(file: Path, images: Path | None = None) -> Table:
    """Read a table with the columns path and class, and if there are any domain, user, group and split.

    Paths are relative to the folder ``images``, or else to the file's own. Without a domain column there is one domain,
    named after the file. The rows whose split is ``test`` become the official test set.
    """
    file = Path(file)
    if images is not None and not Path(images).is_dir():
        raise InputError(f"The images must be in a folder, got {images}, which is none; check the path")
    return table_of(read_columns(file, FIELDS, optional=("domain", "user", "group", "split")), file, file.stem)


def read_columns(file: Path, fields: Mapping[str, Sequence[str]], optional: Collection[str] = ()) -> dict[str, Any]:
    """Read the columns of a csv or parquet file as text arrays without nulls, by field."""
    if file.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"A table must be a .csv or a .parquet file, got {file}; save it as one of them")
    names: dict[str, str] = {}

    def choose(found: list[str]) -> Kinds:
        names.update(_choose(file, found, fields, optional))
        differ = [name for field, name in names.items() if field in ("path", "image")]
        return dict.fromkeys(names.values(), (TEXT, WHOLE)) | dict.fromkeys(differ, (TEXT, WHOLE, UNIQUE))

    read = foreign_tables.read_table(file, "The table", choose)
    if not read.num_rows:
        raise InputError(f"A table must have at least one row, got none in {file}; check how it was made")
    return {field: _text(file, name, read.column(name), gaps=field == "split") for field, name in names.items()}


def _choose(
    file: Path, names: list[str], fields: Mapping[str, Sequence[str]], optional: Collection[str]
) -> dict[str, str]:
    """Find each field's one column."""
    chosen: dict[str, str] = {}
    for field, accepted in fields.items():
        found = [name for name in names if name.strip().lower() in accepted]
        if len(found) > 1:
            raise InputError(
                f"A table must have one column for the {field}, got {', '.join(map(repr, found))} in {file}; "
                "rename or remove all but one"
            )
        if not found and field not in optional:
            raise InputError(
                f"A table must have a column {' or '.join(accepted)}, got {', '.join(map(repr, names))} in {file}; "
                "add or rename one"
            )
        if found:
            chosen[field] = found[0]
    return chosen


def _text(file: Path, name: str, column: Any, gaps: bool) -> Any:
    """A column of text or whole numbers as one text array; empty values are filled or refused."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = column.cast(pa.large_string()).combine_chunks()
    if array.null_count:
        array = pc.fill_null(array, "")
    row = -1 if gaps else pc.index(array, "").as_py()
    if row >= 0:
        raise InputError(
            f"Every row must have a value in the column {name!r}, got none in row {row + 1} of {file}; "
            "fill it in or remove the row"
        )
    return array


def table_of(columns: Mapping[str, Any], file: Path, domain: str) -> Table:
    """Build the table from the result of ``read_columns``; ``domain`` is used if there is no such column."""
    paths = columns["path"]
    row = first_unsafe(paths)
    if row is not None:
        raise unsafe(paths[row].as_py(), row, f" of {file}")
    names: dict[str, tuple[str, ...]] = {"domain": (domain,)}
    codes: dict[str, Rows] = {"domain": np.zeros(len(paths), dtype=np.int64)}
    digest = hashlib.sha256(_content("path", paths))
    for field in ("class", "domain", "user"):
        if field in columns:
            names[field], codes[field] = _encode(columns[field])
            digest.update(json.dumps([field, names[field]]).encode() + codes[field].astype("<i8").tobytes())
    if "group" in columns:
        digest.update(_content("group", columns["group"]))
    held = _official_test(columns["split"], file) if "split" in columns else None
    if held is not None:
        digest.update(b"test" + held.tobytes())
    try:
        return Table(
            paths=_strings(paths),
            labels=codes["class"],
            domains=codes["domain"],
            class_names=names["class"],
            domain_names=names["domain"],
            digest=digest.hexdigest(),
            groups=_strings(columns["group"]) if "group" in columns else None,
            users=codes.get("user"),
            user_names=names.get("user", ()),
            official_test=held,
        )
    except InputError as error:  # such as a path in two rows
        raise InputError(f"{file} is not a valid table: {error}") from error


def _encode(array: Any) -> tuple[tuple[str, ...], Rows]:
    """The sorted names in a column, and for every row the number of its name."""
    encoded = array.dictionary_encode()
    found = encoded.dictionary.to_pylist()
    names = in_order(found)
    number = {name: i for i, name in enumerate(names)}
    ranks = np.array([number[name] for name in found], dtype=np.int64)
    return tuple(names), ranks[encoded.indices.to_numpy(zero_copy_only=False)]


def _official_test(array: Any, file: Path) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    row = pc.index(pc.is_in(array, value_set=pa.array(SPLITS, pa.large_string())), False).as_py()
    if row >= 0:
        raise InputError(
            f"split must be train, test or empty, got {array[row].as_py()!r} in row {row + 1} of {file}; "
            "validation images are chosen when the benchmark is built, so call them train"
        )
    held = pc.equal(array, "test").to_numpy(zero_copy_only=False).astype(np.bool_)
    return held if held.any() else None


def _strings(array: Any) -> tuple[str, ...]:
    return tuple(array.to_numpy(zero_copy_only=False).tolist())  # many times quicker than to_pylist


def _content(field: str, array: Any) -> bytes:
    """The bytes of a text column, independent of its chunks in the file."""
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    letters = memoryview(array.buffers()[2])[offsets[0] : offsets[-1]]
    return b"".join([field.encode(), b"\0", np.diff(offsets).astype("<i8").tobytes(), letters])
