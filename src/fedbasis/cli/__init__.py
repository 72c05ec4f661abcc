"""The command line: the commands alone print. A user's mistake gets one sentence on stderr and exit code 2."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedbasis.cli.bases import bases
from fedbasis.cli.bundle import bundle
from fedbasis.cli.console import console, say
from fedbasis.cli.export import export
from fedbasis.cli.features import features
from fedbasis.cli.federation import federation
from fedbasis.cli.reproduce import reproduce
from fedbasis.cli.serving import OwnNetwork, Trust, personalize, predict
from fedbasis.cli.start import init, weights
from fedbasis.cli.tune import tune
from pflbed import cache_command
from pflbed.errors import InputError
from pflbed.terminal import QuietOption, VerboseOption, VersionOption, reflow, run, say_json, writable

app = typer.Typer(
    name="fedbasis",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Personal image classifiers for clients nobody has seen before.

    Many clients learn a few shareable [bold]basis[/bold] models together; a new client then learns only how to
    combine them, on its own few images, and gets one ordinary network that fits it.

    Start with [bold]fedbasis demo[/bold]. Then: [bold]train[/bold] bases from a configuration,
    [bold]personalize[/bold] them for a folder of images, [bold]predict[/bold] with the result; [bold]report[/bold] on
    runs or [bold]compare[/bold] two of them; [bold]reproduce[/bold] the paper's tables and figures, and
    [bold]tune[/bold] the methods that they compare.

    Exit codes: 0 done, 2 something must be corrected (one sentence says what), 70 a bug, 130 stopped with Ctrl-C.""",
)


class EngineName(StrEnum):
    """Who trains clients."""

    auto = "auto"
    serial = "serial"
    pool = "pool"
    ray = "ray"


class Tracker(StrEnum):
    """Who can follow a training."""

    tensorboard = "tensorboard"


@app.callback()
def _main(version: VersionOption = False, quiet: QuietOption = False, verbose: VerboseOption = False) -> None:
    pass


@app.command()
def demo(
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split, the initial model and the order of images.")] = 0,
    out: Annotated[Path, typer.Option(help="Where the run folders go.")] = Path("runs"),
    report: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    fast: Annotated[
        bool, typer.Option("--fast", help="About half a minute, to try the installation; too short to learn.")
    ] = False,
) -> None:
    """Train FedAvg and FedBasis on the embedded Digits-4, serve every new client, print a table, write a report.

    After a stop, the same command resumes it.
    """
    from fedbasis.cli.display import LEGEND, Live, results_table
    from fedbasis.experiment import prepare
    from fedbasis.experiment.demo import experiments, export_client, next_commands
    from fedbasis.experiment.jobs import execute_all
    from fedbasis.methods import find_method
    from fedbasis.report.runs import RunData

    plans = experiments(seed, fast)
    writable(out)
    _report_fits(report)
    with Live(console) as live:
        listeners = [live.listener(find_method(plan.method_name).about.title) for plan in plans]
        prepared = prepare(plans[0], listeners[0])
        benchmark = prepared.benchmark
        table = benchmark.table
        say(
            f"Digits-4: {len(table)} images, {len(table.domain_names)} domains ({', '.join(table.domain_names)}), "
            f"{len(benchmark.participating)} participating and {len(benchmark.new)} new clients (seed {seed})."
        )
        runs = execute_all(plans, out, listeners)
    rows = [row for run in runs for row in RunData(run).rows]
    title = f"Personalized accuracy (%) of {len(benchmark.new)} new clients"
    console.print(results_table(rows, plans[0].data.sizes, title))
    say(LEGEND)
    _report(runs, report)
    client = export_client(prepared.clients, out / f"new-client-{runs[-1].folder.name.rpartition('-')[2]}")
    if not fast:
        _page(runs[-1].folder, client, report.with_name("fit.html"))
    say("Next, with the images of a new client:")
    for command in next_commands(runs[-1].folder, client, out, report):
        say(f"  {command}")


def _report(runs: list[Any], path: Path) -> None:
    from fedbasis.report import write_report

    write_report(runs, path)
    say(f"Report: {path}")


def _page(run: Path, client: Path, path: Path) -> None:
    """Write the page that personalizes in a browser, or say how to get it: it needs packages and npm."""
    from fedbasis.edge.page import write_page

    say("Writing the page that personalizes in a browser ...")
    try:
        write_page(run, path, title="Digits, as you write them", examples=client)
    except InputError as error:
        say(f"No page: {error} Then run: fedbasis export {run} --to page --out {path}")
        return
    say(f"Page: {path}")


def _report_fits(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"The report must be a file, but {path} is a folder; add a name such as report.html.")
    writable(path.parent)


