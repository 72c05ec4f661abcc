"""Cells, tables and notes of the studies: means over seeds, the paper's numbers, and which rows lead."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from fedbasis.methods import METHODS
from fedbasis.methods.fedbasis.config import FedBasisConfig
from fedbasis.methods.fedrep import FedRepConfig
from fedbasis.report.paired import bold
from fedbasis.report.tables import NOTHING, Cell, Grid
from fedbasis.studies.base import Setup
from fedbasis.studies.tuned import Tuned, shipped
from fedbasis.studies.variants import PRINTED, variant
from fedbasis.studies.verdicts import PairScores

PAPER = "paper*"
"""The heading of every column of the paper's numbers; the star refers to ``another_scale``."""
TITLES = {
    "pacs": "PACS", "office-home": "Office-Home", "gld23k": "GLD23k", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"
}  # fmt: skip


def measured(shares: Sequence[float], run: str = "", digits: int = 1) -> Cell:
    """Write shares of one, an item a seed, as a percentage, with the standard deviation if there are several."""
    if not shares:
        return Cell(NOTHING)
    spread = f" ± {100 * stdev(shares):.{digits}f}" if len(shares) > 1 else ""
    return Cell(f"{100 * fmean(shares):.{digits}f}{spread}", 100 * fmean(shares), run)


def number(value: float | None, digits: int = 1, run: str = "") -> Cell:
    """Write a number without a change of unit."""
    return Cell(NOTHING) if value is None else Cell(f"{value:.{digits}f}", value, run)


def marked(
    rows: Sequence[tuple[Cell, Sequence[Cell]]], scores: Mapping[int, Sequence[PairScores]]
) -> list[tuple[Cell, list[Cell]]]:
    """Mark in these columns the best row, and those not significantly worse, by the rows' scores of clients."""
    result = [(name, list(cells)) for name, cells in rows]
    for column, by_row in scores.items():
        for (_, cells), best in zip(result, bold(by_row), strict=True):
            cells[column] = replace(cells[column], best=best)
    return result


def table(
    caption: str,
    columns: Sequence[str],
    rows: Mapping[str, Sequence[Cell]],
    scores: Mapping[int, Mapping[str, PairScores]] | None = None,
) -> Grid:
    """Make a plain table; in the columns of ``scores`` the leading rows are marked, by these scores of clients."""
    named = [(Cell(name), cells) for name, cells in rows.items()]
    by_row = {column: [mine.get(name, {}) for name in rows] for column, mine in (scores or {}).items()}
    return Grid(caption, [("", len(columns))], columns, marked(named, by_row))


def another_scale(setup: Setup, testbed: str, dataset: str) -> str:
    """Return a note on how the paper's numbers, which are on this dataset, compare with the measured ones."""
    if setup.scale.name == "paper":
        chosen = "the training here is our choice, since the paper only refers to Collins et al. 2021"
        settings = chosen if dataset.startswith("cifar") else "the settings here are the paper's"
        return f"* The paper's figure on {TITLES[dataset]}; {settings}."
    return (
        f"* The paper's figure on {TITLES[dataset]}, from another scale: larger images and networks, more rounds. "
        f"Here: {title(setup, testbed)}."
    )


def budget(setup: Setup, testbed: str, runs: Mapping[str, object]) -> str:
    """Return a note on the local epochs of a round, and on methods that spend more."""
    epochs = setup.testbed(testbed).train["epochs"]
    parts = [f"Local training of a round: {epochs} epoch{'s' * (epochs > 1)}"]
    if "l2gd" in runs:
        parts.append("L2GD the same, in place of its random communication")
    if "fedrep" in runs:
        head = setup.scale.settings(testbed, "fedrep").get(
            "head_epochs", FedRepConfig.model_fields["head_epochs"].default
        )
        parts.append(f"FedRep {epochs} on its body after {head} on its head")
    if {"fedbasis", PRINTED} & set(runs):
        after = ", ".join(
            f"{100 * warm_start(setup, testbed, name):.0f} % of the rounds{label}"
            for name, label in (("fedbasis", ""), (PRINTED, " as printed"))
            if name in runs
        )
        parts.append(
            f"FedBasis {epochs} on its bases after {epochs} on its coefficients, after a warm start of {after}, which "
            "trains as FedAvg does"
        )
    return f"{'; '.join(parts)}."


