"""Seeded damage to bytes, JSON values, tables and csv text. The same generator gives the same damage."""

import copy
import json
import math
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa

Change = Callable[[Any], None]
"""Puts a value in the place of another."""

TEXTS = (
    "", "\x1b[2J\x1b]0;x\x07", "../../etc/passwd", "/etc/passwd", "a\nb", "\u202eabc", "$\\frac{$", "_", "NaN",
    "x" * 70_000, "<script>", "%s%n", "\x00", "猫", "{0}", "[bold]", "C:\\x", "🦊" * 300, " ",
)  # fmt: skip
SURROGATE = "\ud800"
NUMBERS = (0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 10**4000, 0.5, -0.0, 1e308, math.inf, math.nan)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, {"a": {"b": []}})


def bytes_mutant(data: bytes, rng: Random) -> bytes:
    """Flip bits, cut, insert, repeat or remove a piece."""
    if not data:
        return rng.randbytes(rng.randrange(64))
    changed = bytearray(data)
    at = rng.randrange(len(changed))
    kind = rng.choice(("flip", "flip", "flip", "cut", "insert", "repeat", "remove", "fill"))
    if kind == "flip":
        for _ in range(rng.choice((1, 1, 2, 8, 64))):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del changed[at:]
    elif kind == "insert":
        changed[at:at] = rng.randbytes(rng.choice((1, 4, 300)))
    elif kind == "repeat":
        piece = changed[at : at + rng.choice((1, 16, 400))]
        changed[at:at] = piece * rng.choice((1, 3, 50))
    elif kind == "remove":
        del changed[at : at + rng.choice((1, 4, 100))]
    else:
        length = rng.choice((1, 4, 8, 64))
        changed[at : at + length] = rng.choice((b"\x00", b"\xff", b"\x7f")) * length
    return bytes(changed)


def places(value: Any) -> list[Change]:
    """A setter for every place in a JSON value."""
    found: list[Change] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            pairs: list[tuple[Any, Any]] = list(item.items())
        elif isinstance(item, list):
            pairs = list(enumerate(item))
        else:
            continue
        for key, inner in pairs:
            found.append(partial(item.__setitem__, key))
            if isinstance(inner, dict | list):
                stack.append(inner)
    return found


def odd_value(rng: Random) -> Any:
    """A value of another type or size than anybody expects."""
    kind = rng.choice(("text", "number", "other", "list"))
    if kind == "text":
        return rng.choice(TEXTS)
    if kind == "number":
        return rng.choice(NUMBERS)
    if kind == "list":
        return [rng.choice((*TEXTS, *NUMBERS)) for _ in range(rng.choice((1, 3, 40)))]
    return copy.deepcopy(rng.choice(OTHERS))


def json_value_mutant(value: Any, rng: Random) -> Any:
    """Swap types, remove and add keys, duplicate entries, at one to three places."""
    changed = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind = rng.choice(("swap", "swap", "remove", "add", "shuffle"))
        containers = [changed, *(item for item in _containers(changed))]
        item = rng.choice(containers)
        if kind == "swap" and (setters := places(changed)):
            rng.choice(setters)(odd_value(rng))
        elif kind == "remove" and item:
            if isinstance(item, dict):
                del item[rng.choice(sorted(item))]
            elif isinstance(item, list):
                item.pop(rng.randrange(len(item)))
        elif kind == "add":
            if isinstance(item, dict):
                item[rng.choice((*TEXTS, "format", "class_names"))] = odd_value(rng)
            elif isinstance(item, list):
                item.append(copy.deepcopy(rng.choice(item)) if item and rng.random() < 0.5 else odd_value(rng))
        elif kind == "shuffle" and isinstance(item, list):
            rng.shuffle(item)
    return changed


def json_mutant(value: Any, rng: Random) -> bytes:  # noqa: PLR0911
    """The text of a changed JSON value, or of nearly JSON: deep, with NaN, half characters, keys twice."""
    kind = rng.choice(("value",) * 6 + ("bytes", "deep", "surrogate", "twice", "encoding", "number"))
    if kind == "value":
        return _dumped(json_value_mutant(value, rng))
    text = json.dumps(value)
    if kind == "deep":
        depth = rng.choice((70, 1_000, 100_000))
        opened, closed = rng.choice((("[", "]"), ('{"a":', "}")))
        return _dumped({**value, "format": 0} if isinstance(value, dict) else value).replace(
            b"0", (opened * depth + "1" + closed * depth).encode(), 1
        )
    if kind == "surrogate":
        return text.replace('"', f'"{json.dumps(SURROGATE)[1:-1]}', rng.choice((1, 5))).encode()
    if kind == "twice":
        return text.replace("{", '{"format": 2, "format": 2, ', 1).encode()
    if kind == "encoding":
        return text.encode(rng.choice(("utf-16", "utf-32", "utf-8-sig", "cp037")))
    if kind == "number":
        return text.replace("1", rng.choice(("1" * 5_000, "1e999", "-Infinity", "NaN", "1e-999")), 1).encode()
    return bytes_mutant(text.encode(), rng)


