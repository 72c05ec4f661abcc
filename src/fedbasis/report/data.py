"""Runs as plain data: what a report needs of every folder, read once, with names that tell the runs apart."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbasis.evaluation import Row
from fedbasis.personalize import label
from fedbasis.runs import Run, read_lines
from pflbed.benchmark import Benchmark
from pflbed.errors import InputError
from pflbed.manifest import CARD, load_manifest

KEPT = ("client", "how", "size", "rate", "validation", "validate_every")
"""What is kept of a line of the evaluation; its predictions are long and already scored."""


@dataclass(frozen=True)
class RunData:
    """One run: finished, or as far as it came."""

    folder: str
    config: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    """A line per round."""
    records: Sequence[Mapping[str, Any]]
    """A line per new client, way, size and rate."""
    rows: Sequence[Row]
    """The scored table; empty as long as there are no results."""
    benchmark: Benchmark | None
    digest: str | None
    """Identifies the data."""
    version: str | None
    """Of the program that made the run."""
    population: str
    """The same for runs on exactly the same clients."""
    suffix: str = ""
    """Tells runs of one method apart."""

    @property
    def method(self) -> str:
        """The method's short name."""
        return str(self.config["method"]["name"])

    @property
    def name(self) -> str:
        """The run's name for a reader."""
        return label(self.method, "none") + self.suffix

    @property
    def state(self) -> str:
        """How far the run came, in words."""
        done = int(self.lines[-1]["round"]) if self.lines else 0
        rounds = int(self.lines[-1]["rounds"]) if self.lines else self.config.get("train", {}).get("rounds", "?")
        return f"{done} of {rounds} rounds are done"

    @property
    def warm_start_end(self) -> int | None:
        """The last round of the warm start, or nothing if there was none or it still goes on."""
        for line in self.lines:
            if line.get("phase") == "bases":  # the state after the round; a warm-up round has no coefficients
                return None if "entropy" in line else int(line["round"])
        return None

    def title(self, row: Row) -> str:
        """Name one of the run's rows."""
        return label(row.method, row.how) + self.suffix

    def ways(self) -> list[str]:
        """List the ways of personalizing, in the order of the results."""
        return list(dict.fromkeys(row.how for row in self.rows))

    def row(self, how: str, size: str) -> Row | None:
        """Return one row of the results."""
        return next((row for row in self.rows if (row.how, row.size) == (how, size)), None)


def domain_of(client: str) -> str:
    """Return the domain in a client's name, as PFLBed builds it."""
    return client.rpartition("/")[0]


def read_runs(runs: Sequence[Run]) -> list[RunData]:
    """Read every run once; a folder that is not a run is refused."""
    if not runs:
        raise InputError("A report needs at least one run, but none was given.")
    unique = {run.folder.resolve(): run for run in runs}
    return _told_apart([_read(run) for run in unique.values()])


def sizes_of(runs: Sequence[RunData]) -> dict[str, float]:
    """Return the sizes of all runs and their shares of a client's images, smallest first."""
    shares: dict[str, float] = {}
    for run in runs:
        known = run.config.get("data", {}).get("sizes", {})
        for size in [*known, *(row.size for row in run.rows)]:
            shares.setdefault(size, float(known.get(size, 1.0)))
    return dict(sorted(shares.items(), key=lambda item: item[1]))


def domains_of(runs: Sequence[RunData]) -> list[str]:
    """Return all domains, in the benchmark's order where it is known."""
    named = [name for run in runs if run.benchmark for name in run.benchmark.table.domain_names]
    seen = [domain_of(client) for run in runs for row in run.rows for client in row.per_client]
    return list(dict.fromkeys(named + seen))


def _read(run: Run) -> RunData:
    folder = run.folder.resolve().name
    if not run.config.is_file():
        raise InputError(
            f"A report is made from run folders, but {run.folder} has no {run.config.name}; check the path."
        )
    config = _json(run.config)
    if not isinstance(config, dict) or not isinstance(config.get("method"), dict) or "name" not in config["method"]:
        raise InputError(f"{run.config} must be the configuration of a run with a method's name, but it has none.")
    card_path = run.folder / "benchmark" / CARD
    card = _json(card_path) if card_path.is_file() else {}
    bases = _json(run.bases / "card.json") if (run.bases / "card.json").is_file() else {}
    digest = card.get("digest") or bases.get("provenance", {}).get("data")
    rows = _rows(run.results) if run.results.is_file() else []
    try:
        records = [
            {key: line[key] for key in KEPT} | {"alpha": line.get("alpha")} for line in read_lines(run.evaluation)
        ]
        lines = [line for line in read_lines(run.metrics) if (line["round"], line["rounds"])]
    except (KeyError, TypeError) as error:
        raise InputError(f"{run.folder} must hold the logs of a run, but a line in them lacks {error}.") from error
    clients = json.dumps([digest, config.get("seed"), {**config.get("data", {}), "source": None}], sort_keys=True)
    return RunData(
        folder, config, lines, records, rows,
        benchmark=load_manifest(card_path.parent) if card else None,
        digest=digest,
        version=bases.get("version") or card.get("version"),
        population=card.get("manifest_sha256") or clients,
    )  # fmt: skip


def _rows(path: Path) -> list[Row]:
    try:
        return [Row(**{key: value for key, value in row.items() if key != "delta"}) for row in _json(path)]
    except (TypeError, AttributeError) as error:
        raise InputError(f"{path} must hold the results of a run, but it cannot be understood: {error}.") from error


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} must be a JSON file of a run, but it cannot be read: {error}.") from error


def _told_apart(runs: list[RunData]) -> list[RunData]:
    """Name runs of one method by their seed if that is enough, else by their folder's hash, else by number."""
    named = list(runs)
    for method in dict.fromkeys(run.method for run in runs):
        mine = [i for i, run in enumerate(runs) if run.method == method]
        hashes = [runs[i].folder.removeprefix(f"{method}-") for i in mine]
        choices = [
            [""] if len(mine) == 1 else [],
            [f" · seed {runs[i].config.get('seed')}" for i in mine],
            [f" · {text[:6]}" for text in hashes],
            [f" · {text}" for text in hashes],
            [f" · {text} ({number})" for number, text in enumerate(hashes, start=1)],
        ]
        suffixes = next(choice for choice in choices if len(set(choice)) == len(mine))
        for i, suffix in zip(mine, suffixes, strict=True):
            named[i] = replace(runs[i], suffix=suffix)
    return named
