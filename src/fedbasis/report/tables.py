"""Every number of the page in tables: what a cell says, how it sorts, and which run it comes from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedbasis.evaluation import Row
from fedbasis.report.data import RunData, domain_of, domains_of, sizes_of
from fedbasis.report.headline import comparable

NOTHING = "–"
COLUMNS = ("Last", "Best", "|Δ|", "rate", "s/client")


@dataclass(frozen=True)
class Cell:
    """A number as it is shown, as it sorts, and its run's folder."""

    text: str
    value: float | None = None
    run: str = ""
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """A table: column groups with their width, column names, and rows that open with a name."""

    caption: str
    groups: Sequence[tuple[str, int]]
    columns: Sequence[str]
    rows: Sequence[tuple[Cell, Sequence[Cell]]]


def results(runs: Sequence[RunData]) -> Grid:
    """Lay out Last, Best, |Delta|, rate and seconds of every method and size; the best Last of a size is marked."""
    sizes, marked = list(sizes_of(runs)), comparable(runs)
    top = {size: max((row.last for run in runs for row in run.rows if row.size == size), default=0.0) for size in sizes}

    def cells(run: RunData, row: Row) -> list[Cell]:
        learns = row.how != "none"
        return [
            Cell(_points(row.last), row.last, run.folder, marked and row.last == top[row.size]),
            Cell(_points(row.best), row.best, run.folder) if learns else Cell(NOTHING),
            Cell(_points(row.delta), row.delta, run.folder) if learns else Cell(NOTHING),
            Cell(f"{row.rate:g}", row.rate, run.folder) if learns else Cell(NOTHING),
            Cell(f"{row.seconds:.2f}", row.seconds, run.folder),
        ]

    return _by_size("Personalized accuracy of the new clients, in %", runs, COLUMNS, cells)


def by_domain(runs: Sequence[RunData]) -> Grid:
    """Average Last over the clients of every domain."""
    domains = domains_of([run for run in runs if run.rows])

    def cells(run: RunData, row: Row) -> list[Cell]:
        found = []
        for domain in domains:
            mine = [score for client, score in row.per_client.items() if domain_of(client) == domain]
            found.append(Cell(_points(fmean(mine)), fmean(mine), run.folder) if mine else Cell(NOTHING))
        return found

    return _by_size("Mean Last per domain, in %", runs, domains, cells)


def training_cost(runs: Sequence[RunData]) -> Grid:
    """Average what a round costs, run by run; bytes are of one client."""
    rows = []
    for run in runs:
        cells = [Cell(str(len(run.lines)), len(run.lines), run.folder)]
        for key in ("bytes_up", "bytes_down"):
            known = [float(line[key]) for line in run.lines if key in line]
            cells.append(Cell(_bytes(fmean(known)), fmean(known), run.folder) if known else Cell(NOTHING))
            cells.append(Cell(_bytes(max(known)), max(known), run.folder) if known else Cell(NOTHING))
        seconds = [float(line["seconds"]) for line in run.lines if "seconds" in line]
        cells.append(Cell(f"{fmean(seconds):.1f}", fmean(seconds), run.folder) if seconds else Cell(NOTHING))
        cells.append(Cell(f"{sum(seconds) / 60:.1f}", sum(seconds), run.folder) if seconds else Cell(NOTHING))
        rows.append((Cell(run.name, run=run.folder), cells))
    return Grid(
        "Training, per client and round",
        [("", 1), ("to the server", 2), ("from the server", 2), ("time", 2)],
        ["rounds", "mean", "largest", "mean", "largest", "s a round", "min in all"],
        rows,
    )


def personalization_cost(runs: Sequence[RunData]) -> Grid:
    """Show the mean time to serve one new client."""

    def cells(run: RunData, row: Row) -> list[Cell]:
        return [Cell(f"{row.seconds:.2f}", row.seconds, run.folder)]

    return _by_size("Personalizing one new client, in seconds", runs, ["s/client"], cells)


def _by_size(
    caption: str, runs: Sequence[RunData], columns: Sequence[str], cells: Callable[[RunData, Row], list[Cell]]
) -> Grid:
    """Repeat the columns for every size; a row per run and way."""
    sizes = list(sizes_of([run for run in runs if run.rows]))
    rows = []
    for run in runs:
        for how in run.ways():
            line: list[Cell] = []
            name = ""
            for size in sizes:
                row = run.row(how, size)
                line += [Cell(NOTHING)] * len(columns) if row is None else cells(run, row)
                name = name if row is None else run.title(row)
            rows.append((Cell(name, run=run.folder), line))
    return Grid(caption, [(f"size {size}", len(columns)) for size in sizes], list(columns) * len(sizes), rows)


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