def table_mutant(table: pa.Table, rng: Random) -> pa.Table:  # noqa: PLR0911
    """Swap the type of a column, its values, its name; drop, double or repeat it; change the number of rows."""
    i = rng.randrange(table.num_columns)
    name, column = table.column_names[i], table.column(i)
    kind = rng.choice(("type", "type", "values", "values", "drop", "twice", "rename", "rows", "nulls"))
    if kind == "type":
        return table.set_column(i, name, odd_column(len(table), rng))
    if kind == "values" and pa.types.is_string(column.type):
        values = column.to_pylist()
        for _ in range(rng.choice((1, 3, len(values)))):
            values[rng.randrange(len(values))] = rng.choice((*TEXTS, None))
        return table.set_column(i, name, pa.array(values, pa.string()))
    if kind == "values" and pa.types.is_integer(column.type):
        values = column.to_pylist()
        values[rng.randrange(len(values))] = rng.choice((None, -1, 2**62, 0))
        return table.set_column(i, name, pa.array(values, pa.int64()))
    if kind == "drop" and table.num_columns > 1:
        return table.remove_column(i)
    if kind == "twice":
        return table.append_column(name, rng.choice((column, odd_column(len(table), rng))))
    if kind == "rename":
        return table.rename_columns(
            [rng.choice((*TEXTS, "a.b")) if j == i else n for j, n in enumerate(table.column_names)]
        )
    if kind == "rows":
        return rng.choice(
            (table.slice(0, 0), table.slice(1), pa.concat_tables([table, table.slice(0, 1)]), table.slice(0, 1))
        )
    return table.set_column(i, name, pa.nulls(len(table), rng.choice((column.type, pa.null()))))


def odd_column(rows: int, rng: Random) -> Any:
    """A column of another type."""
    makers: tuple[Callable[[], Any], ...] = (
        lambda: pa.array([[i] for i in range(rows)]),
        lambda: pa.array([{"a": i} for i in range(rows)]),
        lambda: pa.array([float(i) for i in range(rows)]),
        lambda: pa.array([math.nan] * rows),
        lambda: pa.array([bytes([i % 256]) for i in range(rows)]),
        lambda: pa.array([i % 2 == 0 for i in range(rows)]),
        lambda: pa.array(range(rows), pa.uint64()),
        lambda: pa.array(range(rows), pa.timestamp("us")),
        lambda: pa.array([str(i) for i in range(rows)]).dictionary_encode(),
        lambda: pa.array([str(i) for i in range(rows)], pa.large_string()),
        lambda: pa.array(range(rows), pa.int64()).dictionary_encode(),
        lambda: pa.array([None] * rows),
        lambda: pa.array(range(rows), pa.decimal128(20, 2)),
        lambda: pa.array(range(rows), pa.int8() if rows < 127 else pa.int16()),
    )
    return rng.choice(makers)()


def csv_mutant(text: str, rng: Random) -> bytes:
    """Damage csv text: quotes, separators, columns twice, other encodings, long lines, bytes."""
    kind = rng.choice(("bytes", "bytes", "quote", "column", "encoding", "long", "cell", "line", "many"))
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    if kind == "quote":
        lines[at] = lines[at].replace(",", rng.choice(('"', '","', '"",', ";", "\t")), 1)
    elif kind == "column":
        lines = [f"{line},{line.split(',')[0]}" for line in lines if line]
    elif kind == "encoding":
        return text.encode(rng.choice(("utf-16", "utf-8-sig", "utf-32")))
    elif kind == "long":
        lines[at] += "x" * rng.choice((1_000, 2_000_000))
    elif kind == "cell":
        cells = lines[at].split(",")
        cells[rng.randrange(len(cells))] = rng.choice((*TEXTS, *map(repr, NUMBERS[:6])))
        lines[at] = ",".join(cells)
    elif kind == "line":
        lines.insert(at, rng.choice(("", ",,,,,,,,", lines[0], lines[at], "\x00", '"')))
    elif kind == "many":
        lines[0] = ",".join([lines[0]] + ["c"] * 2_000)
    else:
        return bytes_mutant(text.encode(), rng)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _containers(value: Any) -> list[Any]:
    found, stack = [], [value]
    while stack:
        item = stack.pop()
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        kept = [each for each in inner if isinstance(each, dict | list)]
        found += kept
        stack += kept
    return found


def _dumped(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except ValueError:  # a whole number of thousands of digits
        return b'{"format": ' + b"1" * 5_000 + b"}"
