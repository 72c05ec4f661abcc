"""A run folder as data: settings, logs, results and clients. A file is read when it is first needed.

A damaged file gives an ``InputError`` that names it.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedbasis.serving.evaluation import ResultRow
from fedbasis.serving.personalize import label, split_way, statistics_suffix
from fedbasis.serving.tables import from_record
from fedbasis.training.runs import Run
from pflbed import global_accuracy, weighted_accuracy
from pflbed.benchmark import Benchmark
from pflbed.errors import InputError
from pflbed.foreign import read_json, read_json_lines, read_json_object
from pflbed.manifest import CARD, load_manifest, read_card

Fields = Mapping[str, Any]
"""The fields of a line of a log, each with the type that it must have."""
NUMBER = int | float
CONFIG: Fields = {"method": dict, "seed": int, "data": dict, "train": dict, "personalize": dict}
DEFAULTS: Mapping[str, Any] = {"seed": 0, "data": {}, "train": {}, "personalize": {}}
NEWER: Mapping[str, Mapping[str, Any]] = {"train": {"download": "float32"}, "personalize": {"by_way": {}}}
"""Settings that older runs do not have, with what they did: older and newer seeds of one experiment are one group."""
ABOUT: Fields = {"title": str, "labels": dict, "charts": dict}
ROUND: Fields = {
    "round": int, "rounds": int, "phase": str | None, "refused": list | None, "absent": list | None,
    "served": NUMBER | None,
}  # fmt: skip
RECORD: Fields = {
    "client": str, "how": str, "size": str, "rate": NUMBER, "validation": list, "validate_every": int,
    "statistics": str | None, "learned": dict | None, "peak_memory": int | None,
}  # fmt: skip
PREDICTIONS: Fields = {"last_predicted": list, "best_predicted": list}
"""Class indices of all test images: too long to keep in memory."""
Trial = tuple[str, str, float, str]
"""A way, a size, a learning rate and the normalization statistics: one try at personalizing every client."""
TrialScores = dict[str, tuple[float, float]]
"""The accuracy of every client after the last epoch and after the best one."""


@dataclass(frozen=True)
class LearnedTable:
    """A table that every client learned, such as coefficients: its rows, and in each row every client's numbers."""

    title: str
    columns: Sequence[str]
    rows: dict[str, dict[str, list[float]]]
    shares: bool = True
    """Whether all numbers are shares of one."""

    @property
    def span(self) -> tuple[float, float]:
        """The smallest and the largest number that colours stand for: 0 and 1 for shares."""
        values = [value for clients in self.rows.values() for row in clients.values() for value in row]
        if self.shares or not values:
            return 0.0, 1.0
        low, high = min(values), max(values)
        return (low, high) if low < high else (low, low + 1.0)