def warm_start(setup: Setup, testbed: str, name: str) -> float:
    """Return the share of the rounds in which FedBasis, or a variant of it, trains as FedAvg does."""
    default = FedBasisConfig.model_fields["warm_start"].default
    share: float = setup.raw(testbed, name)["method"].get("warm_start", default)
    return share


def chosen_on(setup: Setup, testbed: str, names: Sequence[str]) -> str:
    """Return a note on which images chose the settings, learning rates and statistics of these methods and variants."""
    log = shipped(setup.scale.name, testbed) if setup.tuned else None
    tuned = [name for name in names if log is not None and name in log.methods]
    others = [name for name in names if name not in tuned]
    validation = _on_validation(setup, testbed)
    carried = _carried(setup, testbed, others)
    if log is None or not tuned:
        return f"Every method has its default settings at this scale{carried}; {validation}"
    first = log.methods[tuned[0]]
    seeds = f"{len(first.seeds)} seed{'s' * (len(first.seeds) > 1)}"
    note = (
        "Settings, learning rates and normalization statistics were chosen on the tuning part of the dataset, which no "
        f"table shows, with {_tries(log, tuned)}, {seeds} each."
    )
    if not others:
        return note
    rest = ", ".join(map(_method_title, others))
    return f"{note} Not tuned: {rest}. There, settings are the defaults{carried}, and {validation}"


def _tries(log: Tuned, names: Sequence[str]) -> str:
    """Say how many tries these methods had, and which had fewer."""
    counts = {name: len(log.methods[name].tries) for name in names}
    most = max(counts.values())
    fewer = ", ".join(f"{_method_title(name)} {count}" for name, count in counts.items() if count < most)
    return f"{most} tries for every method{f' ({fewer})' if fewer else ''}"


def _on_validation(setup: Setup, testbed: str) -> str:
    """Note what is chosen for the rows of a method that was not tuned, and that a single rate is no choice."""
    serve = setup.testbed(testbed).personalize
    rates, statistics = serve["rates"], serve.get("statistics", [])
    rate = "the learning rate" if len(rates) > 1 else ""
    kind = "for ways that do not fix them, the normalization statistics" if len(statistics) > 1 else ""
    said = f"{rate} and, {kind}" if rate and kind else rate or kind
    fixed = "" if rate else f"the learning rate of personalization is {rates[0]:g} in every row"
    if not said:
        return f"{fixed}."
    chosen = f"{said} of a row are chosen on validation images, for every row by the same rule."
    return f"{fixed}; {chosen}" if fixed else chosen.replace("row are", f"row {'are' if kind else 'is'}", 1)


def not_tuned(setup: Setup, testbed: str, names: Sequence[str]) -> list[str]:
    """Return a note on the methods that have default settings beside tuned ones, if there are any."""
    log = shipped(setup.scale.name, testbed) if setup.tuned else None
    others = [name for name in names if log is not None and name not in log.methods]
    if not others or len(others) == len(names):
        return []
    return [f"Not tuned, with default settings beside tuned ones: {', '.join(map(_method_title, others))}."]


def _carried(setup: Setup, testbed: str, names: Sequence[str]) -> str:
    """Name what methods have from the tuning on another dataset."""
    parts = [
        f"{_method_title(name)} {key} = {value}"
        for name, sections in setup.testbed(testbed).carried.items()
        if setup.tuned and name in names
        for section in sections.values()
        for key, value in section.items()
    ]
    return f" but for what tuning chose on PACS at 32 pixels ({', '.join(parts)})" if parts else ""


def _method_title(name: str) -> str:
    return variant(name).title or METHODS[variant(name).method].about.title


def title(setup: Setup, testbed: str) -> str:
    """Name a dataset at its scale."""
    return setup.testbed(testbed).title


def printed(setup: Setup, testbed: str) -> str:
    """Name the dataset whose numbers in the paper are shown beside this one's."""
    return setup.testbed(testbed).printed or testbed.removesuffix("-all")


def percent(share: float) -> str:
    """Write a share of one as a percentage without its sign."""
    return f"{100 * share:.1f}"
