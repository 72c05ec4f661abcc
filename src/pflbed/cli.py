"""The command line of PFLBed: scan, build, show, score, export. Only this module prints."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from pflbed import cache_command
from pflbed.display import client_grid, client_row, count_grid, counts_of, score_grid, summary
from pflbed.errors import InputError
from pflbed.plain_text import counted, one_line
from pflbed.spec import PARTITIONS
from pflbed.terminal import (
    QuietOption,
    VerboseOption,
    VersionOption,
    detail,
    note,
    progress_bar,
    reflow,
    run,
    say,
    say_json,
    writable,
)

app = typer.Typer(
    name="pflbed",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Turn any cross-domain image dataset into a faithful benchmark for personalized federated learning.

    [bold]scan[/bold] a dataset and see its problems, [bold]build[/bold] a benchmark of participating and new clients
    from it, [bold]show[/bold] who has what, [bold]score[/bold] predictions that any framework made,
    [bold]export[/bold] the clients to other tools. No image is copied. The same seed gives the same benchmark.

    DATA is a folder <domain>/<class>/<image>, a csv or parquet table (columns path, class, and optionally domain,
    user, group, split), the folder of a dataset that --source names, or the word [bold]digits4[/bold] for the
    embedded data.

    Exit codes: 0 done, 2 something must be corrected (one sentence says what), 3 'scan' found problems, 70 a bug,
    130 stopped with Ctrl-C.""",
)
app.add_typer(cache_command.app, name="cache")
PROBLEMS = 3
"""The exit code of a scan that found problems."""
SHOWN = 200
"""Clients that are listed without --all."""

Data = Annotated[str, typer.Argument(metavar="DATA", help="A folder, a table, or 'digits4'.")]
SourceName = Annotated[
    str | None,
    typer.Option(help="The dataset: pacs, office-home, gld23k, cifar10, cifar100, cifar100-coarse, femnist."),
]
ImagesFolder = Annotated[
    Path | None, typer.Option(help="Where the paths of a table begin; default: the table's own folder.")
]
Folder = Annotated[Path, typer.Argument(metavar="BENCH", help="A folder that 'pflbed build' wrote.")]


class Partition(StrEnum):
    """How images become clients."""

    dirichlet = "dirichlet"
    dirichlet_client = "dirichlet-client"
    shards = "shards"
    natural = "natural"
    iid = "iid"
    mixture = "mixture"


class Part(StrEnum):
    """Which images are split."""

    all = "all"
    tuning = "tuning"
    tables = "tables"


class Kind(StrEnum):
    """What an export is for."""

    folders = "folders"
    hf = "hf"
    flower = "flower"
    blank = "blank"


@app.callback()
def _main(version: VersionOption = False, quiet: QuietOption = False, verbose: VerboseOption = False) -> None:
    pass


@app.command()
def scan(
    data: Data,
    source: SourceName = None,
    images: ImagesFolder = None,
    names_only: Annotated[
        bool, typer.Option("--names-only", help="Open no image: quick, but finds no broken or doubled ones.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one json object.")] = False,
) -> None:
    """List domains, classes and counts, a digest of the data, and its problems.

    Problems are images that cannot be read, classes that are empty or missing from a domain, and pictures that occur
    twice (which could be in training and in test). The exit code is 3 if there are any, and 0 if there are none.
    --json lists every problem; without it many of one kind are summed up.
    """
    from pflbed.dataset import find
    from pflbed.problems import sentences

    _where_cached()
    with progress_bar("checking images") as report:
        dataset = find(data, source, images)
        table = dataset.table
        problems = dataset.every_problem(None if names_only else dataset.checked(report)[1])
    counts = counts_of(table)
    if as_json:
        by_domain = {
            domain: {name: n for name, n in zip(table.class_names, row, strict=True) if n}
            for domain, row in zip(table.domain_names, counts, strict=True)
        }
        found = {"images": len(table), "digest": table.digest, "counts": by_domain}
        found |= {"problems": [problem.as_json() for problem in problems]}
        found |= {"users": len(table.user_names)} if table.users is not None else {}
        say_json(found)
    else:
        say(count_grid(table, counts))
        users = f", {len(table.user_names):,} users" if table.users is not None else ""
        tests = (
            f", {int(table.official_test.sum()):,} of them the official test set"
            if table.official_test is not None
            else ""
        )
        shown = f"{counted(len(table.domain_names), 'domain')}, {counted(len(table.class_names), 'class', 'classes')}"
        say(f"{counted(len(table), 'image')}{tests}, {shown}{users}.")
        say(f"Digest: {table.digest}")
        _problems(sentences(problems), "No problems found." if not names_only else "No image was opened.")
    if problems:
        raise typer.Exit(PROBLEMS)


