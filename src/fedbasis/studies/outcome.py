"""What a finished run gave, read from its folder: the scored table, the log of rounds, and every client's predictions.

A run tries several rates and keeps the predictions of each, so a study can score any of them afterwards.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedbasis.serving.evaluation import ResultRow
from fedbasis.training.runs import Run, read_lines
from pflbed import global_accuracy, weighted_accuracy
from pflbed.benchmark import Benchmark
from pflbed.manifest import load_manifest


@dataclass(frozen=True)
class Outcome:
    """One finished run."""

    run: Run

    @property
    def folder(self) -> str:
        """The run's name, for the cells that come from it."""
        return self.run.folder.name

    @cached_property
    def rows(self) -> list[ResultRow]:
        """The scored table."""
        raw = json.loads(self.run.results.read_text(encoding="utf-8"))
        return [ResultRow(**{key: value for key, value in row.items() if key != "delta"}) for row in raw]

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """A line per round."""
        return read_lines(self.run.metrics)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """A line per client, way, size and rate."""
        return read_lines(self.run.evaluation)

    @cached_property
    def benchmark(self) -> Benchmark:
        """Who had which images."""
        return load_manifest(self.run.folder / "benchmark")

    def row(self, how: str, size: str) -> ResultRow | None:
        """Return one row of the scored table."""
        return next((row for row in self.rows if (row.how, row.size) == (how, size)), None)

    def extra(self, name: str) -> list[dict[str, Any]]:
        """Return what was measured on the run besides."""
        return read_lines(self.run.folder / name)

    def chosen(self, how: str, size: str) -> list[dict[str, Any]]:
        """Return the clients' records at the rate that validation chose."""
        row = self.row(how, size)
        return [] if row is None else self.at_rate(how, size, row.rate)

    def at_rate(self, how: str, size: str, rate: float) -> list[dict[str, Any]]:
        """Return the clients' records at one rate."""
        return [r for r in self.records if (r["how"], r["size"], r["rate"]) == (how, size, rate)]

    def accuracy(self, records: Sequence[Mapping[str, Any]], which: str = "last_predicted") -> float:
        """Score records: the mean personalized accuracy of their clients."""
        return self._mean(records, which, weighted=True)

    def general(self, records: Sequence[Mapping[str, Any]]) -> float:
        """Score them by global accuracy, in which every test image counts the same."""
        return self._mean(records, "last_predicted", weighted=False)

    def _mean(self, records: Sequence[Mapping[str, Any]], which: str, weighted: bool) -> float:
        scores = []
        for record in records:
            name, guesses = record["client"], np.asarray(record[which], dtype=np.int64)
            labels = self.benchmark.table.labels[self.benchmark.held_rows(name, "test")]
            weights = self.benchmark.held_weights(name, "test")
            scores.append(weighted_accuracy(guesses, labels, weights) if weighted else global_accuracy(guesses, labels))
        return float(np.mean(scores))


def validation_curve(records: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[float]]:
    """Average the clients' validation accuracy along the epochs, in percent: the epochs, and the means."""
    if not records:
        return [], []
    curves = np.array([record["validation"] for record in records], dtype=np.float64)
    every = int(records[0]["validate_every"])
    return [every * (i + 1) for i in range(curves.shape[1])], (100 * curves.mean(0)).tolist()
