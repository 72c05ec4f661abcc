"""Look into a folder of ours, whatever it is, and describe it for a person."""

import json
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from fedbasis.cli.display import results_table, results_title, value_table
from fedbasis.experiment.config import parse
from fedbasis.methods.base import ValueTable
from fedbasis.networks.models import NetworkSource
from fedbasis.serving import artifact
from fedbasis.serving.new_client import method_of
from fedbasis.training.runs import Run, read_lines
from pflbed import InputError, load_manifest
from pflbed.benchmark import NEW, PARTICIPATING, TEST, VAL

Part = str | Table


def describe_folder(path: Path, trust: bool = False, network: NetworkSource | None = None) -> Iterator[Part]:
    """Yield lines and tables about a run, an artifact or a benchmark."""
    if not path.exists():
        raise InputError(f"There must be something to inspect at {path}, but there is nothing; check the path.")
    if (path / "config.json").is_file():
        return _run(Run(path), trust, network)
    if (path / artifact.CARD).is_file() and (path / "manifest.parquet").is_file():
        return _benchmark(path)
    if (path / artifact.CARD).is_file():
        return _artifact(path, trust, network)
    raise InputError(f"The path {path} must be a run, bases, a model or a benchmark, but it holds none of their files.")


def _run(run: Run, trust: bool, network: NetworkSource | None) -> Iterator[Part]:
    try:
        config = parse(json.loads(run.config.read_text(encoding="utf-8")), str(run.config), trust=trust).as_dict()
    except (ValueError, TypeError) as error:
        raise InputError(
            f"The folder {run.folder} must be a run, but its config.json is not of a run: {error}"
        ) from error
    lines = read_lines(run.metrics)
    state = (
        "done" if run.done else f"stopped after round {lines[-1]['round'] if lines else 0}; 'train' again resumes it"
    )
    what = f"{config['method']['name']} on {config['data']['source']}, seed {config['seed']}"
    yield f"Run {run.folder.name}: {what}, {state}."
    if lines:
        last = lines[-1]
        loss = f"loss {last['loss']:.3f}, " if "loss" in last else ""
        epsilon = f" ({last['epsilon']:.2f}, {last['delta']:.1e})-private." if "epsilon" in last else ""
        yield (
            f"Round {last['round']}/{last['rounds']}: {loss}{last['clients']} clients, "
            f"{last['bytes_up']:,} bytes up and {last['bytes_down']:,} down per client, "
            f"{sum(line['seconds'] for line in lines):.0f} s in all.{epsilon}"
        )
    if run.results.exists():
        rows = json.loads(run.results.read_text(encoding="utf-8"))
        yield results_table(rows, config["data"]["sizes"], results_title(config))
    if run.bases.is_dir():
        yield from _artifact(run.bases, trust, network)


def _artifact(path: Path, trust: bool, network: NetworkSource | None) -> Iterator[Part]:
    kind = artifact.read_card(path).kind
    card, state = artifact.load(path, kind, trust, network)
    numbers = sum(t.numel() for t in next(iter(state.values())).values())
    yield (
        f"{'Bases' if kind == 'bases' else 'Personal model'} {path}: {card.architecture.name} "
        f"{card.architecture.options or ''} for {len(card.classes)} classes at {card.pixels.resolution} pixels, "
        f"{numbers:,} numbers a model; made by {card.method}, version {card.version}, format {card.format}."
    )
    yield "Classes: " + ", ".join(card.classes)
    yield "Provenance: " + ", ".join(f"{key} {value}" for key, value in card.provenance.items())
    if kind == "bases":
        for table in method_of(card, network).insight.describe(state):
            yield value_table(table)
    for record in card.learned.values():
        yield value_table(ValueTable(**record))


def _benchmark(path: Path) -> Iterator[Part]:
    benchmark = load_manifest(path)
    table = benchmark.table
    yield (
        f"Benchmark {path}: {len(table)} images, {len(table.class_names)} classes, seed {benchmark.spec.seed}, "
        f"{len(benchmark.participating)} participating and {len(benchmark.new)} new clients."
    )
    shown = Table()
    for column in ("domain", "images", "participating", "new", "val", "test", "smallest client"):
        shown.add_column(column, justify="right" if column != "domain" else "left")
    for number, domain in enumerate(table.domain_names):
        places = benchmark.split[table.domains == number]
        pools = [int((places == split).sum()) for split in (PARTICIPATING, NEW, VAL, TEST)]
        mine = [len(benchmark.rows(name)) for name in benchmark.client_ids if benchmark.domain_of(name) == domain]
        smallest = str(min(mine)) if mine else "-"  # clients that mix domains belong to none
        shown.add_row(domain, *(str(n) for n in (len(places), *pools)), smallest)
    yield shown
