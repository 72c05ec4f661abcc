"""Runs that differ only in their seed are one row: mean and standard deviation over seeds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from fedbasis.report.names import suffixes
from fedbasis.report.runs import RunData
from fedbasis.serving.evaluation import ResultRow

ClientScores = dict[tuple[str, str], float]
"""Accuracy by population and client: the same name in another split is another client."""


@dataclass(frozen=True, eq=False)
class Group:
    """One method with the same settings, over its seeds."""

    suffix: str
    runs: Sequence[RunData]
    anchor: str
    """The id of its provenance on the page."""

    @property
    def name(self) -> str:
        """The group's name for a reader."""
        return self.runs[0].title + self.suffix

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.runs[0].method

    @cached_property
    def scored(self) -> list[RunData]:
        """The runs with results."""
        return [run for run in self.runs if run.rows]

    @cached_property
    def ways(self) -> list[str]:
        """The ways of personalizing, in the order of the results."""
        return list(dict.fromkeys(how for run in self.scored for how in run.ways()))

    @property
    def clients(self) -> frozenset[str]:
        """The populations that were served; groups can be compared if they are the same."""
        return frozenset(run.population for run in self.scored)

    @property
    def folders(self) -> str:
        """The names of its run folders."""
        return ", ".join(run.folder for run in self.runs)

    def title(self, how: str) -> str:
        """Name one of the group's ways; two that tables call the same get their short names."""
        label = self.runs[0].label
        plain = label(how)
        same = [other for other in self.ways if label(other) == plain]
        return plain + (f" ({how})" if len(same) > 1 else "") + self.suffix

    def rows(self, how: str, size: str) -> list[ResultRow]:
        """Return the scored rows of every seed."""
        return [row for run in self.scored if (row := run.row(how, size))]

    def scores(self, how: str, size: str) -> ClientScores:
        """Return every client's accuracy (Last); a client that several seeds served counts once, by its mean."""
        found: dict[tuple[str, str], list[float]] = {}
        for run in self.scored:
            row = run.row(how, size)
            for client, score in (row.per_client if row else {}).items():
                found.setdefault((run.population, client), []).append(score)
        return {client: fmean(mine) for client, mine in found.items()}


def grouped(runs: Sequence[RunData]) -> list[Group]:
    """Group runs by everything but their seed, in their order; where a seed occurs twice every run is its own."""
    sources = {run.config["data"].get("source"): run.digest for run in runs if run.digest}
    found: dict[str, list[RunData]] = {}
    for run in runs:
        found.setdefault(_settings(run, sources), []).append(run)
    parts: list[list[RunData]] = []
    for mine in found.values():
        mine.sort(key=lambda run: run.seed)
        repeated = len({run.seed for run in mine}) < len(mine)
        parts += [[run] for run in mine] if repeated else [mine]
    named: dict[int, Group] = {}
    for method in dict.fromkeys(run.method for run in runs):
        numbers = [number for number, mine in enumerate(parts) if mine[0].method == method]
        for number, suffix in zip(numbers, suffixes([parts[number][0] for number in numbers]), strict=True):
            named[number] = Group(suffix, parts[number], f"from-{number + 1}")
    return [named[number] for number in range(len(parts))]


def apart(groups: Sequence[Group]) -> list[Group]:
    """Return a group for every run, named by its seed."""
    return [
        replace(group, suffix=f"{group.suffix} · seed {run.seed}", runs=[run]) for group in groups for run in group.runs
    ]


def compared(groups: Sequence[Group]) -> list[Group]:
    """Return the groups that served the same clients, if these are most of those with results; else none."""
    served = [group.clients for group in groups if group.scored]
    common = max(served, key=served.count, default=frozenset())
    if 2 * served.count(common) <= len(served):
        return []
    return [group for group in groups if group.scored and group.clients == common]


def _settings(run: RunData, digests: dict[Any, str]) -> str:
    """Return as text all that runs of one group share; data are identified by their digest, not by their path."""
    source = run.config["data"].get("source")
    config = {key: value for key, value in run.config.items() if key not in ("seed", "machine")}
    config["data"] = {**config["data"], "source": run.digest or digests.get(source, source)}
    return json.dumps(config, sort_keys=True)
