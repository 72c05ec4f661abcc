"""Choose every method's settings on the tuning part of a dataset, with the same number of tries for every method.

A try is an ordinary run on the tuning part: other images than those of any table, and other seeds. Its score is the
mean personalized accuracy (Last) of that part's clients over the sizes and the method's ways. Within a try, the rate of
personalization is chosen on validation images, as in the tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedbasis.methods import find_method
from fedbasis.report.runs import RunData
from fedbasis.studies.base import RunRequest, Setup
from fedbasis.studies.candidates import TUNABLES, Candidate, Tunable
from fedbasis.studies.new_clients import sizes
from fedbasis.studies.plan import Item
from fedbasis.studies.scales import Scale
from fedbasis.studies.tuned import Try, Tuned, TunedMethod, by_section, file_name, read_tuned
from fedbasis.training.runs import Run
from pflbed.errors import InputError, did_you_mean
from pflbed.manifest import installed_version

FIRST_SEED = 1000
"""Tables count their seeds from 0."""


@dataclass(frozen=True)
class PlannedTry:
    """One try of one method: a run for every seed."""

    tunable: Tunable
    number: int
    requests: tuple[RunRequest, ...]

    @property
    def candidate(self) -> Candidate:
        """Its settings."""
        return self.tunable.candidates[self.number]


def tunables(names: Sequence[str]) -> list[Tunable]:
    """Find what to tune by name, each once."""
    for name in names:
        if name not in TUNABLES:
            hint = did_you_mean(name, list(TUNABLES), cutoff=0.6)
            raise InputError(f"What is tuned must be one of {', '.join(TUNABLES)}, but there is no '{name}'{hint}.")
    return [TUNABLES[name] for name in dict.fromkeys(names)]


def tuned_testbed(scale: Scale, name: str | None) -> str:
    """Return the testbed to tune on, which must have a tuning part; unset: that of the main table."""
    chosen = name or scale.main[0]
    if chosen not in scale.testbeds:
        raise InputError(f"--testbed must be one of {', '.join(scale.testbeds)} at this scale, but it is '{chosen}'.")
    if scale.testbeds[chosen].tuning is None:
        raise InputError(
            f"Settings must be chosen on images that no table shows, but {chosen} at the scale '{scale.name}' has "
            "none: as in the paper, its tables have every image. Tune at the scale cpu."
        )
    return chosen


def scored_ways(setup: Setup, testbed: str, tunable: Tunable) -> tuple[str, ...]:
    """Return the ways that the score is over."""
    ways = tunable.ways or find_method(tunable.method_name).ways.default
    return ways if setup.testbed(testbed).data.get("new_clients", 1) else tunable.participating or ways


def tries(setup: Setup, testbed: str, tunable: Tunable) -> list[PlannedTry]:
    """Plan all tries of a method."""
    bed, plain = setup.testbed(testbed), replace(setup, tuned=False)
    planned = []
    serve = {
        "ways": list(scored_ways(setup, testbed, tunable)),
        "whom": "new" if bed.data.get("new_clients", 1) else "participating",
        "validate_every": bed.personalize["epochs"],  # the score is that of the last epoch
    }
    if "statistics" in bed.personalize:
        serve["statistics"] = ["frozen", "own"]  # a third of the work less: "shrunk" is between the two
    for number, candidate in enumerate(tunable.candidates):
        sections = by_section(candidate)
        settings = sections.pop("method", {})
        changes: dict[str, Any] = {
            **sections,
            "data": bed.tuning,
            "personalize": {**sections.get("personalize", {}), **serve},
        }
        requests = tuple(
            plain.request(
                testbed, tunable.name, seed, f"{tunable.name}, try {number + 1}", settings=settings, **changes
            )
            for seed in setup.seeds
        )
        planned.append(PlannedTry(tunable, number, requests))
    return planned


def items(planned: Sequence[PlannedTry]) -> list[Item]:
    """Turn tries into runs; those that share their training follow each other."""
    runs = [Item(request, (), (one.tunable.name,)) for one in planned for request in one.requests]
    groups: dict[str, list[Item]] = {}
    for item in runs:
        groups.setdefault(item.training_key, []).append(item)
    return [item for group in groups.values() for item in group]


def judge(
    setup: Setup, testbed: str, tunable: Tunable, planned: Sequence[PlannedTry], runs: Mapping[str, Run], command: str
) -> TunedMethod:
    """Score all tries of a method and name the winner."""
    ways, names = scored_ways(setup, testbed, tunable), sizes(setup, testbed)
    judged = []
    for one in planned:
        scores: dict[str, list[float]] = {}
        done = [runs[request.key] for request in one.requests]
        for run in map(RunData, done):
            for way in ways:
                for size in names:
                    row = run.row(way, size)
                    if row is not None:
                        scores.setdefault(f"{way}, {size}", []).append(row.last)
        score = fmean(fmean(values) for values in scores.values())
        folders = [run.folder.name for run in done]
        judged.append(Try(settings=dict(one.candidate), scores=scores, score=score, runs=folders))
    best = max(range(len(judged)), key=lambda number: (judged[number].score, -number))
    return TunedMethod(winner=best, tries=judged, seeds=list(setup.seeds), version=installed_version(), command=command)


def complete(planned: Sequence[PlannedTry], runs: Mapping[str, Run]) -> bool:
    """Whether every run of every try ended well."""
    return all(request.key in runs for one in planned for request in one.requests)


def merged(setup: Setup, testbed: str, folder: Path, found: Mapping[str, TunedMethod]) -> Tuned:
    """Return the log of a folder with these methods added, or in the place of older ones."""
    data = {**setup.testbed(testbed).data, **(setup.testbed(testbed).tuning or {})}
    path = folder / file_name(setup.scale.name, testbed)
    before = read_tuned(path).methods if path.exists() else {}
    both = {**before, **found}
    ordered = {name: both[name] for name in TUNABLES if name in both}
    return Tuned(scale=setup.scale.name, testbed=testbed, data=data, methods=ordered)


def in_words(settings: Candidate) -> str:
    """Write settings as TOML would; none are the method's own."""
    return ", ".join(f"{key} = {value}" for key, value in settings.items()) or "as it is"


def as_markdown(log: Tuned) -> str:
    """Write every try of a log as a table, the winner in bold."""
    lines = ["| method | settings | accuracy (%) |", "| --- | --- | ---: |"]
    for name, method in log.methods.items():
        for number, one in enumerate(method.tries):
            mark = "**" if number == method.winner else ""
            cells = (f"`{name}`" if not number else "", in_words(one.settings), f"{100 * one.score:.1f}")
            lines.append("| " + " | ".join(f"{mark}{cell}{mark}" if cell else "" for cell in cells) + " |")
    return "\n".join(lines)
