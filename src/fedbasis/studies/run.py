"""Reproduce tables and figures: execute a plan, then write the report, the tables and the figures.

Runs are below ``out/runs``, each in a folder named by its hash, so the same command resumes them.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedbasis.experiment.config import Experiment, parse
from fedbasis.experiment.jobs import RunJob, carry_out
from fedbasis.report import write_report
from fedbasis.report.chapter import Chapter
from fedbasis.report.files import write_files
from fedbasis.report.runs import RunData
from fedbasis.report.text import write_text
from fedbasis.studies.base import Results, Setup, Study
from fedbasis.studies.plan import Item
from fedbasis.studies.verdicts import Claim
from fedbasis.training.events import Emit
from fedbasis.training.runs import Run
from pflbed.errors import InputError

RUNS = "runs"


@dataclass
class Done:
    """The runs of a plan that ended well, and those that failed."""

    runs: dict[str, Run] = field(default_factory=dict)
    """By the key of the request."""
    failed: list[tuple[Item, Exception]] = field(default_factory=list)


def is_finished(items: Sequence[Item], out: Path) -> list[bool]:
    """Return for every run whether a finished run below ``out`` has the same settings."""
    runs = dict(_finished(out / RUNS))
    return [_settings(item.experiment) in runs for item in items]


def read_finished(items: Sequence[Item], out: Path) -> Done:
    """Read the runs below ``out`` that are finished, and execute none."""
    runs = dict(_finished(out / RUNS))
    found = {item.request.key: runs.get(_settings(item.experiment)) for item in items}
    return Done({key: run for key, run in found.items() if run is not None})


def _finished(runs: Path) -> Iterator[tuple[str, Run]]:
    """Yield finished runs by their settings, without their data."""
    for run in (Run(folder) for folder in sorted(runs.glob("*"))):
        if run.done:
            with suppress(InputError):
                yield _settings(parse(RunData(run).config)), run


def _settings(experiment: Experiment) -> str:
    """Write what a plan and a finished run have in common: not the machine, folders, or what the data say.

    A folder may be elsewhere than it was on the machine of the run. Of a data set of arrays, which may be any, its name
    tells which one it is. Such a data set brings its channels' means and deviations, which a plan lacks.
    """
    settings = {key: value for key, value in experiment.as_dict().items() if key != "machine"}
    data, model = dict(settings["data"]), dict(settings["model"])
    data["source"] = Path(data["source"] or "").name if data["dataset"] == "arrays" else None
    if data["dataset"] == "arrays":
        data |= {"mean": None, "std": None}
    model["weights"] = Path(model["weights"] or "").name
    return json.dumps({**settings, "data": data, "model": model}, sort_keys=True)


def carry_out_plan(
    items: Sequence[Item], out: Path, jobs: int, watch: Callable[[int, Item], Emit], ended: Callable[[int], None]
) -> Done:
    """Execute the runs that are not done yet, ``jobs`` at once; a run that fails does not stop the others."""
    work = [RunJob(item.experiment, item.training_key, ",".join(item.post_steps)) for item in items]
    listeners = [watch(number, item) for number, item in enumerate(items)]
    done = Done()
    for number, result in carry_out(work, out / RUNS, listeners, jobs):
        if isinstance(result, Exception):
            done.failed.append((items[number], result))
        else:
            done.runs[items[number].request.key] = result
        ended(number)
    return done


def write_all(
    studies: Sequence[Study], setup: Setup, done: Done, out: Path, command: str, missing: Sequence[str] = ()
) -> list[Chapter]:
    """Make the chapters and write them as pages and as files; ``command`` is the command line.

    ``missing`` names the results of the paper that were not asked for; the page of text lists them.
    """
    runs = {key: RunData(run) for key, run in done.runs.items()}
    found = Results(runs)
    sections = []
    for study in studies:
        mine = setup.of(study)
        section = study.chapter(mine, found)
        seeds = f"seed {mine.seeds[0]}" if len(mine.seeds) == 1 else f"seeds {mine.seeds[0]} to {mine.seeds[-1]}"
        scale = f"Scale {mine.scale.name}: {mine.scale.what}; {seeds}."
        text = [sentence for sentence in section.text if mine.scale.judges or not isinstance(sentence, Claim)]
        sections.append(replace(section, text=[scale, *found.lacking(study.requests(mine)), *text]))
    write_files(sections, out)
    write_text(sections, list(runs.values()), command, out / "results.md", missing)
    write_report(list(done.runs.values()), out / "report.html", sections)
    return sections
