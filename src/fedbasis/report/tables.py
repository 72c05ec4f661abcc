"""The tables of the report: the text of a cell, its value for sorting, and the runs behind it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

from fedbasis.report.groups import Group, compared
from fedbasis.report.paired import CROWD, leaders
from fedbasis.report.runs import domain_of, domains_of, numbers, sizes_of
from fedbasis.serving.personalize import UNTRAINED

NOTHING = "–"
COLUMNS = ("Last", "Best", "|Δ|", "rate", "s/client")
SPREAD = ("worst", "worst 10 %", "median", "best 10 %", "s.d.")
MEMORY = "peak_memory"
"""The field of the log with the peak memory of a round in bytes, if it was measured."""
SHARED = "not comparable"
EPSILON = "epsilon"
"""The field of the log with the privacy spent so far at ``delta``, under differential privacy."""


@dataclass(frozen=True)
class Cell:
    """A number as text, as a value for sorting, and the folders of its runs."""

    text: str
    value: float | None = None
    run: str = ""
    best: bool = False
    link: str = ""
    """Where on the page its runs are described."""


@dataclass(frozen=True)
class Grid:
    """A table: column groups with their width, column names, and rows that open with a name."""

    caption: str
    groups: Sequence[tuple[str, int]]
    columns: Sequence[str]
    rows: Sequence[tuple[Cell, Sequence[Cell]]]
    head: str = ""
    """The heading of the column of row names."""
    note: str = ""
    """A sentence below the caption."""
    name: str = ""
    """What its files are called after the chapter; nothing: the chapter's name, with a number if there are several."""


def results(groups: Sequence[Group]) -> Grid:
    """Lay out Last, Best, |Delta|, rate and seconds of every method and size; the best Last of a size is marked."""

    def cells(group: Group, how: str, size: str) -> list[Cell]:
        rows, learns = group.rows(how, size), how not in UNTRAINED
        rates = sorted({row.rate for row in rows})
        return [
            _points(group, [row.last for row in rows]),
            _points(group, [row.best for row in rows]) if learns else Cell(NOTHING),
            _points(group, [row.delta for row in rows], spread=False) if learns else Cell(NOTHING),
            Cell(", ".join(f"{rate:g}" for rate in rates), fmean(rates), group.folders) if learns else Cell(NOTHING),
            _mean(group, [row.seconds for row in rows], lambda seconds: f"{seconds:.2f}"),
        ]

    return _marked(_by_size("Personalized accuracy, in %", groups, COLUMNS, cells), groups)


def by_domain(groups: Sequence[Group]) -> Grid:
    """Average Last over the clients of every domain; these are too few to mark a best one."""
    domains = domains_of([run for group in groups for run in group.scored])

    def cells(group: Group, how: str, size: str) -> list[Cell]:
        found = []
        for domain in domains:
            per_seed = [[score for client, score in row.per_client.items() if domain_of(client) == domain]
                        for row in group.rows(how, size)]  # fmt: skip
            found.append(_points(group, [fmean(mine) for mine in per_seed if mine]))
        return found

    return _by_size("Mean Last per domain, in %", groups, domains, cells)