@app.command()
def train(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="The experiment; 'fedbasis init' writes one.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Take the images from here: a folder <domain>/<class>/<image>, or a benchmark of 'pflbed build'."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Pretrained weights: tiny-imagenet, or a safetensors file; see 'fedbasis weights'."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Use this seed instead of the configuration's.")] = None,
    engine: Annotated[
        EngineName | None,
        typer.Option(
            help="Where clients are trained: here, in a pool of processes, or on a Ray cluster; same results."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; default: one per core, or two per GPU.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps ...; auto takes a GPU if there is one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the run folder goes.")] = Path("runs"),
    report: Annotated[Path | None, typer.Option(help="Also write a report of the run to this file.")] = None,
    track: Annotated[
        Tracker | None, typer.Option(help="Also write every round's numbers for this program, into the run folder.")
    ] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="List every key of a configuration with its default and meaning, and stop.")
    ] = False,
) -> None:
    """Train a method, publish its bases, serve and score every new client.

    The run is a folder named by the hash of its configuration. The same command resumes it; 'done' marks its end.
    """
    from fedbasis.cli.display import LEGEND, Live, results_table, results_title
    from fedbasis.experiment import config as configuration
    from fedbasis.experiment import execute, prepare
    from fedbasis.methods import find_method
    from fedbasis.report.runs import RunData, sizes_of
    from fedbasis.training.events import to_all

    if keys:
        _print_keys()
        return
    if config is None:
        raise InputError("Training needs a configuration, but none was given; write one with 'fedbasis init FOLDER'.")
    experiment = configuration.read(config)
    changed = experiment.as_dict()
    if data is not None:
        changed["data"]["source"] = data
    if weights is not None:
        changed["model"]["weights"] = weights
    if seed is not None:
        changed["seed"] = seed
    for key, value in (("engine", engine), ("workers", workers), ("device", device)):
        if value is not None:
            changed["machine"][key] = value
    experiment = configuration.parse(changed, str(config))
    writable(out)
    if report is not None:
        _report_fits(report)
    with Live(console) as live:
        emit = live.listener(find_method(experiment.method_name).about.title)
        if track is not None:
            from fedbasis.experiment.tensorboard import FOLDER, TensorBoardLog

            emit = to_all(emit, TensorBoardLog())
        prepared = prepare(experiment, emit)
        run = execute(prepared, out, emit)
    trained = RunData(run)
    console.print(results_table(trained.rows, sizes_of([trained]), results_title(trained.config)))
    say(LEGEND)
    say(f"Run: {run.folder}")
    say(f"Bases: {run.bases}")
    if track is not None:
        follow = f"Follow it with: tensorboard --logdir {run.folder / FOLDER}"
        say(follow)
    if report is not None:
        _report([run], report)


app.command()(init)
app.add_typer(weights, name="weights")
app.command()(bases)
app.command()(bundle)
app.command()(features)
app.command()(export)
app.command()(personalize)
app.command()(predict)


def _print_keys() -> None:
    from fedbasis.experiment.starter import keys

    last = None
    for section, key, default, meaning in keys():
        if section != last:
            console.print()
            if section:
                say(f"[{section}]")
            last = section
        say(f"{key} = {default}", "bold")
        console.print(f"    {meaning}", highlight=False, markup=False)


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A run folder, bases, a personal model, or a benchmark.")],
    trust: Trust = False,
    network: OwnNetwork = None,
) -> None:
    """Show what a folder holds: a run's state and results, an artifact's card and bases, a benchmark's clients."""
    from fedbasis.cli.inspection import describe_folder

    for part in describe_folder(path, trust, network):
        console.print(part, highlight=False, markup=False, soft_wrap=not isinstance(part, Table))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Run folders, or folders that hold them.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    files: Annotated[Path | None, typer.Option(help="Also write every table here, as markdown, csv and LaTeX.")] = None,
) -> None:
    """Write one page about any runs, finished or not; runs that differ by their seed alone become one row."""
    from fedbasis.report import find_runs, write_files
    from fedbasis.report.page import table_sections

    found = find_runs(runs)
    _report_fits(out)
    if files is not None:
        writable(files)
        write_files(table_sections(found), files)
    _report(found, out)
    if files is not None:
        say(f"Tables: {files / 'tables'}")


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder: A.")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="Another one on the same clients: B.")],
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one json object, scores as shares.")] = False,
) -> None:
    """Show two runs side by side: what was set differently, and who serves the same new clients better."""
    from fedbasis.report.compare import compare, side_by_side
    from fedbasis.training.runs import Run

    comparison = compare(Run(first), Run(second))
    if as_json:
        say_json(comparison.as_dict())
        return
    for part in side_by_side(comparison):
        console.print(part, highlight=False, markup=False, soft_wrap=not isinstance(part, Table))


@app.command()
def methods(
    markdown: Annotated[bool, typer.Option("--markdown", help="As the table of docs/explanation/methods.md.")] = False,
) -> None:
    """List the methods: their paper, what is sent, what stays on a client, how a new client is served."""
    from fedbasis.cli.display import methods_markdown
    from fedbasis.methods import known_methods
    from fedbasis.serving.personalize import all_ways

    if markdown:
        sys.stdout.write(methods_markdown())
        return
    for name, method in known_methods().items():
        table = Table(
            title=f"{name} ({method.about.paper})", title_justify="left", title_style="bold", show_header=False
        )
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row("a client sends", method.about.sends)
        table.add_row("it keeps", method.about.keeps)
        table.add_row("a new client gets", method.about.new_client)
        table.add_row("ways to personalize", ", ".join(all_ways(method)))
        table.add_row("evaluated by default", ", ".join(method.ways.default))
        console.print(table)


app.command()(reproduce)
app.command()(tune)
app.add_typer(federation, name="federation")
app.add_typer(cache_command.app, name="cache")
reflow(app)


def main() -> None:
    """Run the command line; turn what a user can mend into one sentence and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if os.name == "nt":  # file locks and limits of processes are those of Unix
        sys.exit("fedbasis: Training and serving need Linux or macOS, but this is Windows; use WSL.")
    run(app, "fedbasis", "Stopped. No unfinished result was left behind; the same command resumes a training.")
