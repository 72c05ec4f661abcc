"""Scores for predictions that any framework made: a table with the columns client, row and predicted.

``row`` is a row of ``manifest.parquet``, counted from 0; ``predicted`` a class by name or by number. Every client that
occurs must be predicted on all of its test rows, once each.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pflbed.benchmark import Benchmark
from pflbed.errors import InputError
from pflbed.files import replacing
from pflbed.foreign_tables import TEXT, WHOLE, Kinds, read_table
from pflbed.score import bootstrap_interval, global_accuracy, weighted_accuracy
from pflbed.seeding import generator
from pflbed.table import Rows

COLUMNS = ("client", "row", "predicted")
ROLES = ("participating", "new")


@dataclass(frozen=True)
class Average:
    """A mean over clients and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Scores:
    """Personalized and global accuracy per client, in the order of the benchmark."""

    personalized: Mapping[str, float]
    unweighted: Mapping[str, float]
    roles: Mapping[str, str]

    def average(self, role: str | None = None, personalized: bool = True) -> Average | None:
        """Average over all clients or those of a role ("participating", "new"); None if there are none."""
        scores = self.personalized if personalized else self.unweighted
        values = [score for name, score in scores.items() if role in (None, self.roles[name])]
        if not values:
            return None
        low, high = bootstrap_interval(values, generator("bootstrap over clients"))
        return Average(float(np.mean(values)), low, high)

    def count(self, role: str) -> int:
        """How many clients of a role were scored."""
        return sum(mine == role for mine in self.roles.values())

    def as_json(self) -> dict[str, Any]:
        """All scores as JSON types."""
        averages: dict[str, Any] = {}
        for role in ROLES:
            both = {"personalized": self.average(role), "global": self.average(role, personalized=False)}
            found = {kind: vars(average) for kind, average in both.items() if average is not None}
            averages |= {role: {**found, "clients": self.count(role)}} if found else {}
        clients = {
            name: {"role": self.roles[name], "personalized": value, "global": self.unweighted[name]}
            for name, value in self.personalized.items()
        }
        return {"averages": averages, "clients": clients}

    def write(self, path: Path) -> None:
        """Write a csv file with a line per client."""
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["client", "role", "personalized", "global"])
            for name, value in self.personalized.items():
                writer.writerow([name, self.roles[name], repr(value), repr(self.unweighted[name])])


def score_file(benchmark: Benchmark, file: Path) -> Scores:
    """Read predictions from a parquet or csv file and score them."""
    file = Path(file)
    most = sum(len(benchmark.held_rows(name, "test")) for name in benchmark.client_ids)
    read = read_table(file, "The predictions", partial(_chosen, file), rows=most)
    columns = [read[name].combine_chunks() for name in COLUMNS]
    for name, column in zip(COLUMNS, columns, strict=True):
        if column.null_count:
            raise InputError(f"The column {name!r} of {file} must be full, but {column.null_count} values are missing")
    client = columns[0].cast("large_string")
    return score(benchmark, *(column.to_numpy(zero_copy_only=False) for column in (client, *columns[1:])))


def _chosen(file: Path, names: list[str]) -> Kinds:
    if missing := [name for name in COLUMNS if name not in names]:
        raise InputError(
            f"{file.name} must have the columns {', '.join(COLUMNS)}, got {', '.join(names)[:200] or 'none'}; "
            f"add {', '.join(missing)}"
        )
    return {"client": (TEXT, WHOLE), "row": (WHOLE,), "predicted": (TEXT, WHOLE)}