def by_client(groups: Sequence[Group]) -> Grid:
    """Tell how unequally the clients are served: the ends, the middle and the deviation of their Last."""

    def cells(group: Group, how: str, size: str) -> list[Cell]:
        scores = sorted(group.scores(how, size).values())
        if not scores:
            return [Cell(NOTHING)] * len(SPREAD)
        tenth = -(-len(scores) // 10)
        values = [scores[0], fmean(scores[:tenth]), median(scores), fmean(scores[-tenth:])]
        values.append(stdev(scores) if len(scores) > 1 else 0.0)
        return [Cell(f"{100 * value:.1f}", value, group.folders) for value in values]

    return _by_size("How Last is spread over the clients, in %", groups, SPREAD, cells)


def training_cost(groups: Sequence[Group]) -> Grid:
    """Average what a round costs, method by method; bytes are of one client."""
    memory, private = (
        any(key in line for group in groups for run in group.runs for line in run.lines) for key in (MEMORY, EPSILON)
    )
    rows, shared = [], _shared_peaks(groups)
    for group in groups:
        lines = [line for run in group.runs for line in run.lines]
        rounds = sorted({len(run.lines) for run in group.runs})
        done = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        cells = [Cell(done, rounds[-1], group.folders)]
        for key in ("bytes_up", "bytes_down"):
            known = numbers(lines, key)
            cells += [_mean(group, known, _bytes), _mean(group, [max(known)] if known else [], _bytes)]
        cells.append(_mean(group, numbers(lines, "seconds"), lambda seconds: f"{seconds:.1f}"))
        minutes = [sum(numbers(run.lines, "seconds")) / 60 for run in group.runs if numbers(run.lines, "seconds")]
        cells.append(_mean(group, minutes, lambda value: f"{value:.1f}"))
        if memory:
            known = numbers(lines, MEMORY)
            cells.append(
                Cell(SHARED, run=group.folders)
                if known and max(known) in shared
                else _mean(group, [max(known)] if known else [], _bytes)
            )
        if private:
            spent, deltas = numbers(lines, EPSILON), numbers(lines, "delta")
            cells.append(_mean(group, [max(spent)] if spent else [], lambda value: f"{value:.2f}"))
            cells.append(_mean(group, [max(deltas)] if deltas else [], lambda value: f"{value:.1e}"))
        rows.append((_head(group, group.name), cells))
    return Grid(
        "Training, per client and round",
        [
            ("", 1), ("to the server", 2), ("from the server", 2), ("time", 2),
            *([("memory", 1)] if memory else []), *([("privacy", 2)] if private else []),
        ],
        [
            "rounds", "mean", "largest", "mean", "largest", "s a round", "min in all",
            *(["peak"] if memory else []), *(["ε", "δ"] if private else []),
        ],
        rows,
        "method",
        "Runs that shared a process have no peak of memory of their own." if shared else "",
    )  # fmt: skip


def _shared_peaks(groups: Sequence[Group]) -> set[float]:
    """Return the peaks of memory that runs of several groups have to the byte: those of a process they shared."""
    peaks = Counter(
        peak for group in groups for peak in {max(numbers(run.lines, MEMORY), default=0.0) for run in group.runs}
    )
    return {peak for peak, count in peaks.items() if peak and count > 1}


def _by_size(
    caption: str, groups: Sequence[Group], columns: Sequence[str], cells: Callable[[Group, str, str], list[Cell]]
) -> Grid:
    """Repeat the columns for every size; a row per group and way."""
    sizes = _sizes(groups)
    rows = []
    for group, how in _lines(groups):
        line: list[Cell] = []
        for size in sizes:
            line += cells(group, how, size) if group.rows(how, size) else [Cell(NOTHING)] * len(columns)
        rows.append((_head(group, group.title(how)), line))
    spans = [(f"size {size}", len(columns)) for size in sizes]
    return Grid(caption, spans, list(columns) * len(sizes), rows, "method")


def _marked(grid: Grid, groups: Sequence[Group]) -> Grid:
    """Mark the best Last of every size, and what is not significantly worse; where that is nearly every row, none."""
    same, lines = compared(groups), _lines(groups)
    rows = [(head, list(cells)) for head, cells in grid.rows]
    notes: dict[str, list[str]] = {}
    for number, size in enumerate(_sizes(groups)):
        column = number * len(COLUMNS)
        scores = [group.scores(how, size) if group in same else {} for group, how in lines]
        marks = leaders(scores)
        worse = [head.text for (head, _), mine, best in zip(rows, scores, marks, strict=True) if mine and not best]
        if sum(marks) > max(1, CROWD * len(worse)):
            only = f"only {' and '.join(worse)} differ" + "s" * (len(worse) == 1) if worse else "no row differs"
            notes.setdefault(f"{only} significantly from the best one, so none is bold", []).append(f"size {size}")
            continue
        for (_, cells), best in zip(rows, marks, strict=True):
            cells[column] = replace(cells[column], best=best)
    said = " ".join(f"At {' and '.join(sizes)} {note}." for note, sizes in notes.items())
    return replace(grid, rows=rows, note=said)


def _lines(groups: Sequence[Group]) -> list[tuple[Group, str]]:
    return [(group, how) for group in groups for how in group.ways]


def _sizes(groups: Sequence[Group]) -> list[str]:
    runs = [run for group in groups for run in group.scored]
    known = {row.size for run in runs for row in run.rows}
    return [size for size in sizes_of(runs) if size in known]


def _head(group: Group, title: str) -> Cell:
    return Cell(title, run=group.folders, link=group.anchor)


def _points(group: Group, shares: Sequence[float], spread: bool = True) -> Cell:
    """Write the mean over seeds in points, with its deviation where there are several."""
    if not shares:
        return Cell(NOTHING)
    text = f"{100 * fmean(shares):.1f}"
    return Cell(
        f"{text} ± {100 * stdev(shares):.1f}" if spread and len(shares) > 1 else text, fmean(shares), group.folders
    )


def _mean(group: Group, values: Sequence[float], write: Callable[[float], str]) -> Cell:
    return Cell(write(fmean(values)), fmean(values), group.folders) if values else Cell(NOTHING)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
