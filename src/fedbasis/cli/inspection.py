"""The output of ``fedbasis inspect``: a description of a run, an artifact or a benchmark."""

from collections.abc import Iterator
from math import nan
from pathlib import Path

from rich.table import Table

from fedbasis.cli.display import results_table, results_title, value_table
from fedbasis.networks.models import NetworkSource
from fedbasis.report.runs import RunData, number, numbers, sizes_of
from fedbasis.serving import artifact
from fedbasis.serving.new_client import method_of, require_fit
from fedbasis.serving.tables import from_record
from fedbasis.training.runs import Run
from pflbed import InputError, load_manifest
from pflbed.benchmark import NEW, PARTICIPATING, TEST, VAL

Part = str | Table


def describe_folder(path: Path, trust: bool = False, network: NetworkSource | None = None) -> Iterator[Part]:
    """Yield lines and tables about a run, an artifact or a benchmark."""
    if not path.exists():
        raise InputError(f"The path {path} must exist, but it does not; check the path.")
    if (path / "config.json").is_file():
        return _run(Run(path), trust, network)
    if (path / artifact.CARD).is_file() and (path / "manifest.parquet").is_file():
        return _benchmark(path)
    if (path / artifact.CARD).is_file():
        return _artifact(path, trust, network)
    raise InputError(f"The path {path} must be a run, bases, a model or a benchmark, but it has none of their files.")


def _run(run: Run, trust: bool, network: NetworkSource | None) -> Iterator[Part]:
    data = RunData(run)
    stopped = data.state if data.active else f"stopped after round {data.rounds_done}; 'train' again resumes it"
    state = "done" if run.done else stopped
    yield f"Run {run.folder.name}: {data.method} on {data.config['data'].get('source')}, seed {data.seed}, {state}."
    if data.lines:
        last = {key: number(value) for key, value in data.lines[-1].items()}
        loss = f"loss {last['loss']:.3f}, " if "loss" in last else ""
        epsilon = f" ({last['epsilon']:.2f}, {last.get('delta', nan):.1e})-private." if "epsilon" in last else ""
        clients, up, down = (last.get(key, nan) for key in ("clients", "bytes_up", "bytes_down"))
        yield (
            f"Round {last['round']:.0f}/{last['rounds']:.0f}: {loss}{clients:.0f} clients, "
            f"{up:,.0f} bytes up and {down:,.0f} down per client, {sum(numbers(data.lines, 'seconds')):.0f} s in all."
            f"{epsilon}"
        )
    if data.rows:
        yield results_table(data.rows, sizes_of([data]), results_title(data.config))
    if run.bases.is_dir():
        yield from _artifact(run.bases, trust, network)


def _artifact(path: Path, trust: bool, network: NetworkSource | None) -> Iterator[Part]:
    written = artifact.read_card(path)
    kind = written.kind
    card, state = artifact.load(path, kind, trust, network)
    numbers = sum(t.numel() for t in next(iter(state.values())).values())
    yield (
        f"{'Bases' if kind == 'bases' else 'Personal model'} {path}: {card.architecture.name} "
        f"{card.architecture.options or ''} for {len(card.classes)} classes at {card.pixels.resolution} pixels, "
        f"{numbers:,} numbers a model; made by {card.method}, version {card.version}, format {written.format}."
    )
    if written.coding is not None:
        yield f"Coding: {written.coding.name}, differences of {written.coding.bits} bits."
    yield "Classes: " + ", ".join(card.classes)
    yield "Provenance: " + ", ".join(f"{key} {value}" for key, value in card.provenance.items())
    if kind == "bases":
        method = method_of(card, network)
        require_fit(method, state, str(path))
        for table in method.insight.describe(state):
            yield value_table(table)
    for name, record in card.learned.items():
        yield value_table(from_record(record, f"'{name}' in the card of {path}"))


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
    for i, domain in enumerate(table.domain_names):
        splits = benchmark.split[table.domains == i]
        counts = [int((splits == split).sum()) for split in (PARTICIPATING, NEW, VAL, TEST)]
        sizes = [len(benchmark.rows(name)) for name in benchmark.client_ids if benchmark.domain_of(name) == domain]
        smallest = str(min(sizes)) if sizes else "-"  # clients that mix domains belong to none
        shown.add_row(domain, *(str(n) for n in (len(splits), *counts)), smallest)
    yield shown