def score(benchmark: Benchmark, client: Any, row: Any, predicted: Any) -> Scores:
    """Score predictions given as three columns of equal length."""
    client, row, predicted = np.asarray(client), np.asarray(row), np.asarray(predicted)
    if not client.ndim == row.ndim == predicted.ndim == 1 or not len(client) == len(row) == len(predicted):
        raise InputError(
            f"client, row and predicted must be equally long, got {client.shape}, {row.shape} and {predicted.shape}"
        )
    if not len(client):
        raise InputError("There must be at least one prediction, got none; predict every test row of every client")
    if row.dtype.kind not in "iu":
        raise InputError(f"row must hold row numbers of the manifest, got {row.dtype}; count from 0 as in the manifest")
    guesses = _classes(benchmark, predicted)
    names, first, numbers = np.unique(client, return_index=True, return_inverse=True)
    order = np.lexsort((row, numbers))
    starts = np.searchsorted(numbers[order], np.arange(len(names) + 1))
    roles = {**dict.fromkeys(benchmark.participating, "participating"), **dict.fromkeys(benchmark.new, "new")}
    for name in names[np.argsort(first)]:
        if str(name) not in roles:
            raise InputError(
                f"The column 'client' must name clients of the benchmark, got {str(name)!r}; the first is "
                f"{benchmark.client_ids[0]!r}"
            )
    place = {str(name): i for i, name in enumerate(names)}
    personalized: dict[str, float] = {}
    unweighted: dict[str, float] = {}
    for name in benchmark.client_ids:
        if name not in place:
            continue
        mine = order[starts[place[name]] : starts[place[name] + 1]]
        tested = benchmark.held_rows(name, "test")
        _all_once(name, row[mine], tested)
        truth, weights = benchmark.table.labels[tested], benchmark.held_weights(name, "test")
        if not weights.sum():
            raise InputError(
                f"Client {name!r} has no test image of a class it trains on, so it cannot be scored; leave it out"
            )
        personalized[name] = weighted_accuracy(guesses[mine], truth, weights)
        unweighted[name] = global_accuracy(guesses[mine], truth)
    return Scores(personalized, unweighted, {name: roles[name] for name in personalized})


def _classes(benchmark: Benchmark, predicted: Any) -> Rows:
    """Turn classes into their numbers: text is a name, or a number where no class has it as its name."""
    names = benchmark.table.class_names
    if predicted.dtype.kind in "iu":
        numbers = np.asarray(predicted, dtype=np.int64)
        if [str(i) for i in range(len(names))] != list(names) and all(name.isdecimal() for name in names):
            raise InputError(
                f"The classes of this benchmark are called by numbers ({', '.join(names[:3])} ...) that are not their "
                "places, so predicted must hold their names as text, got numbers; convert the column to text"
            )
    elif predicted.dtype.kind in "OUT":
        known = {name: i for i, name in enumerate(names)}
        values, places = np.unique(_texts(predicted), return_inverse=True)
        if not any(value in known for value in values.tolist()) and all(v.isdecimal() for v in values.tolist()):
            known = {str(i): i for i in range(len(names))}  # a csv file has no numbers, only their text
        for value in values.tolist():
            if value not in known:
                raise InputError(
                    f"predicted must hold classes of the benchmark, got {value!r}; the first is {names[0]!r}"
                )
        numbers = np.array([known[value] for value in values.tolist()], dtype=np.int64)[places]
    else:
        raise InputError(
            f"predicted must hold class names or class numbers, got {predicted.dtype}; give the class, not its score"
        )
    if numbers.min() < 0 or numbers.max() >= len(names):
        raise InputError(
            f"predicted must hold class numbers from 0 to {len(names) - 1}, got {numbers.min()} to {numbers.max()}; "
            "count the classes from 0 in the order of the card's class_names"
        )
    return numbers


def _texts(values: Any) -> Any:
    """An array of text; not of fixed width, where one long text makes every row long."""
    return np.array([str(value) for value in values.tolist()], dtype=object) if values.dtype.kind == "O" else values


def _all_once(name: str, rows: Rows, tested: Rows) -> None:
    """Check sorted rows against the client's test rows."""
    if not len(tested):
        raise InputError(f"Client {name!r} has no test images in this benchmark; leave it out of the predictions")
    if (doubled := np.flatnonzero(np.diff(rows) == 0)).size:
        raise InputError(
            f"Client {name!r} must have one prediction per row, got two for row {rows[doubled[0]]}; keep one"
        )
    if (foreign := np.setdiff1d(rows, tested)).size:
        raise InputError(
            f"Client {name!r} must be predicted on its test rows alone, got row {foreign[0]}, which is none of its "
            f"{len(tested)}; 'pflbed export --to blank' lists them"
        )
    if len(rows) != len(tested):
        raise InputError(
            f"Client {name!r} must be predicted on all of its {len(tested)} test rows, got {len(rows)}; the first that "
            f"is missing is {np.setdiff1d(tested, rows)[0]}"
        )
