"""Tables for the terminal: counts, clients and scores."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape as escape_markup
from rich.table import Table as Grid

from pflbed.benchmark import UNUSED, Benchmark
from pflbed.mismatch import mismatch
from pflbed.plain_text import counted, one_line
from pflbed.predictions import ROLES, Scores
from pflbed.spec import ALL, PARTS
from pflbed.table import Table


def escape(name: str) -> str:
    """A name from a file as the text of a cell: one line, no markup, no control sequences."""
    return escape_markup(one_line(name))


def client_row(benchmark: Benchmark, name: str) -> dict[str, Any]:
    """The properties of one client."""
    shares, names = benchmark.label_distribution(name), benchmark.table.class_names
    ranked = sorted(shares.nonzero()[0], key=lambda i: -shares[i])
    role = benchmark.role_of(name)
    return {
        "client": name, "role": role, "domain": benchmark.domain_of(name), "images": len(benchmark.rows(name)),
        "sizes": {size: len(benchmark.rows(name, size)) for size in benchmark.spec.sizes} if role == "new" else {},
        "val": len(benchmark.held_rows(name, "val")), "test": len(benchmark.held_rows(name, "test")),
        "labels": {names[i]: float(shares[i]) for i in ranked},
    }  # fmt: skip


def counts_of(table: Table) -> list[list[int]]:
    """Images of every domain (rows) and class (columns)."""
    classes = len(table.class_names)
    cells = np.bincount(table.domains * classes + table.labels, minlength=classes * len(table.domain_names))
    rows: list[list[int]] = cells.reshape(len(table.domain_names), classes).tolist()
    return rows


def count_grid(table: Table, counts: list[list[int]]) -> Grid:
    """Classes in rows and domains in columns; many classes are summed up."""
    grid = Grid(title_justify="left", title_style="bold")
    shown = range(len(table.class_names)) if len(table.class_names) <= 100 else range(20)
    if len(table.domain_names) > 12:
        grid.add_column("domain", overflow="fold")
        for heading in ("images", "classes"):
            grid.add_column(heading, justify="right")
        for name, row in zip(table.domain_names, counts, strict=True):
            grid.add_row(escape(name), f"{sum(row):,}", f"{sum(n > 0 for n in row):,}")
        return grid
    grid.add_column("class", overflow="fold")
    for name in (*table.domain_names, "all"):
        grid.add_column(escape(name), justify="right")
    for i in shown:
        column = [row[i] for row in counts]
        grid.add_row(escape(table.class_names[i]), *(f"{n:,}" for n in (*column, sum(column))))
    if len(shown) < len(table.class_names):
        rest = [sum(row[len(shown) :]) for row in counts]
        grid.add_row(f"{len(table.class_names) - len(shown):,} more", *(f"{n:,}" for n in (*rest, sum(rest))))
    totals = [sum(row) for row in counts]
    grid.add_section()
    grid.add_row("all", *(f"{n:,}" for n in (*totals, sum(totals))))
    return grid


def client_grid(benchmark: Benchmark, names: Sequence[str], title: str) -> Grid:
    """One line per client, narrow enough for a terminal of 80 columns."""
    grid = Grid(title=escape(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    grid.add_column("client", overflow="fold")
    grid.add_column("role", no_wrap=True)
    for heading in ("images", "/".join(benchmark.spec.sizes), "classes", "test"):
        grid.add_column(escape(heading), justify="right", no_wrap=True)
    grid.add_column("most of", no_wrap=True, max_width=24)
    for name in names:
        row = client_row(benchmark, name)
        label, share = next(iter(row["labels"].items()))
        sizes = "/".join(map(str, row["sizes"].values()))
        role = "new" if row["role"] == "new" else "trains"
        numbers = (row["images"], sizes, len(row["labels"]), row["test"])
        grid.add_row(escape(name), role, *map(str, numbers), f"{escape(label)} {100 * share:.0f} %")
    return grid


def score_grid(scores: Scores) -> Grid:
    """The averages of every role, with their intervals."""
    grid = Grid(title="Accuracy (%) and its 95 % interval over clients", title_justify="left", title_style="bold")
    for heading in ("clients", "number", "personalized", "global"):
        grid.add_column(heading, justify="left" if heading == "clients" else "right")
    for role in ROLES:
        averages = (scores.average(role, personalized) for personalized in (True, False))
        cells = [f"{100 * a.mean:.1f} ({100 * a.low:.1f} to {100 * a.high:.1f})" for a in averages if a is not None]
        if cells:
            grid.add_row(role, str(scores.count(role)), *cells)
    return grid


def summary(benchmark: Benchmark) -> Iterator[str]:
    """A summary of a benchmark in a few lines."""
    sizes = sorted((len(benchmark.rows(name)), name) for name in benchmark.client_ids)
    yield (
        f"{len(benchmark.participating):,} participating and {counted(len(benchmark.new), 'new client')} of "
        f"{counted(len(benchmark.table), 'image')} ({benchmark.spec.partition}, seed {benchmark.spec.seed}); "
        f"the smallest, {sizes[0][1]}, trains on {sizes[0][0]}, the largest, {sizes[-1][1]}, on {sizes[-1][0]}."
    )
    if benchmark.spec.part != ALL:
        yield f"These are the images of the part '{benchmark.spec.part}': {PARTS[benchmark.spec.part]}."
    if unused := int((benchmark.split == UNUSED).sum()):
        yield f"{unused:,} images are unused: duplicates that would be in two splits, or images of no client."
    measured = mismatch(benchmark)
    if measured is None:
        yield "No client has test images of its classes, so none can be scored."
        return
    if measured.unscored:
        yield f"{measured.unscored:,} clients have no test images of their classes and cannot be scored."
    yield (
        f"Label mismatch between training and test, mean over clients: {measured.here:.4f} here, "
        f"{measured.conventional:.4f} if each client's own images were halved (0 is best, 2 is worst)."
    )