@dataclass(frozen=True, eq=False)
class RunData:
    """One run, finished or not."""

    run: Run
    manifests: dict[str, Benchmark] = field(default_factory=dict, repr=False)
    """Benchmarks by the hash of their manifest; runs that are read together share them."""

    @cached_property
    def path(self) -> Path:
        """The absolute path of the folder."""
        return self.run.folder.resolve()

    @cached_property
    def folder(self) -> str:
        """The name of the folder."""
        return self.path.name

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The settings."""
        path = self.run.config
        if not path.is_file():
            raise InputError(
                f"A run is a folder with its configuration, but {path.parent} has no {path.name}; check the path."
            )
        config = {**DEFAULTS, **self._object(path)}
        what = f"The folder {path.parent} must be a run, so its {path.name}"
        _require(what, config, CONFIG)
        _require(f"{what} section 'method'", config["method"], {"name": str})
        _require(f"{what} section 'data'", config["data"], {"sizes": dict | None, "source": str | None})
        sizes = config["data"].get("sizes") or {}
        _require(f"{what} section 'data.sizes'", sizes, dict.fromkeys(sizes, NUMBER))
        return {**config, **{section: {**added, **config[section]} for section, added in NEWER.items()}}

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The training log, a line per round."""
        return _lines(self.run.metrics, ROUND)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The evaluation log without predictions, a line per served client, way, size and learning rate."""
        lines = _stream(self.run.evaluation, RECORD)
        return [{key: value for key, value in line.items() if key not in PREDICTIONS} for line in lines]

    @cached_property
    def trials(self) -> dict[Trial, TrialScores]:
        """Every client's Last and Best at every rate and with all statistics, from the logged predictions.

        Scores of trials that were not chosen are for tables about the choice; nothing is chosen by them.
        """
        found: dict[Trial, TrialScores] = {}
        for line in _stream(self.run.evaluation, {**RECORD, **PREDICTIONS}):
            last, best = (self._accuracy(line["client"], line[key]) for key in PREDICTIONS)
            found.setdefault(_trial(line), {})[line["client"]] = last, best
        return found

    def global_scores(self, how: str, size: str) -> dict[str, float]:
        """Return every client's accuracy (Last) on all test images alike, at the chosen rate and statistics."""
        row = self.row(how, size)
        lines = _stream(self.run.evaluation, {**RECORD, **PREDICTIONS}) if row else ()
        return {
            line["client"]: self._accuracy(line["client"], line["last_predicted"], weighted=False)
            for line in lines
            if row and _trial(line) == _chosen(row)
        }

    @cached_property
    def rows(self) -> list[ResultRow]:
        """The results; empty until the clients are scored."""
        path = self.run.results
        if not path.is_file():
            return []
        found = read_json(path, "The file of a run")
        try:
            return [_row(**{key: value for key, value in row.items() if key != "delta"}) for row in found]
        except (TypeError, AttributeError, ValueError) as error:
            raise InputError(f"{path} must hold the results of a run, but it cannot be read: {error}.") from error

    @cached_property
    def benchmark(self) -> Benchmark | None:
        """Which client has which images; nothing until it is written."""
        if not self._card:
            return None
        if self.population not in self.manifests:
            self.manifests[self.population] = load_manifest(self.run.folder / "benchmark")
        return self.manifests[self.population]

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.config["method"]["name"])

    @property
    def seed(self) -> int:
        """The random seed."""
        return int(self.config["seed"])

    @property
    def served(self) -> str:
        """Which clients are personalized after training: ``new`` or ``participating``."""
        return str(self.config["personalize"].get("whom", "new"))

    @property
    def digest(self) -> str | None:
        """The hash of the data."""
        return self._card.get("digest") or (self._bases.get("provenance") or {}).get("data")

    @property
    def version(self) -> str | None:
        """The version of fedbasis that wrote the run."""
        return self._bases.get("version") or self._card.get("version")

    @cached_property
    def population(self) -> str:
        """The same text for runs on exactly the same clients."""
        data = {**self.config["data"], "source": None}
        settings = json.dumps([self.digest, self.seed, data], sort_keys=True)
        return str(self._card.get("manifest_sha256") or settings)

    @property
    def training(self) -> str:
        """The same text for runs that share their training; the folder's name where nothing is recorded.

        Runs with the same settings have trained twice if what they published differs, as on another processor.
        """
        found = self._done.get("training")
        return f"{found} {self._done.get('bases')}" if found else self.folder

    @property
    def versions(self) -> str:
        """The versions that the run was made with; nothing where they are not recorded."""
        found = self._done.get("versions")
        return ", ".join(f"{name} {one}" for name, one in found.items()) if isinstance(found, dict) else ""

    @cached_property
    def _done(self) -> dict[str, Any]:
        path = self.run.folder / "done"
        return self._object(path) if path.is_file() else {}

    @property
    def rounds_done(self) -> int:
        """The number of rounds in the training log."""
        return int(self.lines[-1]["round"]) if self.lines else 0

    @property
    def state(self) -> str:
        """The progress of training as text."""
        rounds = self.lines[-1]["rounds"] if self.lines else self.config["train"].get("rounds", "?")
        if self.active:
            serving = self.rounds_done == rounds
            return (
                "training is done, clients are served"
                if serving
                else f"training (round {self.rounds_done + 1} of {rounds})"
            )
        return f"{self.rounds_done} of {rounds} rounds are done"

    @cached_property
    def active(self) -> bool:
        """Whether a process trains it, or serves its clients, at this moment."""
        return self.run.active and not self.run.done

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """What the method told about itself: its title, labels of its ways, and its charts."""
        path = self.run.about
        if not path.is_file():
            return {"title": label(self.method, "none"), "labels": {}, "charts": {}}
        about = self._object(path)
        _require(f"The file {path}", about, ABOUT)
        for key in ("labels", "charts"):
            _require(f"The file {path}", about[key], dict.fromkeys(about[key], str))
        return about

    @property
    def title(self) -> str:
        """The name of the method for a reader."""
        return str(self.about["title"])

    def label(self, how: str) -> str:
        """Name the method and a way of personalizing as tables do."""
        way, fixed = split_way(how)
        known = self.about["labels"].get(way)
        return label(self.method, how) if known is None else str(known) + statistics_suffix(fixed)

    @property
    def phase_ends(self) -> list[tuple[int, str]]:
        """The last round of every phase of training but the last one, and the phase's name."""
        return [
            (int(line["round"]), line["phase"])
            for line, following in pairwise(self.lines)
            if line.get("phase") and line["phase"] != following.get("phase")
        ]

    def ways(self) -> list[str]:
        """List the ways of personalizing, in the order of the results."""
        return list(dict.fromkeys(row.how for row in self.rows))

    def row(self, how: str, size: str) -> ResultRow | None:
        """Return one row of the results."""
        return next((row for row in self.rows if (row.how, row.size) == (how, size)), None)

    def at_rate(self, how: str, size: str, rate: float) -> list[dict[str, Any]]:
        """Return the evaluation records at one learning rate, with the statistics chosen there on validation images."""
        mine = [r for r in self.records if (r["how"], r["size"], r["rate"]) == (how, size, rate)]
        best = best_statistics(mine)
        return [r for r in mine if r.get("statistics") == best]

    def chosen(self, how: str, size: str) -> list[dict[str, Any]]:
        """Return the evaluation records at the learning rate and statistics chosen on validation images."""
        row = self.row(how, size)
        return [] if row is None else [r for r in self.records if _trial(r) == _chosen(row)]

    def chosen_scores(self, how: str, size: str) -> TrialScores:
        """Return every client's Last and Best at the rate and with the statistics that were chosen."""
        row = self.row(how, size)
        return {} if row is None else self.trials.get(_chosen(row), {})

    def scores_by_rate(self, how: str, size: str) -> dict[float, TrialScores]:
        """Return every client's Last and Best at every rate, with the statistics chosen there on validation images."""
        rates = {float(r["rate"]) for r in self.records if (r["how"], r["size"]) == (how, size)}
        chosen = {rate: _trial(self.at_rate(how, size, rate)[0]) for rate in sorted(rates)}
        return {rate: self.trials[trial] for rate, trial in chosen.items()}

    def learned(self, how: str, size: str) -> dict[str, LearnedTable]:
        """Return what the clients learned besides their models, by table, at the chosen rate and statistics."""
        found: dict[str, LearnedTable] = {}
        for record in self.chosen(how, size):
            for name, raw in (record.get("learned") or {}).items():
                what = f"The table {name!r} of {record['client']} in {self.run.evaluation}"
                table = from_record(raw, what)
                mine = found.get(name, LearnedTable(table.title, table.columns, {}))
                found[name] = mine = replace(mine, shares=mine.shares and table.shares)
                if list(table.columns) != list(mine.columns):
                    raise InputError(f"{what} must have the columns of the other clients, but it has others.")
                for row, values in table.rows.items():
                    mine.rows.setdefault(row, {})[record["client"]] = list(values)
        return found

    def extra(self, name: str, fields: Fields) -> list[dict[str, Any]]:
        """Return the lines of another log in the folder; a missing log has none."""
        return _lines(self.run.folder / name, fields)

    def _accuracy(self, client: str, predicted: Sequence[int], weighted: bool = True) -> float:
        if self.benchmark is None:
            raise InputError(f"Predictions are scored with a run's benchmark, but {self.path} has none.")
        try:
            labels = self.benchmark.table.labels[self.benchmark.held_rows(client, "test")]
            guesses = np.asarray(predicted, dtype=np.int64)
            if not weighted:
                return float(global_accuracy(guesses, labels))
            return float(weighted_accuracy(guesses, labels, self.benchmark.held_weights(client, "test")))
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(
                f"{self.run.evaluation} must hold predictions of the run's clients, but those of {client} cannot be "
                f"scored: {error}."
            ) from error

    @cached_property
    def _card(self) -> dict[str, Any]:
        folder = self.run.folder / "benchmark"
        return read_card(folder) if (folder / CARD).is_file() else {}

    @cached_property
    def _bases(self) -> dict[str, Any]:
        path = self.run.bases / "card.json"
        bases = self._object(path) if path.is_file() else {}
        _require(f"The card {path}", bases, {"provenance": dict | None})
        return bases

    def _object(self, path: Path) -> dict[str, Any]:
        return read_json_object(path, "The file of a run")