@app.command()
def build(
    data: Data,
    out: Annotated[Path, typer.Option(help="The folder to write the benchmark to.")],
    source: SourceName = None,
    images: ImagesFolder = None,
    partition: Annotated[
        Partition | None, typer.Option(metavar="NAME", help="How images become clients: one of the list above.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Participating clients of every domain [20].")
    ] = None,
    new: Annotated[int | None, typer.Option(min=0, metavar="N", help="New clients of every domain [10].")] = None,
    alpha: Annotated[float | None, typer.Option(help="Dirichlet concentration; smaller is more skewed [0.3].")] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="A/B/C/D", help="Percent for participating and new clients, validation and test [60/20/5/15]."
        ),
    ] = None,
    sizes: Annotated[str | None, typer.Option(help="Shares of a new client's images [S=0.5,M=1].")] = None,
    min_rows: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="No client has fewer training images [2].")
    ] = None,
    classes_per_client: Annotated[int | None, typer.Option(min=1, metavar="N", help="For shards [5].")] = None,
    domain_alpha: Annotated[float | None, typer.Option(help="For mixtures: smaller is purer [0.3].")] = None,
    part: Annotated[
        Part,
        typer.Option(help="tuning: a quarter of the images, by their pixels alone; tables: the others, for results."),
    ] = Part.all,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Another seed is another benchmark.")] = 0,
    names_only: Annotated[
        bool, typer.Option("--names-only", help="Open no image: quick, but broken and doubled ones stay in.")
    ] = False,
    replace_: Annotated[bool, typer.Option("--replace", help="Write over a benchmark that is there already.")] = False,
) -> None:
    """Split a dataset into participating and new clients, and write the benchmark.

    Writes manifest.parquet (a row per image), card.json (its settings, and P_m(y) of every client) and clients.png.
    Images that cannot be read are left out, and copies of one picture within a domain stay on one side of every split.
    Defaults are the paper's settings for the dataset that --source names. --part splits one of two fixed parts of the
    dataset: settings that were chosen on 'tuning' were never chosen on an image of 'tables', for any seed.

    How images become clients (--partition):

    {partitions}
    """
    from pflbed.bench_folder import write
    from pflbed.check import trained_and_tested
    from pflbed.dataset import find
    from pflbed.split import build as split_up

    if (
        out.exists()
        and any(out.iterdir() if out.is_dir() else [out])
        and not (replace_ and (out / "card.json").is_file())
    ):
        raise InputError(f"The folder {out} must not exist yet, but it does; choose another, or --replace a benchmark")
    writable(out.parent)
    _where_cached()
    problems: list[str] = []
    with progress_bar("checking images") as report:
        dataset = find(data, source, images)
        given = {
            "partition": partition.value if partition else None, "clients_per_domain": clients,
            "new_clients_per_domain": new, "alpha": alpha, "split": _split(split), "sizes": _sizes(sizes),
            "min_rows": min_rows, "classes_per_client": classes_per_client, "domain_alpha": domain_alpha,
            "part": part.value,
        }  # fmt: skip
        spec = dataset.source.spec.changed({name: value for name, value in given.items() if value is not None}, seed)
        found, findings = dataset, None
        if names_only:
            problems = dataset.problems()
        else:
            found, findings, problems = dataset.checked(report)
    benchmark = split_up(found.table, spec)
    if findings is not None and (leaks := trained_and_tested(benchmark, findings)):
        problems.append(f"{leaks:,} test images are trained on under another name in another domain; remove the copies")
    write(benchmark, dataset, out)
    _problems(problems, "")
    for line in summary(benchmark):
        note(line)
    say(f"Benchmark: {out}")


