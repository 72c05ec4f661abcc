"""The command ``fedbasis tune``: choose methods' settings on the tuning part of a dataset, and show what was chosen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedbasis.cli.console import console, say
from fedbasis.cli.reproduce import Places, PlanProgress, ScaleName, places_of, plan_table
from pflbed.errors import InputError
from pflbed.terminal import writable

Methods = Annotated[
    list[str] | None, typer.Argument(metavar="METHOD...", help="Names of methods, or all; --show without any is all.")
]


def tune(
    methods: Methods = None,
    scale: Annotated[ScaleName, typer.Option(help="smoke: to try the command; cpu: for the tables.")] = ScaleName.smoke,
    testbed: Annotated[str | None, typer.Option(help="The dataset; unset: that of the main table.")] = None,
    data: Places = None,
    weights: Annotated[str | None, typer.Option(help="Pretrained weights (safetensors) of the network.")] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=100, help="Seeds of every try, from 1000 on; tables start at 0.")
    ] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time, each on one core; 1: one on all cores.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the runs, and of the log with all tries.")] = Path("tuning"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, done and to do; run nothing.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Show what was tried and what won: in --out, or in this package.")
    ] = False,
) -> None:
    """Choose settings of methods on a fixed quarter of a dataset, of which no table shows an image.

    Every method has the same number of tries: its settings as they are, two other learning rates, and at the best of
    these nine more over what matters to it. A try is an ordinary run; its score is the mean accuracy of new clients
    after the last epoch, and the highest score wins. The winner then serves those clients at every learning rate of
    personalization and with all normalization statistics, and the best is chosen for each way of personalizing.

    After a stop, the same command resumes. The log <scale>-<testbed>.json in --out has every try, its score and the
    winner; tries that it has already, with the same seeds, are not run again. The tables of 'fedbasis reproduce' use
    the logs in src/fedbasis/studies/tuned.
    """
    from fedbasis.studies.base import Setup
    from fedbasis.studies.candidates import BY_RATE, TRIES
    from fedbasis.studies.run import carry_out_plan, is_finished
    from fedbasis.studies.scales import SCALES
    from fedbasis.studies.tuning import FIRST_SEED, earlier, items, merged, tries, tunables, tuned_testbed
    from fedbasis.studies.tuning import tune as tune_methods

    size = SCALES[scale.value]
    bed = tuned_testbed(size, testbed)
    chosen = tunables(_names(methods or [], show))
    if show:
        _show(_log(scale.value, bed, out), [one.name for one in chosen])
        return
    numbers = tuple(range(FIRST_SEED, FIRST_SEED + seeds))
    setup = Setup(size, places_of(data or [], None), weights, numbers, strict=not dry_run, tuned=False)
    if dry_run:
        runs = items(one for tunable in chosen for one in tries(setup, bed, tunable)[: len(BY_RATE)])
        done_before = is_finished(runs, out)
        console.print(plan_table(runs, done_before, f"tuning, {size.what}: the learning rates"))
        console.print(
            f"{len(runs)} runs: {sum(done_before)} done, {len(runs) - sum(done_before)} to do. Then, at each method's "
            f"best rate, {TRIES - len(BY_RATE)} tries over its own settings, and one run that serves in every way."
        )
        return
    setup.require_places()
    writable(out)

    def carry_out(runs: list[Any]) -> Any:
        with PlanProgress(runs) as progress:
            return carry_out_plan(runs, out, jobs, progress.observer, progress.ended)

    command = _command(chosen, scale.value, bed, setup, seeds)
    found, failed = tune_methods(setup, bed, chosen, carry_out, command, earlier(setup, bed, out))
    for item, error in failed:
        say(f"{item.request.name}, seed {item.request.seed}: {error}")
    if found:
        log = merged(setup, bed, out, found)
        path = log.save(out)
        _show(log, list(found))
        say(f"Log: {path}")
    if failed:
        raise InputError(
            f"All runs must succeed, but {len(failed)} did not (see above); a method that lacks a run has no winner, "
            "and the same command runs it again."
        )


def _names(given: Sequence[str], show: bool) -> list[str]:
    from fedbasis.studies.candidates import TUNABLES

    if "all" in given or (show and not given):
        return list(TUNABLES)
    if not given:
        raise InputError(f"What to tune must be named: all, or some of {', '.join(TUNABLES)}.")
    return list(given)


def _log(scale: str, testbed: str, out: Path) -> Any:
    """Return the log of the folder if it has one, else the package's."""
    from fedbasis.studies.tuned import file_name, read_tuned, shipped

    path = out / file_name(scale, testbed)
    log = read_tuned(path) if path.exists() else shipped(scale, testbed)
    if log is None:
        raise InputError(
            f"There must be a log of tuning {testbed} at the scale {scale} to show, but neither {out} nor this package "
            "has one; run 'fedbasis tune' first."
        )
    return log


def _show(log: Any, names: Sequence[str]) -> None:
    """Print every try, the winner marked."""
    from fedbasis.studies.tuning import in_words, score_in_words, serving_in_words

    table = Table(title=f"Tuning on {log.testbed}, scale {log.scale}", title_justify="left", title_style="bold")
    table.add_column("method", overflow="fold")
    table.add_column("settings", overflow="fold")
    table.add_column("accuracy (%)", justify="right")
    table.add_column("", no_wrap=True)
    for name in (name for name in names if name in log.methods):
        method = log.methods[name]
        for number, one in enumerate(method.tries):
            won = number == method.winner
            style = "bold" if won else None
            cells = (name if not number else "", escape(in_words(one.settings)), score_in_words(one))
            table.add_row(*cells, "won" if won else "", style=style)
        if method.serving:
            table.add_row("", f"serves new clients: {serving_in_words(method)}", "", "")
        table.add_section()
    console.print(table)


def _command(chosen: Sequence[Any], scale: str, testbed: str, setup: Any, seeds: int) -> str:
    """Return the command line for the log, with the names of folders instead of their paths."""
    places = [f"--data {f'{name}=' if name else ''}{Path(folder).name}" for name, folder in setup.places.items()]
    weights = [f"--weights {Path(setup.weights).name}"] if setup.weights else []
    names = [one.name for one in chosen]
    parts = ["fedbasis tune", *names, "--scale", scale, "--testbed", testbed, *places, *weights, f"--seeds {seeds}"]
    return " ".join(parts)
