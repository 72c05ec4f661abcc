"""Tables 2, C and D: how well every method serves new clients, S to L, Last and Best, and how much seeds matter.

All three are read off the same runs. |Delta| is the difference of Last and Best: what choosing the epoch is worth.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Any, ClassVar

from fedbasis.report.chapter import Chapter
from fedbasis.report.runs import RunData
from fedbasis.report.tables import NOTHING, Cell, Grid
from fedbasis.serving.evaluation import ResultRow
from fedbasis.serving.personalize import label
from fedbasis.studies import paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import (
    PAPER,
    above,
    another_scale,
    budget,
    claim,
    marked,
    measured,
    number,
    percent,
    printed,
    title,
)
from fedbasis.studies.paper import Key

WAYS: Mapping[str, tuple[str, ...]] = {
    "fedrep": ("lp", "ft"),
    "fedbn": ("bn", "lp", "ft"),
    "pfedhn": ("embedding", "embedding+lp", "embedding+ft"),
    "per-fedavg-fo": ("ft",),
    "knn-per": ("knn", "knn+ft"),
    "fedavg": ("none", "lp", "ft"),
    "fedbasis": ("coefficients+classifier",),
}
PROPOSED: tuple[Key, ...] = (
    ("fedrep", "lp"), ("fedbn", "bn"), ("pfedhn", "embedding"), ("pfedhn", "embedding+ft"), ("per-fedavg-fo", "ft"),
    ("knn-per", "knn"), ("knn-per", "knn+ft"), ("fedavg", "none"), ("fedavg", "ft"), paper.FEDBASIS,
)  # fmt: skip
"""The rows of table 2: each method as it was proposed."""
EVERY: tuple[Key, ...] = tuple((method, how) for method, hows in WAYS.items() for how in hows)
SIZES: Mapping[str, float] = {"S": 0.5, "M": 1.0}
"""PFLBed's own, where a scale says nothing else."""
SINGLE = ("none", "embedding", "knn")
"""Ways for which the paper prints one number."""


def main_request(setup: Setup, testbed: str, method: str, seed: int) -> RunRequest:
    """The run of one method that these tables read, and others too."""
    return setup.request(testbed, method, seed, personalize={"ways": list(WAYS[method])})


def at_one_size(raw: Mapping[str, Any], size: str) -> dict[str, Any]:
    """Serve new clients at one size alone, for a table that reads no other; sizes are drawn one by one."""
    data = {**raw["data"], "sizes": {size: raw["data"].get("sizes", SIZES)[size]}}
    return {**raw, "data": data}


class NewClients(Study):
    """The main result."""

    name: ClassVar[str] = "new-clients"
    aliases: ClassVar[tuple[str, ...]] = ("table-2",)
    title: ClassVar[str] = "Personalized accuracy of new clients"
    keys: ClassVar[tuple[Key, ...]] = PROPOSED

    def requests(self, setup: Setup) -> list[RunRequest]:
        """One run for every dataset, method and seed."""
        methods = [method for method in WAYS if setup.allows(method)]
        return [
            main_request(setup, testbed, method, seed)
            for testbed in setup.scale.main
            for method in methods
            for seed in setup.seeds
        ]

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """A table for every dataset."""
        tables, text = [], []
        for testbed in setup.scale.main:
            runs = found.by_name(self.requests(setup), testbed)
            tables.append(self.grid(setup, testbed, runs))
            text += [
                another_scale(setup, testbed, printed(setup, testbed)),
                budget(setup, testbed, runs),
                *self.notes(setup, testbed),
            ]
            text += self.claims(setup, testbed, runs)
        return Chapter(self.name, self.title, text, tables)

    def grid(self, setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]]) -> Grid:
        """Lay out Last, Best and |Delta| by size, and the paper's."""
        paper_scores = paper.NEW_CLIENTS[printed(setup, testbed)]
        names = sizes(setup, testbed)
        rows: list[tuple[Cell, Sequence[Cell]]] = []
        for method, how in self.keys:
            mine = runs.get(method, [])
            cells: list[Cell] = []
            for size in names:
                cells += _cells(mine, how, size) + _printed(paper_scores[method, how].get(size, ()))
            if mine:
                rows.append((Cell(label(method, how), run=mine[0].folder), cells))
        columns = ["Last", "Best", "|Δ|"] * (2 * len(names))
        groups = [pair for size in names for pair in ((f"size {size}", 3), (f"{PAPER} {size}", 3))]
        caption = f"{title(setup, testbed)}: personalized accuracy of new clients, in %"
        return Grid(caption, groups, columns, marked(rows, [6 * i for i in range(len(names))]))

    def notes(self, setup: Setup, testbed: str) -> list[str]:
        """Note how often clients are validated."""
        every = setup.testbed(testbed).personalize.get("validate_every", 1)
        if validations(setup, testbed) == 1:
            return ["Only the last epoch is validated, so Best equals Last and |Δ| is no result."]
        return [f"Best and |Δ| are over every {every}th epoch only."] if every > 1 else []

    def claims(self, setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]]) -> list[str]:
        """FedBasis is accurate, and it is robust to the stopping epoch."""
        found, where = [], title(setup, testbed)
        for size in sizes(setup, testbed):
            scores = {key: rows_of(runs, key, size) for key in self.keys}
            last = {key: fmean(row.last for row in rows) for key, rows in scores.items() if rows}
            delta = {key: fmean(row.delta for row in rows) for key, rows in scores.items() if rows and learns(key)}
            ours, others = last.pop(paper.FEDBASIS, None), last
            if ours is None or not others:
                continue
            best = max(others, key=lambda key: others[key])
            evidence = f"{where}, {size}: FedBasis {percent(ours)}, the best other, {label(*best)}, "
            found.append(
                claim("FedBasis serves new clients best", above(ours, others[best]), evidence + percent(others[best]))
            )
            mine = delta.pop(paper.FEDBASIS)
            if delta and validations(setup, testbed) > 1:
                evidence = f"{where}, {size}: |Δ| {percent(mine)}, the other rows {percent(min(delta.values()))} to "
                evidence += percent(max(delta.values()))
                robust = not above(mine, min(delta.values()))
                found.append(claim("no row's |Δ| is half a point or more below FedBasis' own", robust, evidence))
        return found


