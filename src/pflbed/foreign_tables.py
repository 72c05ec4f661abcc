"""Parquet and csv tables that somebody else may have written: one reader, bounded and checked before a table is read.

A few kilobytes of parquet can stand for gigabytes: equal rows are stored once, and so is a long text that occurs in
every row. So the footer is read first (rows, columns, sizes without compression), then a column whose values must
differ, then the others, as dictionaries of their different values. Only when the sum of all values is known to be
small enough are they written out. A csv file is
read piece by piece, and not further than its limit. Whatever pyarrow raises becomes one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pflbed.errors import InputError
from pflbed.foreign import reason_of, require_file

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_TABLE = 4 * 2**30
"""Bytes of a table file."""
MAX_FOOTER = 64 * 2**20
"""Bytes of the footer of a parquet file."""
MAX_ROWS = 20_000_000
MAX_COLUMNS = 1_000
MAX_ROW_GROUPS = 20_000
MAX_CONTENT = 4 * 2**30
"""Bytes of the columns of a table that are read, without compression."""
MAX_VALUE = 32 * 2**10
"""Bytes of one text: a path, or the name of a class, a client or a user."""
TEXT, WHOLE, LOGICAL, NUMBER = "text", "whole numbers", "true or false", "numbers"
"""What a column may hold."""
UNIQUE = "a value of its own for every row"
"""Of a parquet file such a column is read first, so that millions of equal rows in a small file end the reading."""
MAGIC = b"PAR1"

Kinds = Mapping[str, tuple[str, ...]]
"""For every column that is read, what it may hold."""


def read_table(path: Path, what: str, choose: Callable[[list[str]], Kinds], rows: int = MAX_ROWS) -> Any:
    """Read some columns of a parquet or csv file. A name that ends with .csv is csv, any other is parquet.

    Args:
        path: The file.
        what: What errors call it, such as "The manifest".
        choose: Gets the names of all columns and returns those to read, each with what it may hold: ``TEXT``,
            ``WHOLE``, ``LOGICAL``, ``NUMBER``; and ``UNIQUE`` if no
            value may occur twice. Of a csv file a column that may be text is text.
        rows: The most rows that the table may have.

    Returns:
        A pyarrow table: text is ``large_string``, and an empty value is null.
    """
    require_file(path, what, MAX_TABLE)
    read = _csv if path.suffix.lower() == ".csv" else _parquet
    with _sentences(path, what):
        return read(path, what, choose, rows)


def _parquet(path: Path, what: str, choose: Callable[[list[str]], Kinds], rows: int) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    _require_footer(path, what)
    with parquet.ParquetFile(path) as opened:
        about, schema = opened.metadata, opened.schema_arrow
    groups = [about.row_group(i) for i in range(min(about.num_row_groups, MAX_ROW_GROUPS + 1))]
    for got, most, things in (
        (about.num_columns, MAX_COLUMNS, "columns"),
        (about.num_row_groups, MAX_ROW_GROUPS, "row groups"),
        (max(about.num_rows, sum(group.num_rows for group in groups)), rows, "rows"),
    ):
        _require_most(path, what, got, most, things)
    kinds = _chosen(path, what, schema.names, choose)
    fields = {name: schema.field(name).type for name in kinds}
    for name, allowed in kinds.items():
        _require_kind(path, what, name, fields[name], allowed)
    # Of a column's own metadata nothing is read: where they are damaged pyarrow aborts the whole process.
    content = sum(group.total_byte_size for group in groups)
    _require_most(path, what, content, MAX_CONTENT, "bytes without compression")
    texts = [name for name, kind in fields.items() if _is_text(kind)]
    first = [name for name, allowed in kinds.items() if UNIQUE in allowed]
    others = [name for name in kinds if name not in first]
    parts, size = [], 0
    with parquet.ParquetFile(path, read_dictionary=texts, metadata=about) as opened:
        for i in range(len(groups)):
            part = opened.read_row_group(i, columns=first, use_threads=False)
            for column in part.columns:
                _require_different(path, what, column)
            rest = opened.read_row_group(i, columns=others, use_threads=False)
            for name in others:
                part = part.append_column(name, rest.column(name))
            size += part.nbytes + sum(_decoded_bytes(part.column(name)) for name in texts)
            _require_most(path, what, size, MAX_CONTENT, "bytes without compression")
            parts.append(part)
    table = pa.concat_tables(parts) if parts else pa.table({name: pa.array([], kind) for name, kind in fields.items()})
    table.validate(full=True)  # parquet, unlike csv, does not check that text is Unicode
    _require_most(path, what, table.num_rows, rows, "rows")
    return pa.table({name: _plain(table.column(name), kinds[name]) for name in kinds})


def _csv(path: Path, what: str, choose: Callable[[list[str]], Kinds], rows: int) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    with csv.open_csv(path) as opened:
        names = opened.schema.names
    _require_most(path, what, len(names), MAX_COLUMNS, "columns")
    kinds = _chosen(path, what, names, choose)
    types = {name: _csv_type(allowed) for name, allowed in kinds.items()}  # 007 and NA are names here
    options = csv.ConvertOptions(
        column_types=types, include_columns=list(kinds), null_values=[""], strings_can_be_null=True
    )
    parts, count = [], 0
    with csv.open_csv(path, convert_options=options) as opened:
        for part in opened:
            count += part.num_rows
            _require_most(path, what, count, rows, "rows")
            parts.append(part)
        table = pa.Table.from_batches(parts, opened.schema)
    return pa.table({name: _plain(table.column(name), kinds[name]) for name in kinds})


def _csv_type(allowed: tuple[str, ...]) -> Any:
    import pyarrow as pa

    types = {TEXT: pa.string(), LOGICAL: pa.bool_(), NUMBER: pa.float64(), WHOLE: pa.int64()}
    return next(types[kind] for kind in types if kind in allowed)


def _require_footer(path: Path, what: str) -> None:
    """Refuse a file whose last bytes do not name a footer of a sensible size."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 8))
        end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if len(end) < 8 or end[4:] != MAGIC:
        raise InputError(f"{what} {path} must be a whole csv or parquet file, but its end is missing; write it again.")
    _require_most(path, what, length, min(MAX_FOOTER, size), "bytes of footer")


