"""Tables by which methods explain themselves survive the log, and whatever is no table is refused."""

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbasis.methods.base import ValueTable
from fedbasis.serving.tables import MOST, as_record, from_record
from pflbed.errors import InputError

TABLE = ValueTable(title="Shares", columns=["a", "b"], rows={"z": [0.25, 0.75], "m": [1, 0]}, shares=True)
NAMES = st.text(max_size=20)
NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


@given(
    st.lists(NAMES, min_size=1, max_size=4).flatmap(
        lambda columns: st.tuples(
            st.just(columns),
            st.dictionaries(NAMES, st.lists(NUMBERS, min_size=len(columns), max_size=len(columns)), max_size=5),
        )
    ),
    NAMES,
)
def test_a_table_survives_json_to_four_digits(parts: tuple[list[str], dict[str, list[float]]], title: str) -> None:
    columns, rows = parts
    table = ValueTable(title=title, columns=columns, rows=rows)
    back = from_record(json.loads(json.dumps(as_record(table), sort_keys=True)), "It")
    assert (back.title, list(back.columns), back.shares) == (title, columns, False)
    assert list(back.rows) == list(rows)  # in the same order, whatever json does with keys
    for name, row in rows.items():
        assert back.rows[name] == pytest.approx(row, abs=0.51e-4)


def test_shares_stay_shares_unless_they_are_none() -> None:
    assert from_record(as_record(TABLE), "It").shares
    odd = ValueTable(title="", columns=["a"], rows={"x": [1.5]}, shares=True)
    assert not from_record(as_record(odd), "It").shares  # they would be drawn as bars longer than their cell


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a title less": lambda record: record.pop("title"),
    "rows less": lambda record: record.pop("rows"),
    "a title that is a number": lambda record: record.update(title=3),
    "a name that is a number": lambda record: record["rows"][0].__setitem__(0, 3),
    "a name that is a page": lambda record: record["rows"][0].__setitem__(0, "x" * 201),
    "a number less": lambda record: record["rows"][0][1].pop(),
    "a number that is a word": lambda record: record["rows"][0][1].__setitem__(0, "0.5"),
    "a number that is none": lambda record: record["rows"][0][1].__setitem__(0, None),
    "a number that is not finite": lambda record: record["rows"][0][1].__setitem__(0, math.inf),
    "a number beyond all floats": lambda record: record["rows"][0][1].__setitem__(0, 10**400),
    "a row that is no pair": lambda record: record["rows"].append(["x"]),
    "rows that are a number": lambda record: record.update(rows=5),
    "columns that are a number": lambda record: record.update(columns=5),
    "too many rows": lambda record: record.update(rows=[["x", [0, 0]]] * (MOST + 1)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_table_is_refused_with_a_sentence(damage: str) -> None:
    record = copy.deepcopy(as_record(TABLE))
    DAMAGES[damage](record)
    with pytest.raises(InputError, match=r"^The table of c must be a table of numbers, but it is not"):
        from_record(record, "The table of c")


@pytest.mark.parametrize("record", [None, 3, "text", [], [1]])
def test_other_data_are_refused(record: Any) -> None:
    with pytest.raises(InputError, match="must be a table of numbers"):
        from_record(record, "It")