class AllMethods(NewClients):
    """The same with a linear probe and fine-tuning after every method."""

    name: ClassVar[str] = "all-methods"
    aliases: ClassVar[tuple[str, ...]] = ("table-c",)
    title: ClassVar[str] = "A linear probe and fine-tuning after every method"
    keys: ClassVar[tuple[Key, ...]] = EVERY


class Variance(NewClients):
    """How much the seed matters: variances of Last and Best, in squared points."""

    name: ClassVar[str] = "variance"
    aliases: ClassVar[tuple[str, ...]] = ("table-d",)
    title: ClassVar[str] = "Variance over the seeds"
    keys: ClassVar[tuple[Key, ...]] = tuple(key for key in EVERY if key != ("fedbn", "bn"))

    def grid(self, setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]]) -> Grid:
        """Lay out the variances by size, and the paper's."""
        paper_variance, names = paper.VARIANCE[printed(setup, testbed)], sizes(setup, testbed)
        rows = []
        for method, how in self.keys:
            cells: list[Cell] = []
            for size in names:
                mine = rows_of(runs, (method, how), size)
                for pick in ([row.last for row in mine], [row.best for row in mine]):
                    cells.append(number(spread(pick), 2, runs[method][0].folder if mine else ""))
                cells += [number(value, 2) for value in paper_variance[method, how].get(size, (None, None))]
            if runs.get(method):
                rows.append((Cell(label(method, how)), cells))
        groups = [pair for size in names for pair in ((f"size {size}", 2), (f"{PAPER} {size}", 2))]
        seeds = max(map(len, runs.values()), default=0)
        caption = f"{title(setup, testbed)}: variance over {seeds} seed{'s' * (seeds != 1)}, in squared points"
        return Grid(caption, groups, ["Last", "Best"] * (2 * len(names)), rows)

    def notes(self, setup: Setup, testbed: str) -> list[str]:
        """Note what another seed changes."""
        another = "Another seed is another split into clients too, not only another training."
        return [another, *super().notes(setup, testbed)]

    def claims(self, setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]]) -> list[str]:
        """Differences in the main table are larger than what seeds do."""
        found = [
            value for key in self.keys for size in sizes(setup, testbed)
            if (value := spread([row.last for row in rows_of(runs, key, size)])) is not None
        ]  # fmt: skip
        if not found:
            return ["A variance needs at least two seeds that every row has; add --seeds 3."]
        evidence = f"{title(setup, testbed)}: at most {max(found):.2f}, in the paper at most 1.75"
        return [claim("seeds move a row of the main table by about a point", max(found) <= 1.75, evidence)]


def sizes(setup: Setup, testbed: str) -> list[str]:
    """Name the sizes of a new client's data."""
    return list(setup.testbed(testbed).data.get("sizes", SIZES))


def validations(setup: Setup, testbed: str) -> int:
    """Count the epochs after which a new client is validated."""
    serve = setup.testbed(testbed).personalize
    return int(serve["epochs"]) // int(serve.get("validate_every", 1))


def rows_of(runs: Mapping[str, Sequence[RunData]], key: Key, size: str) -> list[ResultRow]:
    """Return one row of the results for every seed."""
    found = [run.row(key[1], size) for run in runs.get(key[0], [])]
    return [row for row in found if row is not None]


def spread(shares: Sequence[float]) -> float | None:
    """Return the variance of shares of one in squared points, if there are several."""
    return variance([100 * share for share in shares]) if len(shares) > 1 else None


def learns(key: Key) -> bool:
    """Whether Last and Best can differ."""
    return key[1] not in SINGLE


def _cells(runs: Sequence[RunData], how: str, size: str) -> list[Cell]:
    rows = [row for run in runs if (row := run.row(how, size)) is not None]
    if not rows:
        return [Cell(NOTHING)] * 3
    folder = runs[0].folder
    if not learns(("", how)):
        return [measured([row.last for row in rows], folder), Cell(NOTHING), Cell(NOTHING)]
    return [measured(values, folder) for values in zip(*((r.last, r.best, r.delta) for r in rows), strict=True)]


def _printed(numbers: Sequence[float]) -> list[Cell]:
    if len(numbers) < 2:
        return [number(numbers[0] if numbers else None), Cell(NOTHING), Cell(NOTHING)]
    return [*map(number, numbers), number(abs(numbers[0] - numbers[1]))]
