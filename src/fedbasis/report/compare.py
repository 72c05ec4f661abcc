"""Compare two runs: the settings that differ, and a paired test of their accuracies on the same clients."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedbasis.report.groups import Group
from fedbasis.report.names import differing, suffixes
from fedbasis.report.paired import LEVEL, Paired, holm, paired
from fedbasis.report.runs import RunData, read_runs, sizes_of
from fedbasis.training.runs import Run
from pflbed.errors import InputError


@dataclass(frozen=True)
class Difference:
    """One way and size of the first run against one of the second."""

    size: str
    ways: tuple[str, str]
    titles: tuple[str, str]
    means: tuple[float, float]
    paired: Paired


@dataclass(frozen=True)
class Comparison:
    """Two runs: their settings and the differences of their accuracies, second minus first."""

    folders: tuple[str, str]
    names: tuple[str, str]
    settings: dict[str, list[Any]]
    """The settings that differ, with both values."""
    differences: Sequence[Difference]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; accuracies and differences are shares of one."""
        return asdict(self)


def compare(first: Run, second: Run) -> Comparison:
    """Compare two finished runs that served the same clients; others are refused.

    A way of personalizing that both have is compared with itself, any other with every way of the other run.
    """
    runs = read_runs([first, second])
    if len(runs) == 1:
        raise InputError(f"Two runs can be compared, but {first.folder} and {second.folder} are the same one.")
    _check(*runs)
    one, two = _named(runs)
    found = []
    for size in sizes_of(runs):
        for how, other in _pairs(one.ways, two.ways):
            mine, theirs = one.scores(how, size), two.scores(other, size)
            if mine and theirs:
                titles = (one.title(how), two.title(other))
                means = (one.rows(how, size)[0].last, two.rows(other, size)[0].last)
                found.append(Difference(size, (how, other), titles, means, paired(mine, theirs)))
    adjusted = holm([one.paired.p for one in found])
    found = [replace(one, paired=replace(one.paired, adjusted=p)) for one, p in zip(found, adjusted, strict=True)]
    settings = differing([run.config for run in runs])
    return Comparison((runs[0].folder, runs[1].folder), (one.name, two.name), settings, found)


def side_by_side(comparison: Comparison) -> Iterator[str | Table]:
    """Yield lines and tables for the terminal."""
    settings = _table("Settings that differ")
    for column in ("setting", *comparison.folders):
        settings.add_column(Text(column), overflow="fold")
    for key, values in comparison.settings.items():
        settings.add_row(Text(key), *(Text("-" if value is None else str(value)) for value in values))
    yield settings if comparison.settings else "No setting differs."
    clients = max((found.paired.clients for found in comparison.differences), default=0)
    table = _table(f"Personalized accuracy (%, Last) of the same {clients} clients")
    for column in ("size", "A", "B"):
        table.add_column(column, overflow="fold")
    for column in ("A %", "B %", "B - A", "95 % interval", "p", "w/t/l"):
        table.add_column(column, justify="right", no_wrap=True)
    for found in comparison.differences:
        test = found.paired
        cells = [found.size, *found.titles, *(f"{100 * mean:.1f}" for mean in found.means), f"{100 * test.mean:+.1f}"]
        cells += [_interval(test), f"{test.p:.3f}" if test.p >= 0.001 else "<0.001"]
        cells.append(f"{test.wins}/{test.ties}/{test.losses}")
        table.add_row(*(Text(cell) for cell in cells), style="bold" if test.significant else "")
    yield table
    yield (
        f"A is {comparison.folders[0]}, B is {comparison.folders[1]}; w/t/l are the clients on which B wins, ties and "
        f"loses. Bold rows differ by a two-sided paired t-test over clients at {100 * LEVEL:g} %, after Holm's "
        f"correction for {len(comparison.differences)} tests."
    )


def _check(first: RunData, second: RunData) -> None:
    for run in (first, second):
        if not run.rows:
            raise InputError(
                f"Runs are compared by their results, but {run.path} has none yet: {run.state}; train it to its end."
            )
    clients = {frozenset(row.per_client) for run in (first, second) for row in run.rows}
    if first.population == second.population and len(clients) == 1:
        return
    reason = "their splits differ"
    if first.digest != second.digest:
        reason = "their images differ"
    elif first.seed != second.seed:
        reason = f"the seeds {first.seed} and {second.seed} drew other clients"
    raise InputError(
        f"Runs can be compared on the same clients only, but {first.path} and {second.path} served others: {reason}; "
        "train both with the same data, split and seed."
    )


def _table(title: str) -> Table:
    heading = Text(title, "bold")
    return Table(title=heading, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def _named(runs: Sequence[RunData]) -> list[Group]:
    alike = runs[0].method == runs[1].method
    endings = suffixes(runs) if alike else ["", ""]
    return [Group(ending, [run], "") for ending, run in zip(endings, runs, strict=True)]


def _pairs(ways: Sequence[str], others: Sequence[str]) -> list[tuple[str, str]]:
    """Pair the ways that can be compared, in the order of the first run's."""
    both = [(how, how) for how in ways if how in others]
    only_first = [(how, other) for how in ways if how not in others for other in others]
    only_second = [(how, other) for other in others if other not in ways for how in ways]
    return list(dict.fromkeys(both + only_first + only_second))


def _interval(test: Paired) -> str:
    if test.low is None or test.high is None:
        return "-"
    return f"{100 * test.low:+.1f} to {100 * test.high:+.1f}"
