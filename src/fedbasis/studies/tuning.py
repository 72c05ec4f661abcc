"""Choose every method's settings on the tuning part of a dataset, with the same number of tries for every method.

A try is an ordinary run on the tuning part: other images than those of any table, and other seeds. Its score is the
mean personalized accuracy (Last) of that part's clients over the sizes and the method's ways. All tries personalize at
one rate. First the learning rates of training are tried, then the method's own settings at the best of these. The
winner then personalizes those clients once more, at every rate and with all normalization statistics: for every way,
the best of these is what the tables use.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedbasis.methods import find_method
from fedbasis.networks.statistics import Statistics
from fedbasis.report.runs import RunData
from fedbasis.serving.personalize import UNTRAINED, split_way
from fedbasis.studies.base import RunRequest, Setup
from fedbasis.studies.candidates import BY_RATE, TUNABLES, Candidate, Tunable
from fedbasis.studies.new_clients import main_ways, sizes
from fedbasis.studies.plan import Item
from fedbasis.studies.run import Done
from fedbasis.studies.scales import Scale
from fedbasis.studies.tuned import ServingTry, Try, Tuned, TunedMethod, by_section, file_name, read_tuned
from fedbasis.training.rounds import DivergedError
from fedbasis.training.runs import Run
from pflbed.errors import InputError, did_you_mean
from pflbed.manifest import installed_version

FIRST_SEED = 1000
"""Tables count their seeds from 0."""


@dataclass(frozen=True)
class PlannedTry:
    """One try of one method: a run for every seed."""

    tunable: Tunable
    candidate: Candidate
    requests: tuple[RunRequest, ...]


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


def tries(setup: Setup, testbed: str, tunable: Tunable, best: int = 0) -> list[PlannedTry]:
    """Plan all tries of a method, where ``best`` is the number of the best one of its learning rates."""
    bed = setup.testbed(testbed).personalize
    serve: dict[str, Any] = {
        "ways": list(scored_ways(setup, testbed, tunable)),
        "rates": [sorted(bed["rates"])[len(bed["rates"]) // 2]],
    }
    if "statistics" in bed:
        serve["statistics"] = ["frozen", "own"]  # a third of the work less: "shrunk" is between the two
    return [
        PlannedTry(tunable, one, _requests(setup, testbed, tunable, one, serve, f"{tunable.name}, try {number + 1}"))
        for number, one in enumerate(tunable.candidates(best))
    ]


def _requests(
    setup: Setup, testbed: str, tunable: Tunable, candidate: Candidate, serve: Mapping[str, Any], name: str
) -> tuple[RunRequest, ...]:
    """Plan runs on the tuning part with a candidate's settings, one for every seed."""
    bed, sections = setup.testbed(testbed), by_section(candidate)
    settings = sections.pop("method", {})
    personalize = {
        **sections.get("personalize", {}),
        "whom": "new" if bed.data.get("new_clients", 1) else "participating",
        "validate_every": bed.personalize["epochs"],  # the score is that of the last epoch
        **serve,
    }
    changes: dict[str, Any] = {**sections, "data": bed.tuning, "personalize": personalize}
    plain = replace(setup, tuned=False)
    return tuple(plain.request(testbed, tunable.name, seed, name, settings=settings, **changes) for seed in setup.seeds)


def items(planned: Iterable[PlannedTry]) -> list[Item]:
    """Turn tries into runs; those that share their training follow each other."""
    groups: dict[str, list[Item]] = {}
    for one in planned:
        for request in one.requests:
            item = Item(request, (), (one.tunable.name,))
            groups.setdefault(item.training_key, []).append(item)
    return [item for group in groups.values() for item in group]


