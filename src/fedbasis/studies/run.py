"""Reproduce tables and figures: carry out a plan, go on after a stop, then write the page, the tables and the figures.

Runs lie below ``out/runs``, each in the folder of its own hash, so a second command finds what a first one did.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedbasis.engines.choice import Machine, devices_of
from fedbasis.experiment import Observer
from fedbasis.experiment.config import Experiment, parse
from fedbasis.experiment.jobs import RunJob, carry_out
from fedbasis.report import write_report
from fedbasis.report.chapter import Chapter
from fedbasis.report.files import write_files
from fedbasis.report.text import write_text
from fedbasis.studies.base import Results, Setup, Study
from fedbasis.studies.outcome import Outcome
from fedbasis.studies.plan import Item, passes, speed_of
from fedbasis.training.runs import Run
from pflbed.errors import InputError

RUNS = "runs"


@dataclass
class Done:
    """What came of a plan."""

    runs: dict[str, Run] = field(default_factory=dict)
    """By the key of what was wanted."""
    failed: list[tuple[Item, Exception]] = field(default_factory=list)


def estimates(items: Sequence[Item], out: Path) -> list[float]:
    """Estimate the seconds of every run: none if it is done, no training if one before it trains alike."""
    speeds: dict[str, float] = {}
    seen: set[str] = set()
    finished = {_settings(experiment) for experiment in _finished(out / RUNS)}
    seconds = []
    for item in items:
        e = item.experiment
        network = str((e.model.name, e.model.options, e.data.resolution))
        if _settings(e) in finished:
            seconds.append(0.0)
        else:
            if network not in speeds:
                speeds[network] = speed_of(e)
            seconds.append(passes(e).seconds(speeds[network], trained_before=item.training_key in seen))
        seen.add(item.training_key)
    return seconds


def _finished(runs: Path) -> Iterator[Experiment]:
    """Read what was done, without a look at the images: enough for an estimate."""
    for run in (Run(folder) for folder in runs.glob("*")):
        if run.done:
            with suppress(OSError, ValueError, InputError):
                yield parse(json.loads(run.config.read_text(encoding="utf-8")))


def _settings(experiment: Experiment) -> str:
    return json.dumps({key: value for key, value in experiment.as_dict().items() if key != "machine"}, sort_keys=True)


def workers_of_one(items: Sequence[Item]) -> int:
    """Return how many clients train at once when one run is done at a time, which then has the machine to itself."""
    machines = {item.experiment.machine.engine: item.experiment.machine for item in items}
    if not machines or "serial" in machines:
        return 1
    (machine,) = machines.values()
    devices = devices_of(Machine(machine.engine, machine.workers, machine.device, machine.threads))
    return len(devices) if set(devices) == {"cpu"} else len(set(devices))  # what shares a device shares its speed


def carry_out_plan(
    items: Sequence[Item], out: Path, jobs: int, watch: Callable[[int, Item], Observer], ended: Callable[[int], None]
) -> Done:
    """Do what is not done yet, ``jobs`` at once; a run that fails does not stop the others."""
    work = [RunJob(item.experiment, item.training_key, ",".join(item.post_steps)) for item in items]
    observers = [watch(number, item) for number, item in enumerate(items)]
    done = Done()
    for number, result in carry_out(work, out / RUNS, observers, jobs):
        if isinstance(result, Exception):
            done.failed.append((items[number], result))
        else:
            done.runs[items[number].request.key] = result
        ended(number)
    return done


def write_all(studies: Sequence[Study], setup: Setup, done: Done, out: Path, command: str) -> list[Chapter]:
    """Turn what was found into sections, and write them as pages and as files; ``command`` is what was typed."""
    found = Results({key: Outcome(run) for key, run in done.runs.items()})
    seeds = f"seed {setup.seeds[0]}" if len(setup.seeds) == 1 else f"seeds 0 to {setup.seeds[-1]}"
    scale = f"Scale {setup.scale.name}: {setup.scale.what}; {seeds}."
    sections = []
    for study in studies:
        section = study.chapter(setup, found)
        sections.append(replace(section, text=[scale, *found.lacking(study.requests(setup)), *section.text]))
    write_files(sections, out)
    write_text(sections, list(done.runs.values()), command, out / "results.md")
    write_report(list(done.runs.values()), out / "report.html", sections)
    return sections
