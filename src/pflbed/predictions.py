"""Scores for predictions that any framework made: a table with the columns client, row and predicted.

``row`` is a row of ``manifest.parquet``, counted from 0; ``predicted`` a class by name or by number. Every client that
occurs must be predicted on all of its test rows, once each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflbed.benchmark import Benchmark
from pflbed.errors import InputError
from pflbed.score import bootstrap_interval, global_accuracy, weighted_accuracy
from pflbed.seeding import generator
from pflbed.table import Rows

COLUMNS = ("client", "row", "predicted")


@dataclass(frozen=True)
class Average:
    """A mean over clients and where it lies in 95 of 100 resamples of the clients."""

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


def score_file(benchmark: Benchmark, file: Path) -> Scores:
    """Read predictions from a parquet or csv file and score them."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    file = Path(file)
    if not file.is_file():
        raise InputError(f"the predictions must be a parquet or csv file, got {file}, which is none; check the path")
    try:
        read = csv.read_csv(file) if file.suffix.lower() == ".csv" else parquet.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{file} must be a parquet or csv table, but it cannot be read ({error}); write it again"
        ) from None
    if missing := [name for name in COLUMNS if name not in read.column_names]:
        raise InputError(
            f"{file} must have the columns {', '.join(COLUMNS)}, got {', '.join(read.column_names) or 'none'}; "
            f"add {', '.join(missing)}"
        )
    columns = [read[name] for name in COLUMNS]
    for name, column in zip(COLUMNS, columns, strict=True):
        if column.null_count:
            raise InputError(f"the column {name!r} of {file} must be full, but {column.null_count} values are missing")
    client = columns[0].cast(pa.string())
    return score(benchmark, client.to_numpy(zero_copy_only=False), *(np.asarray(column) for column in columns[1:]))


def score(benchmark: Benchmark, client: Any, row: Any, predicted: Any) -> Scores:
    """Score predictions given as three columns of equal length."""
    client, row, predicted = np.asarray(client), np.asarray(row), np.asarray(predicted)
    if not client.ndim == row.ndim == predicted.ndim == 1 or not len(client) == len(row) == len(predicted):
        raise InputError(
            f"client, row and predicted must be equally long, got {client.shape}, {row.shape} and {predicted.shape}"
        )
    if not len(client):
        raise InputError("there must be at least one prediction, got none; predict every test row of every client")
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
                f"the column 'client' must name clients of the benchmark, got {str(name)!r}; the first is "
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
        truth = benchmark.table.labels[tested]
        personalized[name] = weighted_accuracy(guesses[mine], truth, benchmark.held_weights(name, "test"))
        unweighted[name] = global_accuracy(guesses[mine], truth)
    return Scores(personalized, unweighted, {name: roles[name] for name in personalized})


def _classes(benchmark: Benchmark, predicted: Any) -> Rows:
    """Turn names of classes into their numbers; a number of no class is simply wrong."""
    known = {name: i for i, name in enumerate(benchmark.table.class_names)}
    if predicted.dtype.kind in "iu" and not all(name.isdecimal() for name in known):
        return np.asarray(predicted, dtype=np.int64)
    if predicted.dtype.kind not in "iuOUT":  # where the names of classes are numbers, numbers are names
        raise InputError(
            f"predicted must hold class names or class numbers, got {predicted.dtype}; give the class, not its score"
        )
    names, numbers = np.unique(predicted.astype(str), return_inverse=True)
    for name in names.tolist():
        if name not in known:
            raise InputError(
                f"predicted must hold classes of the benchmark, got {name!r}; the first is "
                f"{benchmark.table.class_names[0]!r}"
            )
    return np.array([known[name] for name in names.tolist()], dtype=np.int64)[numbers]


def _all_once(name: str, rows: Rows, tested: Rows) -> None:
    """Check sorted rows against the client's test rows."""
    if not len(tested):
        raise InputError(f"client {name!r} has no test images in this benchmark; leave it out of the predictions")
    if (doubled := np.flatnonzero(np.diff(rows) == 0)).size:
        raise InputError(
            f"client {name!r} must have one prediction per row, got two for row {rows[doubled[0]]}; keep one"
        )
    if (foreign := np.setdiff1d(rows, tested)).size:
        raise InputError(
            f"client {name!r} must be predicted on its test rows alone, got row {foreign[0]}, which is none of its "
            f"{len(tested)}; take the rows that held_rows or 'pflbed show --rows' lists"
        )
    if len(rows) != len(tested):
        raise InputError(
            f"client {name!r} must be predicted on all of its {len(tested)} test rows, got {len(rows)}; the first that "
            f"is missing is {np.setdiff1d(tested, rows)[0]}"
        )