@app.command()
def show(
    bench: Folder,
    everyone: Annotated[bool, typer.Option("--all", help=f"List every client, not only the first {SHOWN}.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the bubble plots into this file (png, svg, pdf) instead of clients.png.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one json object.")] = False,
) -> None:
    """Show every client: its domain, images, classes and sizes; how faithful its score is; the bubble plots."""
    from pflbed.manifest import load_manifest
    from pflbed.mismatch import mismatch
    from pflbed.plots import save_bubbles

    benchmark = load_manifest(bench)
    if as_json:
        measured = mismatch(benchmark)
        listed = [client_row(benchmark, name) for name in benchmark.client_ids]
        found: dict[str, Any] = {"spec": benchmark.spec.as_json(), "digest": benchmark.table.digest, "clients": listed}
        found["mismatch"] = vars(measured) if measured else None
        say_json(found)
        return
    names = benchmark.client_ids if everyone else benchmark.client_ids[:SHOWN]
    say(client_grid(benchmark, names, f"Clients of {bench}"))
    if len(names) < len(benchmark.client_ids):
        say(f"... and {len(benchmark.client_ids) - len(names):,} more; --all lists them.")
    for line in summary(benchmark):
        say(line)
    picture = plot or bench / "clients.png"
    if plot is not None or not picture.is_file():
        writable(picture.parent)
        save_bubbles(benchmark, picture)
    say(f"Bubble plots: {picture}")


@app.command()
def score(
    bench: Folder,
    predictions: Annotated[
        Path, typer.Argument(help="A parquet or csv table with the columns client, row and predicted.")
    ],
    per_client: Annotated[Path | None, typer.Option(help="Also write every client's scores into this csv.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one json object.")] = False,
) -> None:
    """Score predictions that any framework made on the test images: personalized and global accuracy.

    'row' is a row of manifest.parquet, counted from 0, and 'predicted' a class name or number. Every client that occurs
    needs one prediction for each of its test rows; 'pflbed export --to blank' writes the table to fill in. Intervals
    are 95 % bootstraps over clients.
    """
    from pflbed.manifest import load_manifest
    from pflbed.predictions import score_file

    benchmark = load_manifest(bench)
    scores = score_file(benchmark, predictions)
    if per_client is not None:
        scores.write(per_client)
    if as_json:
        say_json(scores.as_json())
        return
    say(score_grid(scores))
    worst = min(scores.personalized, key=lambda name: scores.personalized[name])
    say(f"The client with the lowest accuracy is {worst}: {100 * scores.personalized[worst]:.1f} %.")
    for role, listed in (("participating", benchmark.participating), ("new", benchmark.new)):
        missing = len(listed) - scores.count(role)
        if 0 < missing < len(listed):
            say(f"{missing} of {len(listed)} {role} clients have no predictions and are not in the averages.")
    if per_client is not None:
        say(f"Scores of every client: {per_client}")


@app.command()
def export(
    bench: Folder,
    to: Annotated[Kind, typer.Option(help="folders: one folder per client (hard links); hf: a Hugging Face dataset "
                                          "with a 'client' column; flower: the same, for flwr-datasets; blank: the "
                                          "table to fill in for 'score'.")],
    out: Annotated[Path, typer.Option(help="The folder to write to; it must not exist.")],
    data: Annotated[
        str | None, typer.Option(help="Where the images are now, if they were moved after the benchmark was built.")
    ] = None,
) -> None:  # fmt: skip
    """Export the clients to other tools."""
    from pflbed.bench_folder import located
    from pflbed.export import export as write_export
    from pflbed.manifest import load_manifest

    benchmark = load_manifest(bench)
    writable(out.parent)
    with progress_bar("writing") as report:
        dataset = None if to is Kind.blank else located(bench, data)
        lines = write_export(benchmark, dataset, to.value, out, report)
    for line in lines:
        note(line)


def _split(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split("/"))
    except ValueError:
        raise InputError(f"--split must be four percentages such as 60/20/5/15, got {text!r}; correct it") from None


def _sizes(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {name.strip(): float(share) for name, share in pairs}
    except ValueError:
        raise InputError(f"--sizes must be names and shares such as S=0.5,M=1, got {text!r}; correct it") from None


def _problems(problems: list[str], otherwise: str) -> None:
    for problem in problems:
        say(Text.assemble(("Problem:", "yellow"), " ", one_line(problem)))
    if not problems and otherwise:
        note(otherwise)


def _where_cached() -> None:
    from pflbed.cache import cache_dir

    detail(f"Cache: {cache_dir()}")


build.__doc__ = (build.__doc__ or "").replace(
    "{partitions}", "\n    ".join(f"- [bold]{name}[/bold]: {what}" for name, what in PARTITIONS.items())
)
reflow(app)


def main() -> None:
    """Run the command line; an input error becomes one sentence and exit code 2."""
    run(app, "pflbed", "Stopped. No unfinished result was left behind; run the command again to start over.")
