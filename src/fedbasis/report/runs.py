"""Runs as plain data: what a report needs of every folder, read once."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbasis.serving.evaluation import ResultRow
from fedbasis.training.runs import Run, read_lines
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
    rows: Sequence[ResultRow]
    """The scored table; empty as long as there are no results."""
    benchmark: Benchmark | None
    digest: str | None
    """Identifies the data."""
    version: str | None
    """Of the program that made the run."""
    population: str
    """The same for runs on exactly the same clients."""
    place: Path
    """Where the folder is."""

    @property
    def method(self) -> str:
        """The method's short name."""
        return str(self.config["method"]["name"])

    @property
    def seed(self) -> int:
        """What all its random choices come from."""
        return int(self.config.get("seed", 0))

    @property
    def whom(self) -> str:
        """Which clients were served after training: new ones, or those that took part."""
        return str(self.config.get("personalize", {}).get("whom", "new"))

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

    def ways(self) -> list[str]:
        """List the ways of personalizing, in the order of the results."""
        return list(dict.fromkeys(row.how for row in self.rows))

    def row(self, how: str, size: str) -> ResultRow | None:
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
    manifests: dict[str, Benchmark] = {}
    return [_read(run, manifests) for run in unique.values()]


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


def _read(run: Run, manifests: dict[str, Benchmark]) -> RunData:
    folder = run.folder.resolve().name
    if not run.config.is_file():
        raise InputError(
            f"A run is a folder with its configuration, but {run.folder} has no {run.config.name}; check the path."
        )
    config = _json(run.config)
    if not isinstance(config, dict) or not isinstance(config.get("method"), dict) or "name" not in config["method"]:
        raise InputError(f"{run.config} must be the configuration of a run with a method's name, but it has none.")
    if not isinstance(config.get("seed", 0), int):
        raise InputError(f"The seed in {run.config} must be a whole number, but it is {config['seed']!r:.40}.")
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
    population = str(card.get("manifest_sha256") or card_path)
    if card and population not in manifests:  # many runs share one
        manifests[population] = load_manifest(card_path.parent)
    clients = json.dumps([digest, config.get("seed"), {**config.get("data", {}), "source": None}], sort_keys=True)
    return RunData(
        folder, config, lines, records, rows,
        benchmark=manifests[population] if card else None,
        digest=digest,
        version=bases.get("version") or card.get("version"),
        population=card.get("manifest_sha256") or clients,
        place=run.folder.resolve(),
    )  # fmt: skip


def _rows(path: Path) -> list[ResultRow]:
    try:
        return [_row(**{key: value for key, value in row.items() if key != "delta"}) for row in _json(path)]
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path} must hold the results of a run, but it cannot be understood: {error}.") from error


def _row(method: str, how: str, size: str, per_client: Mapping[str, float], **numbers: float) -> ResultRow:
    scores = {client: float(score) for client, score in per_client.items()}
    return ResultRow(
        str(method), str(how), str(size), per_client=scores, **{key: float(n) for key, n in numbers.items()}
    )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} must be a JSON file of a run, but it cannot be read: {error}.") from error
