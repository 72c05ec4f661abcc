"""The command ``fedbasis reproduce``: plan, show the plan or carry it out with progress over all of it, report."""

import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from pflbed.errors import InputError
from pflbed.terminal import writable


class ScaleName(StrEnum):
    """How large."""

    smoke = "smoke"
    cpu = "cpu"
    paper = "paper"


console = Console(emoji=False)
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names or numbers of tables and figures, or all.")]
Places = Annotated[
    list[str] | None,
    typer.Option(help="A folder that holds the datasets, or DATASET=FOLDER for one of them; may be repeated."),
]


def reproduce(
    names: Names,
    scale: Annotated[ScaleName, typer.Option(help="smoke: seconds; cpu: two cores; paper: its own settings.")] = (
        ScaleName.smoke
    ),
    data: Places = None,
    cifar: Annotated[str | None, typer.Option(help="The same as --data cifar10=FOLDER.")] = None,
    weights: Annotated[str | None, typer.Option(help="Pretrained weights (safetensors) of the network.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds, from 0; unset: the scale's own.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these where methods are compared, with commas.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once, each on one core; 1: one on all cores.")] = 1,
    out: Annotated[Path, typer.Option(help="Where runs, report.html, tables and figures go.")] = Path("reproduced"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and its time; run nothing.")] = False,
) -> None:
    """Run a table or a figure of the paper by name and put the paper's numbers beside the measured ones.

    Runs that several of them need are done once. Stopped half-way, the same command goes on where it was.
    """
    from fedbasis.studies import studies
    from fedbasis.studies.base import Setup
    from fedbasis.studies.plan import plan
    from fedbasis.studies.run import carry_out_plan, estimates, workers_of_one, write_all
    from fedbasis.studies.scales import SCALES

    chosen, size = studies(names), SCALES[scale.value]
    setup = Setup(
        size, _places(data or [], cifar), weights, tuple(range(seeds or size.seeds)), _methods(methods), not dry_run
    )
    items = plan(chosen, setup)
    if not dry_run:
        setup.require_places()
        writable(out)
    seconds = estimates(items, out)
    if dry_run:
        console.print(_plan_table(items, seconds, size.what))
        side_by_side = jobs if jobs > 1 else workers_of_one(items)
        console.print(
            f"In all about {_time(sum(seconds))} on one core, {_time(sum(seconds) / side_by_side)} with --jobs {jobs}"
            f"{f' (a run at a time, its clients on {side_by_side} cores)' if side_by_side > jobs else ''}."
        )
        return
    with _Progress(items, seconds) as progress:
        done = carry_out_plan(items, out, jobs, progress.observer, progress.ended)
    for item, error in done.failed:
        name = f"[red]{item.request.name} on {item.request.testbed}, seed {item.request.seed}:[/red]"
        console.print(f"{name} {escape(str(error))}", soft_wrap=True)
    if items and not done.runs:
        raise InputError(
            f"One of {len(items)} runs at least must end well, but none did (see above); no report is written, and the "
            "same command tries them again."
        )
    command = _command(names, scale.value, setup, seeds, jobs)
    for section in write_all(chosen, setup, done, out, command):
        console.print(f"\n[bold]{section.title}[/bold] ({section.name})")
        for paragraph in section.text:
            console.print(f"  {paragraph}", highlight=False, markup=False, soft_wrap=True)
    written = f"\nReport: {out / 'report.html'}\nTables and figures: {out}"
    console.print(written, highlight=False, markup=False, soft_wrap=True)
    if done.failed:
        raise InputError(
            f"All {len(items)} runs must end well, but {len(done.failed)} did not (see above); "
            "the tables lack them, and the same command tries them again."
        )


def _command(names: Sequence[str], scale: str, setup: Any, seeds: int | None, jobs: int) -> str:
    """Write down what was typed for whoever reads the results, who has folders of their own."""
    places = [f"--data {f'{name}=' if name else ''}{Path(folder).name}" for name, folder in setup.places.items()]
    weights = [f"--weights {Path(setup.weights).name}"] if setup.weights else []
    methods = [f"--methods {','.join(setup.methods)}"] if setup.methods else []
    numbers = [*([f"--seeds {seeds}"] if seeds else []), *([f"--jobs {jobs}"] if jobs > 1 else [])]
    return " ".join(["fedbasis reproduce", *names, "--scale", scale, *places, *weights, *methods, *numbers])


def _places(given: Sequence[str], cifar: str | None) -> dict[str, str]:
    """Read ``FOLDER`` and ``DATASET=FOLDER``."""
    from pflbed.sources import SOURCES

    places = {}
    for text in (*given, *([f"cifar10={cifar}"] if cifar else [])):
        name, equals, folder = text.partition("=")
        if equals and name not in SOURCES:
            raise InputError(f"--data DATASET=FOLDER must name one of {', '.join(SOURCES)}, but it names '{name}'.")
        places[name if equals else ""] = folder if equals else text
    return places


def _methods(given: str | None) -> tuple[str, ...] | None:
    from fedbasis.methods import METHODS

    if given is None:
        return None
    names = tuple(name.strip() for name in given.split(","))
    for name in names:
        if name not in METHODS:
            raise InputError(f"--methods must name methods, but '{name}' is none; the names are {', '.join(METHODS)}.")
    return names


def _plan_table(items: Sequence[Any], seconds: Sequence[float], what: str) -> Table:
    table = Table(title=f"{len(items)} runs: {what}", title_justify="left", title_style="bold")
    for name in ("run", "dataset", "seed", "for", "about"):
        table.add_column(name, justify="right" if name in ("seed", "about") else "left", overflow="fold")
    for item, each in zip(items, seconds, strict=True):
        method = item.experiment.method_name
        name = method if item.request.name == method else f"{method} ({item.request.name})"
        table.add_row(
            name, item.request.testbed, str(item.request.seed), ", ".join(item.studies), _time(each) if each else "done"
        )
    return table


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class _Progress:
    """One bar over the whole plan, in which a run counts by its estimated time, and the time left."""

    def __init__(self, items: Sequence[Any], seconds: Sequence[float]) -> None:
        self._items, self._seconds = items, [max(each, 0.01) for each in seconds]
        self._done = [0.0] * len(items)
        self._count, self._began = 0, time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(30), TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(), TextColumn("{task.fields[left]}"), console=console, transient=True,
            disable=not console.is_terminal,
        )  # fmt: skip
        self._task: TaskID = self._bar.add_task("", total=sum(self._seconds), left="")

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def observer(self, number: int, item: Any) -> Any:
        """Watch one run."""
        from fedbasis.cli.display import ProgressShare

        return ProgressShare(lambda share: self._moved(number, share))

    def ended(self, number: int) -> None:
        """Count a run that ended."""
        self._count += 1
        self._moved(number, 1.0)
        if not console.is_terminal:
            request = self._items[number].request
            run = f"{request.name} on {request.testbed}, seed {request.seed}"
            line = f"{self._count}/{len(self._items)}  {run}  {self._left()}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _moved(self, number: int, share: float) -> None:
        self._done[number] = share * self._seconds[number]
        request = self._items[number].request
        text = f"{self._count}/{len(self._items)} runs  {request.name} on {request.testbed}"
        self._bar.update(self._task, completed=sum(self._done), description=text, left=self._left())

    def _left(self) -> str:
        share = sum(self._done) / sum(self._seconds)
        passed = time.monotonic() - self._began
        return f"{_time(passed / share - passed)} left" if 0 < share < 1 else ""