def tune(
    setup: Setup,
    testbed: str,
    chosen: Sequence[Tunable],
    carry_out: Callable[[list[Item]], Done],
    command: str,
    known: Mapping[str, TunedMethod],
) -> tuple[dict[str, TunedMethod], list[tuple[Item, Exception]]]:
    """Try the learning rates, then the methods' own settings at the best of them, then how the winners serve clients.

    Args:
        setup: Scale, data and seeds.
        testbed: The dataset.
        chosen: What to tune.
        carry_out: Runs a plan.
        command: The command line, for the log.
        known: What an earlier log says; its tries with the same settings and seeds are not run again.

    Returns:
        The methods of which all runs ended well, and the runs that did not.
    """
    failed: list[tuple[Item, Exception]] = []
    runs: dict[str, Run | None] = {}  # None: training diverged
    before = {name: method for name, method in known.items() if method.seeds == list(setup.seeds)}

    def ended_well(planned: Mapping[str, Sequence[PlannedTry]]) -> list[Tunable]:
        wanted = [one for of_method in planned.values() for one in of_method]
        done = carry_out(items(wanted)) if wanted else Done()
        for item, error in done.failed:
            if isinstance(error, DivergedError):
                runs[item.request.key] = None
            else:
                failed.append((item, error))
        runs.update(done.runs)
        return [one for one in chosen if one.name in planned and complete(planned[one.name], runs)]

    def in_log(one: PlannedTry) -> Try | None:
        old = before.get(one.tunable.name)
        return next((each for each in old.tries if each.settings == dict(one.candidate)), None) if old else None

    def carried_out(planned: Mapping[str, Sequence[PlannedTry]]) -> list[Tunable]:
        return ended_well({name: [one for one in mine if not in_log(one)] for name, mine in planned.items()})

    def judged(planned: Sequence[PlannedTry]) -> TunedMethod:
        scored = [in_log(one) or judge(setup, testbed, one, runs) for one in planned]
        best = max(range(len(scored)), key=lambda number: (scored[number].score, -number))
        version = installed_version()
        return TunedMethod(winner=best, tries=scored, seeds=list(setup.seeds), version=version, command=command)

    first = {one.name: tries(setup, testbed, one)[: len(BY_RATE)] for one in chosen}
    every = {one.name: tries(setup, testbed, one, judged(first[one.name]).winner) for one in carried_out(first)}
    winners = {one.name: judged(every[one.name]) for one in carried_out(every)}
    found, serving = {}, dict[str, list[PlannedTry]]()
    for one in (one for one in chosen if one.name in winners):
        winner, old = winners[one.name], before.get(one.name)
        if old and old.settings == winner.settings and _served_alike(setup, testbed, one, old):
            found[one.name] = winner.model_copy(update={"serving": old.serving})
        else:
            requests = serving_requests(setup, testbed, one, winner.settings)
            serving[one.name] = [PlannedTry(one, winner.settings, requests)]
    for one in ended_well(serving):
        served = [runs[request.key] for request in serving[one.name][0].requests]
        scores = judge_serving(setup, testbed, one, [RunData(run) for run in served if run is not None])
        found[one.name] = winners[one.name].model_copy(update={"serving": scores})
    return {one.name: found[one.name] for one in chosen if one.name in found}, failed


def served_ways(setup: Setup, testbed: str, tunable: Tunable) -> tuple[str, ...]:
    """Return the ways that the tables show, which get a rate and statistics of their own."""
    shown = main_ways(setup.scale, tunable.name) if setup.testbed(testbed).data.get("new_clients", 1) else ()
    return tuple(dict.fromkeys((*shown, *scored_ways(setup, testbed, tunable))))


def serving_rates(setup: Setup, testbed: str) -> list[float]:
    """Return the learning rates of personalization that the winner is tried with."""
    bed = setup.testbed(testbed)
    return sorted({*bed.personalize["rates"], *bed.further_rates})


def _served_alike(setup: Setup, testbed: str, tunable: Tunable, log: TunedMethod) -> bool:
    """Whether a log tried the rates of now for all ways of now; a way that needs none was tried with one."""
    rates = set(serving_rates(setup, testbed))
    ways = [how for how in served_ways(setup, testbed, tunable) if how not in UNTRAINED]
    tried = [{one.rate for one in log.serving.get(how, [])} for how in ways]
    return all(mine == rates or len(mine) == 1 for mine in tried)


def serving_requests(setup: Setup, testbed: str, tunable: Tunable, winner: Candidate) -> tuple[RunRequest, ...]:
    """Plan the winner's personalization at every rate and with all statistics; its training is reused.

    A method whose tables show only what trains nothing has nothing to choose.
    """
    shown = dict.fromkeys(split_way(how)[0] for how in served_ways(setup, testbed, tunable))
    ways = [way for way in shown if way not in UNTRAINED]
    if not ways:
        return ()
    serve = {"ways": ways, "rates": serving_rates(setup, testbed)}
    return _requests(setup, testbed, tunable, winner, serve, f"{tunable.name}, serving")