def read_runs(runs: Sequence[Run]) -> list[RunData]:
    """Return every run once; a folder that is not a run is refused."""
    if not runs:
        raise InputError("A report needs at least one run, but none was given.")
    manifests: dict[str, Benchmark] = {}
    found = [RunData(run, manifests) for run in {run.folder.resolve(): run for run in runs}.values()]
    for data in found:
        _ = data.config
    return found


def domain_of(client: str) -> str:
    """Return the domain in a client's name, as PFLBed builds it."""
    return client.rpartition("/")[0]


def sizes_of(runs: Sequence[RunData]) -> dict[str, float]:
    """Return the sizes of all runs and their shares of a client's images, smallest first."""
    shares: dict[str, float] = {}
    for run in runs:
        known = run.config["data"].get("sizes") or {}
        for size in [*known, *(row.size for row in run.rows)]:
            shares.setdefault(size, float(known.get(size, 1.0)))
    return dict(sorted(shares.items(), key=lambda item: item[1]))


def domains_of(runs: Sequence[RunData]) -> list[str]:
    """Return all domains, in the benchmark's order where it is known."""
    named = [name for run in runs if run.benchmark for name in run.benchmark.table.domain_names]
    seen = [domain_of(client) for run in runs for row in run.rows for client in row.per_client]
    return list(dict.fromkeys(named + seen))