def _require_most(path: Path, what: str, got: int, most: int, things: str) -> None:
    if not 0 <= got <= most:
        raise InputError(f"{what} {path} must have at most {most:,} {things}, but it has {got:,}.")


def _chosen(path: Path, what: str, names: list[str], choose: Callable[[list[str]], Kinds]) -> Kinds:
    kinds = choose(names)
    for name in kinds:
        if names.count(name) > 1:
            raise InputError(f"{what} {path} must have one column {name!r}, but it has two of them; remove one.")
    return kinds


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return str(kind) in ("string", "large_string", "string_view")


def _require_kind(path: Path, what: str, name: str, kind: Any, allowed: tuple[str, ...]) -> None:
    import pyarrow as pa

    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    right = {
        TEXT: _is_text(kind),
        WHOLE: pa.types.is_integer(plain),
        LOGICAL: pa.types.is_boolean(plain),
        NUMBER: pa.types.is_floating(plain),
    }
    possible = [each for each in allowed if each in right]
    if not pa.types.is_null(plain) and not any(right[each] for each in possible):
        raise InputError(
            f"The column {name!r} must hold {' or '.join(possible)}, got {str(kind)[:80]} in {what.lower()} {path}; "
            "convert it."
        )


def _require_different(path: Path, what: str, column: Any) -> None:
    import pyarrow.compute as pc

    for chunk in column.chunks:
        values = chunk.indices if hasattr(chunk, "indices") else chunk
        used = values.drop_null()
        if pc.count_distinct(used).as_py() < len(used):
            raise InputError(f"Every row of {what.lower()} {path} must have a path of its own, but one occurs twice.")


def _decoded_bytes(column: Any) -> int:
    """How long all texts of a column of dictionaries are together; nothing is written out for it."""
    import pyarrow.compute as pc

    total = 0
    for chunk in column.chunks:
        if not hasattr(chunk, "dictionary"):
            return int(column.nbytes)
        lengths = np.asarray(pc.fill_null(pc.binary_length(chunk.dictionary), 0)).astype(np.int64)
        used = chunk.indices.drop_null().to_numpy(zero_copy_only=False)
        if len(used) and not (used.min() >= 0 and used.max() < len(lengths)):
            raise ValueError("a row refers to no text")
        counts = np.bincount(used, minlength=len(lengths))
        total += int(counts @ lengths)
    return total


def _plain(column: Any, allowed: tuple[str, ...]) -> Any:
    """A column without dictionaries; text gets large offsets, because 5 million paths may be more than 2 GB."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if _is_text(kind):
        texts = column.cast(pa.large_string())
        longest = pc.max(pc.binary_length(texts)).as_py() or 0
        if longest > MAX_VALUE:
            raise ValueError(f"a text must have at most {MAX_VALUE:,} bytes, but one has {longest:,}")
        return texts
    if pa.types.is_null(kind):
        return pa.chunked_array([pa.nulls(len(column), pa.bool_() if allowed == (LOGICAL,) else pa.large_string())])
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


@contextmanager
def _sentences(path: Path, what: str) -> Iterator[None]:
    """Turn whatever pyarrow raises for a damaged file into an ``InputError``."""
    import pyarrow as pa

    try:
        yield
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} must be text in UTF-8, but it is not; save it as UTF-8.") from error
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        if "UTF8" in str(error):
            raise InputError(f"{what} {path} must be text in UTF-8, but it is not; save it as UTF-8.") from error
        raise InputError(
            f"{what} {path} must be a whole csv or parquet file, but it cannot be read ({reason_of(error)}); "
            "write it again."
        ) from error
