"""Tables by which a method explains itself, as plain data: in logs and cards, and back from there."""

import math
from typing import Any

from fedbasis.methods.base import ValueTable
from pflbed.errors import InputError

MOST = 10_000
"""Rows and columns that a table may have."""


def as_record(table: ValueTable) -> dict[str, Any]:
    """Write a table as plain data; rows are pairs, because their order counts."""
    rows = [[name, [round(value, 4) for value in row]] for name, row in table.rows.items()]
    return {"title": table.title, "columns": list(table.columns), "rows": rows, "shares": table.shares}


def from_record(record: Any, where: str) -> ValueTable:
    """Read a table back; whatever is not one is refused."""
    try:
        columns, rows = record["columns"], record["rows"]
        texts = [record["title"], *columns, *(name for name, _ in rows)]
        numbers = [value for _, row in rows for value in row]
        fits = all(len(row) == len(columns) for _, row in rows) and max(len(columns), len(rows)) <= MOST
        if not fits or not all(isinstance(text, str) and len(text) <= 200 for text in texts):
            raise ValueError("no table")
        if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in numbers):
            raise ValueError("no numbers")
        shares = bool(record.get("shares")) and all(0 <= value <= 1 for value in numbers)
        named = {name: [float(value) for value in row] for name, row in rows}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{where} must be a table of numbers, but it is not.") from error
    return ValueTable(title=record["title"], columns=columns, rows=named, shares=shares)
