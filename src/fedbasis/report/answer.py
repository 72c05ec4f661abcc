"""The chart on top of the page: every method's accuracy at every size, from the best down.

It is made of html, not of one drawing, so that its text has the page's size on any screen.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedbasis.report.colors import OWN, MethodStyle
from fedbasis.report.groups import Group, compared
from fedbasis.report.headline import Sentence, sentences
from fedbasis.report.ranking import APART, LEAD, TIED, Ranked, ranked
from fedbasis.report.runs import sizes_of
from fedbasis.report.testbeds import Testbed

ROWS = 16
"""The most rows of a panel; the table has all."""
TAGGED = 4
"""More ties than this are said in the caption alone."""
STEPS = (1, 2, 5, 10, 20)
"""Distances of ticks, in points of accuracy."""
SAID = {LEAD: "leads", TIED: "not significantly worse", APART: "on other clients"}


@dataclass(frozen=True)
class Dot:
    """A row: positions are percent of the panel's width."""

    name: str
    link: str
    color: str
    own: bool
    mark: str
    value: str
    at: float
    low: float | None
    high: float | None
    said: str


@dataclass(frozen=True)
class DotPanel:
    """One size."""

    title: str
    dots: Sequence[Dot]
    ticks: Sequence[tuple[str, float]]
    left: int
    """Rows that are not drawn."""
    label: str


@dataclass(frozen=True)
class AnswerChart:
    """One data set: its sentences and a panel per size."""

    title: str
    sentences: Sequence[Sentence]
    panels: Sequence[DotPanel]
    whiskers: bool
    ties: bool
    crowded: bool
    """Whether the ties are too many to tag each of them."""


def answer(testbed: Testbed, styles: Mapping[str, MethodStyle]) -> AnswerChart:
    """Lay out the chart of one data set; all its panels have one scale."""
    groups, same = testbed.groups, compared(testbed.groups)
    sizes = sizes_of([run for group in groups for run in group.scored])
    rows = {size: _rows(groups, same, size) for size in sizes}
    rows = {size: mine for size, mine in rows.items() if mine}
    shown = {size: _best(mine) for size, mine in rows.items()}
    ends = [100 * end for mine in shown.values() for row in mine for end in (row.mean, *(row.interval or ()))]
    low, high, step = _scale(min(ends, default=0.0), max(ends, default=100.0))

    def place(share: float) -> float:
        return round(100 * (min(max(100 * share, low), high) - low) / (high - low), 2)

    def dot(row: Ranked) -> Dot:
        style, ends = styles[row.group.anchor], row.interval
        said = f"{row.title}: {100 * row.mean:.1f} %" + (f", {SAID[row.mark]}" if row.mark in SAID else "")
        return Dot(
            row.title, row.group.anchor, style.color, row.group.method == OWN, row.mark, f"{100 * row.mean:.1f}",
            place(row.mean), place(ends[0]) if ends else None, place(ends[1]) if ends else None, said,
        )  # fmt: skip

    ticks = [
        (f"{low + i * step:g}", round(100 * i * step / (high - low), 2)) for i in range(round((high - low) / step) + 1)
    ]
    panels = [
        DotPanel(
            f"Size {size}: {_share(sizes[size])} of a client's training images", [dot(row) for row in mine], ticks,
            len(rows[size]) - len(mine),
            f"Personalized accuracy at size {size}. " + "; ".join(dot(row).said for row in mine),
        )
        for size, mine in shown.items()
    ]  # fmt: skip
    dots = [dot for panel in panels for dot in panel.dots]
    return AnswerChart(
        testbed.title, sentences(testbed), panels, any(dot.low is not None for dot in dots),
        any(dot.mark == TIED for dot in dots), any(len(_tied(panel)) > TAGGED for panel in panels),
    )  # fmt: skip


def _tied(panel: DotPanel) -> list[Dot]:
    return [dot for dot in panel.dots if dot.mark == TIED]


def _rows(groups: Sequence[Group], same: Sequence[Group], size: str) -> list[Ranked]:
    """Rank the groups that served the same clients; the others follow, and are compared with nobody."""
    apart = [row for group in groups if group not in same for row in ranked([group], size)]
    return ranked(same, size) + [
        Ranked(row.group, row.title, row.mean, row.scores, APART, None) for row in sorted(apart, key=lambda r: -r.mean)
    ]


def _best(rows: Sequence[Ranked]) -> list[Ranked]:
    """Keep the first rows where there are too many, and FedBasis wherever it is."""
    kept = list(rows[:ROWS])
    own = next((row for row in rows if row.group.method == OWN), None)
    return kept if own is None or own in kept else [*kept[:-1], own]


def _scale(low: float, high: float) -> tuple[float, float, float]:
    """Return round ends and the distance of ticks, at most six of them."""
    room = max(1.0, 0.03 * (high - low))
    low, high = max(0.0, low - room), min(100.0, high + room)
    step = next((step for step in STEPS if (high - low) / step <= 5), STEPS[-1])
    return step * math.floor(low / step), step * math.ceil(high / step), step


def _share(share: float) -> str:
    return "all" if share == 1 else "half" if share == 0.5 else f"{100 * share:g} %"
