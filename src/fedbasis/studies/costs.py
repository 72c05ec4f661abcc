"""The costs beside the accuracies of a table: seconds, memory and numbers of a new client, and bytes of everyone.

Numbers and downloads of a new client follow from the run's settings and the header of what it published, traffic of a
round from its log. Seconds and memory were measured when clients were served; older runs have no memory.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from fedbasis.methods import METHODS
from fedbasis.methods.base import Method
from fedbasis.report.runs import RunData, numbers
from fedbasis.report.tables import NOTHING, Cell, Grid
from fedbasis.serving.artifact import CARD, TENSORS, read_card
from fedbasis.serving.costs import download_bytes, learned_numbers
from fedbasis.serving.new_client import method_of
from fedbasis.studies.variants import Key, row_title
from fedbasis.tensors.files import read_header

MEGABYTE = 1e6
SERVED = (
    "Per client; s: seconds to serve it, validation included, which compare within one machine only; memory: the most "
    "that its process held above what it held before, without validation images (median over clients)"
)
OF_NEW = (
    "numbers: what it learns, the normalization statistics that become its own apart; download: one model, or all that "
    "is published where the way needs it"
)
A_ROUND = "a round: mean over the rounds of training."


def costs(
    name: str,
    title: str,
    runs: Mapping[str, Sequence[RunData]],
    keys: Sequence[Key],
    sizes: list[str],
    *,
    new: bool = True,
) -> Grid:
    """Lay out what every row costs.

    Args:
        name: The name of the dataset, for the table's files.
        title: Its name for a reader.
        runs: The runs by name, a list over the seeds.
        keys: The rows.
        sizes: The sizes of a client's data.
        new: Whether the clients are new: those that took part have the server's state, so nothing is said of downloads.
    """
    methods = {run: _method(mine[0]) for run, mine in runs.items() if mine}
    rows = []
    for key in keys:
        mine = runs.get(key[0]) or []
        if any(run.row(key[1], size) for run in mine for size in sizes):
            cells = [cell for size in sizes for cell in _served(mine, key[1], size)]
            cells += [*(_new_client(mine, key[1], sizes, methods[key[0]]) if new else ()), *_round(mine)]
            rows.append((Cell(row_title(key), run=mine[0].folder), cells))
    groups = [*((f"size {size}", 2) for size in sizes), *([("new client", 2)] if new else []), ("a round", 2)]
    columns = [*["s", "memory, MB"] * len(sizes), *(["numbers", "download, MB"] if new else []), "down, MB", "up, MB"]
    note = "; ".join([SERVED, *([OF_NEW] if new else []), A_ROUND])
    return Grid(f"{title}: costs", groups, columns, rows, note=note, name=f"costs-{name}")


def _served(runs: Sequence[RunData], how: str, size: str) -> list[Cell]:
    """Write the seconds to serve a client, and its peak of memory where that was measured."""
    rows = [row for run in runs if (row := run.row(how, size))]
    peaks = [peak for run in runs for peak in numbers(run.chosen(how, size), "peak_memory")]
    return [_mean([row.seconds for row in rows], runs), _megabytes([median(peaks)] if peaks else [], runs)]


def _new_client(runs: Sequence[RunData], how: str, sizes: Sequence[str], method: Method | None) -> list[Cell]:
    """Write what a new client learns and downloads; several counts where other statistics were chosen."""
    if method is None:
        return [Cell(NOTHING)] * 2
    chosen = dict.fromkeys(row.statistics for run in runs for size in sizes if (row := run.row(how, size)))
    counts = [count for statistics in chosen if (count := learned_numbers(method, how, statistics)) is not None]
    header, _ = read_header(runs[0].run.bases / TENSORS)
    text = " or ".join(dict.fromkeys(map(str, counts))) or NOTHING
    learned = Cell(text, max((count.trained for count in counts), default=None), runs[0].folder)
    return [learned, _megabytes([download_bytes(method, how, header)], runs)]


def _round(runs: Sequence[RunData]) -> list[Cell]:
    """Write what a participating client receives and sends in a round."""
    lines = [line for run in runs for line in run.lines]
    return [_megabytes(numbers(lines, key), runs) for key in ("bytes_down", "bytes_up")]


def _method(run: RunData) -> Method | None:
    """Build a run's method from its card; None without one, or if its code is not of this package."""
    if not (run.run.bases / CARD).is_file():
        return None
    card = read_card(run.run.bases)
    return method_of(card) if card.method in METHODS else None


def _mean(values: Sequence[float], runs: Sequence[RunData]) -> Cell:
    """Write a mean with three digits, or as many as it has before the point."""
    if not values:
        return Cell(NOTHING)
    mean = fmean(values)
    return Cell(f"{mean:,.0f}" if mean >= 100 else f"{mean:#.3g}", mean, runs[0].folder)


def _megabytes(values: Sequence[float], runs: Sequence[RunData]) -> Cell:
    return _mean([value / MEGABYTE for value in values], runs)