def judge_serving(setup: Setup, testbed: str, tunable: Tunable, runs: Sequence[RunData]) -> dict[str, list[ServingTry]]:
    """Score every rate and statistics of every way by the clients' mean Last accuracy, over sizes and seeds."""
    found: dict[str, list[ServingTry]] = {}
    for how in served_ways(setup, testbed, tunable):
        way, fixed = split_way(how)
        scores: dict[tuple[float, Statistics], list[float]] = {}
        for run in runs:
            for (tried, _, rate, statistics), clients in run.trials.items():
                if tried == way and fixed in (None, statistics):
                    mean = fmean(last for last, _ in clients.values())
                    scores.setdefault((rate, statistics), []).append(mean)  # type: ignore[arg-type]
        if scores:
            found[how] = [
                ServingTry(rate=rate, statistics=statistics, score=fmean(values))
                for (rate, statistics), values in sorted(scores.items())
            ]
    return found


def judge(setup: Setup, testbed: str, planned: PlannedTry, runs: Mapping[str, Run | None]) -> Try:
    """Score a try. A run that is None diverged, and so did its try: that one has the score 0."""
    ways, names = scored_ways(setup, testbed, planned.tunable), sizes(setup, testbed)
    settings = dict(planned.candidate)
    done = [run for request in planned.requests if (run := runs[request.key]) is not None]
    if len(done) < len(planned.requests):
        return Try(settings=settings, scores={}, score=0.0, diverged=True)
    scores: dict[str, list[float]] = {}
    trials = [run.trials for run in map(RunData, done)]
    for way in ways:  # with the better statistics: validation images of so few clients often choose the worse
        by_statistics: dict[str, dict[str, list[float]]] = {}
        for tried in trials:
            for (how, size, _, statistics), clients in tried.items():
                if how == way and size in names:
                    mean = fmean(last for last, _ in clients.values())
                    by_statistics.setdefault(statistics, {}).setdefault(f"{way}, {size}", []).append(mean)
        better = max(by_statistics, key=lambda one: fmean(map(fmean, by_statistics[one].values())))
        scores.update(by_statistics[better])
    score = fmean(fmean(values) for values in scores.values())
    return Try(settings=settings, scores=scores, score=score, runs=[run.folder.name for run in done])


def complete(planned: Sequence[PlannedTry], runs: Mapping[str, Run | None]) -> bool:
    """Whether every run of every try ended, by divergence or well."""
    return all(request.key in runs for one in planned for request in one.requests)


def earlier(setup: Setup, testbed: str, folder: Path) -> dict[str, TunedMethod]:
    """Return what the log of a folder says, which must be of the same clients."""
    path = folder / file_name(setup.scale.name, testbed)
    log = read_tuned(path) if path.exists() else None
    wanted = json.dumps(_tuning_data(setup, testbed), sort_keys=True)
    if log and json.dumps(log.data, sort_keys=True) != wanted:
        raise InputError(
            f"The log {path} must be of the same clients, but it has {json.dumps(log.data)}; choose another --out."
        )
    return log.methods if log else {}


def _tuning_data(setup: Setup, testbed: str) -> dict[str, Any]:
    bed = setup.testbed(testbed)
    return {**bed.data, **(bed.tuning or {})}


def merged(setup: Setup, testbed: str, folder: Path, found: Mapping[str, TunedMethod]) -> Tuned:
    """Return the log of a folder with these methods added, or in the place of older ones."""
    both = {**earlier(setup, testbed, folder), **found}
    ordered = {name: both[name] for name in TUNABLES if name in both}
    return Tuned(scale=setup.scale.name, testbed=testbed, data=_tuning_data(setup, testbed), methods=ordered)


def serving_in_words(method: TunedMethod) -> str:
    """Write the rate and the statistics of every way; nothing where none were tuned."""
    return ", ".join(f"{way} at {one.rate:g} {one.statistics}" for way, one in method.chosen.items())


def in_words(settings: Candidate) -> str:
    """Write settings as TOML would; none are the method's own."""
    return ", ".join(f"{key} = {value}" for key, value in settings.items()) or "as it is"


def score_in_words(one: Try) -> str:
    """Write the score of a try in %."""
    return "diverged" if one.diverged else f"{100 * one.score:.1f}"


def as_markdown(log: Tuned) -> str:
    """Write every try of a log as a table, the winner in bold."""
    lines = ["| method | settings | accuracy (%) |", "| --- | --- | ---: |"]
    for name, method in log.methods.items():
        for number, one in enumerate(method.tries):
            mark = "**" if number == method.winner else ""
            cells = (f"`{name}`" if not number else "", in_words(one.settings), score_in_words(one))
            lines.append("| " + " | ".join(f"{mark}{cell}{mark}" if cell else "" for cell in cells) + " |")
        if method.serving:
            lines.append(f"| | serves new clients: {serving_in_words(method)} | |")
    return "\n".join(lines)
