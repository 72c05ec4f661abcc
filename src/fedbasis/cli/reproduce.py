"""The command ``fedbasis reproduce``: show a plan, or run it with one progress bar and write the report."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedbasis.cli.console import console, say, shows_progress
from pflbed.errors import InputError
from pflbed.terminal import writable


class ScaleName(StrEnum):
    """The scales of the studies."""

    smoke = "smoke"
    cpu = "cpu"
    photo = "photo"
    paper = "paper"


Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="Names or numbers of tables and figures, such as table-2, or all."),
]
Places = Annotated[
    list[str] | None,
    typer.Option(help="A folder with the datasets, or DATASET=FOLDER for one of them; may be repeated."),
]


def reproduce(
    names: Names,
    scale: Annotated[
        ScaleName,
        typer.Option(help="smoke: seconds; cpu: two cores; photo: an ImageNet network on two cores; paper: a GPU."),
    ] = (ScaleName.smoke),
    data: Places = None,
    cifar: Annotated[str | None, typer.Option(help="The folder of CIFAR-10 and CIFAR-100.")] = None,
    weights: Annotated[str | None, typer.Option(help="Pretrained weights (safetensors) of the network.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds, from 0; unset: that of each result.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Compare only these methods, separated by commas.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time, each on one core; 1: one on all cores.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of runs, report.html, tables and figures.")] = Path("reproduced"),
    finished: Annotated[
        bool, typer.Option("--finished", help="Train nothing: write what can be written from the finished runs.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, done and to do; run nothing.")] = False,
) -> None:
    """Reproduce a table or a figure of the paper by name, with the paper's numbers next to the measured ones.

    Runs that several tables or figures need are trained once. After a stop, the same command resumes the runs.
    """
    from fedbasis.cli.display import LEGEND, grid_table
    from fedbasis.studies import STUDIES, studies
    from fedbasis.studies.base import Setup
    from fedbasis.studies.plan import plan
    from fedbasis.studies.run import carry_out_plan, is_finished, read_finished, write_all
    from fedbasis.studies.scales import SCALES

    chosen, size = studies(names), SCALES[scale.value]
    setup = Setup(
        size, places_of(data or [], cifar), weights, tuple(range(seeds or 1)), _methods(methods), not dry_run,
        seeds_by_study=seeds is None,
    )  # fmt: skip
    items = plan(chosen, setup)
    if not dry_run:
        setup.require_places()
        writable(out)
    if dry_run:
        done_before = is_finished(items, out)
        console.print(plan_table(items, done_before, size.what))
        console.print(f"{len(items)} runs: {sum(done_before)} done, {len(items) - sum(done_before)} to do.")
        return
    if finished:
        done = read_finished(items, out)
        if items and not done.runs:
            raise InputError(
                f"--finished needs at least one finished run of these results below {out / 'runs'}, but there is none; "
                "leave it out to train them."
            )
        say(f"{len(done.runs)} of {len(items)} runs are finished; the others are missing in the tables.")
    else:
        with PlanProgress(items) as progress:
            done = carry_out_plan(items, out, jobs, progress.observer, progress.ended)
    for item, error in done.failed:
        name = f"[red]{item.request.name} on {item.request.testbed}, seed {item.request.seed}:[/red]"
        console.print(f"{name} {escape(str(error))}", soft_wrap=True)
    if items and not done.runs:
        raise InputError(
            f"At least one of {len(items)} runs must succeed, but none did (see above); no report is written, and the "
            "same command runs them again."
        )
    command = _command(names, scale.value, setup, seeds, jobs) + " --finished" * finished
    missing = [name for name in STUDIES if name not in [study.name for study in chosen]]
    for section in write_all(chosen, setup, done, out, command, missing):
        console.print(f"\n[bold]{section.title}[/bold] ({section.name})")
        for grid in section.tables:
            console.print(grid_table(grid))
        if any("Last" in grid.columns for grid in section.tables):
            say(LEGEND)
        for paragraph in section.text:
            say(f"  {paragraph}")
    console.print()
    say(f"Report: {out / 'report.html'}")
    say(f"Tables and figures: {out}")
    if done.failed:
        raise InputError(
            f"All {len(items)} runs must succeed, but {len(done.failed)} did not (see above); "
            "they are missing in the tables, and the same command runs them again."
        )


def _command(names: Sequence[str], scale: str, setup: Any, seeds: int | None, jobs: int) -> str:
    """Return the command line for the results page, with the names of folders instead of their paths."""
    places = [f"--data {f'{name}=' if name else ''}{Path(folder).name}" for name, folder in setup.places.items()]
    weights = [f"--weights {Path(setup.weights).name}"] if setup.weights else []
    methods = [f"--methods {','.join(setup.methods)}"] if setup.methods else []
    numbers = [*([f"--seeds {seeds}"] if seeds else []), *([f"--jobs {jobs}"] if jobs > 1 else [])]
    return " ".join(["fedbasis reproduce", *names, "--scale", scale, *places, *weights, *methods, *numbers])


def places_of(given: Sequence[str], cifar: str | None) -> dict[str, str]:
    """Return the folders by dataset from ``FOLDER`` and ``DATASET=FOLDER``."""
    from pflbed.sources import SOURCES

    places = {}
    for text in (*given, *([f"cifar10={cifar}", f"cifar100={cifar}"] if cifar else [])):
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
            raise InputError(
                f"--methods must be names of methods, but '{name}' is not; the names are {', '.join(METHODS)}."
            )
    return names


def plan_table(items: Sequence[Any], done: Sequence[bool], what: str) -> Table:
    """List the runs of a plan, done and to do."""
    from fedbasis.studies.variants import VARIANTS

    table = Table(title=f"{len(items)} runs: {what}", title_justify="left", title_style="bold")
    for name in ("run", "dataset", "seed", "for", "state"):
        table.add_column(name, justify="right" if name == "seed" else "left", overflow="fold")
    for item, is_done in zip(items, done, strict=True):
        request, method = item.request, item.experiment.method_name
        named = request.name == method or request.name in VARIANTS
        name = request.name if named else f"{method} ({request.name})"
        state = "done" if is_done else "to do"
        table.add_row(name, request.testbed, str(request.seed), ", ".join(item.studies), state)
    return table


class PlanProgress:
    """One bar for the whole plan, with the same weight for every run; a line per run if there is no terminal."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items, self._done, self._count = items, [0.0] * len(items), 0
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(30), TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True,
            disable=not (shows_progress() and console.is_terminal),
        )  # fmt: skip
        self._task: TaskID = self._bar.add_task("", total=len(items))

    def __enter__(self) -> "PlanProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def observer(self, number: int, item: Any) -> Any:
        """Return the event listener of one run."""
        from fedbasis.cli.display import ProgressShare

        return ProgressShare(lambda share: self._moved(number, share))

    def ended(self, number: int) -> None:
        """Count a completed run."""
        self._count += 1
        self._moved(number, 1.0)
        if shows_progress() and not console.is_terminal:
            request = self._items[number].request
            line = f"{self._count}/{len(self._items)}  {request.name} on {request.testbed}, seed {request.seed}"
            say(line)

    def _moved(self, number: int, share: float) -> None:
        self._done[number] = share
        request = self._items[number].request
        text = f"{self._count}/{len(self._items)} runs  {request.name} on {request.testbed}"
        self._bar.update(self._task, completed=sum(self._done), description=text)