def number(value: Any) -> float:
    """Return a number of a log as a float, anything else as NaN."""
    return float(value) if isinstance(value, NUMBER) else math.nan


def numbers(lines: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    """Return one field of all lines that have a number there."""
    return [float(line[key]) for line in lines if isinstance(line.get(key), NUMBER)]


def best_statistics(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the statistics with the best mean validation accuracy after the last epoch."""
    scores: dict[str | None, list[float]] = {}
    for record in records:
        scores.setdefault(record.get("statistics"), []).append(number(record["validation"][-1]))
    return max(scores, key=lambda one: float(np.mean(scores[one])), default=None)


def validation_curve(records: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[float]]:
    """Return epochs and the mean validation accuracy of the records after each of them, in percent."""
    if not records:
        return [], []
    curves = zip(*(record["validation"] for record in records), strict=False)
    means = [100 * float(np.mean([number(value) for value in values])) for values in curves]
    every = records[0]["validate_every"]
    return [every * (i + 1) for i in range(len(means))], means


def _row(
    method: str, label: str, how: str, size: str, per_client: Mapping[str, float], statistics: str = "", **scores: float
) -> ResultRow:
    clients = {client: float(score) for client, score in per_client.items()}
    numbers = {key: float(score) for key, score in scores.items()}
    fields: dict[str, Any] = {"per_client": clients, "statistics": str(statistics), **numbers}
    return ResultRow(str(method), str(label), str(how), str(size), **fields)


def _chosen(row: ResultRow) -> Trial:
    return row.how, row.size, row.rate, row.statistics


def _trial(record: Mapping[str, Any]) -> Trial:
    return record["how"], record["size"], float(record["rate"]), record.get("statistics") or ""


def _lines(path: Path, fields: Fields) -> list[dict[str, Any]]:
    return list(_stream(path, fields))


def _stream(path: Path, fields: Fields) -> Iterator[dict[str, Any]]:
    try:
        for count, line in enumerate(read_json_lines(path, "The log"), start=1):
            _require(f"Line {count} of {path}", line, fields)
            yield line
    except OSError as error:
        raise InputError(f"{path} must be a log of JSON lines, but it cannot be read: {error}.") from error


def _require(what: str, found: Any, fields: Fields) -> None:
    for key, kind in fields.items():
        if not isinstance(found, dict) or not isinstance(found.get(key), kind):
            raise InputError(f"{what} must have a valid {key!r}, but it has none.")
