"""The figures of the page: each function takes plain numbers and returns one small figure that fits a phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fedbasis.report.colors import OWN_COLOR
from fedbasis.report.runs import domain_of
from fedbasis.report.svg import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Dash = str | tuple[float, tuple[float, ...]]
"""A name, or a start and the lengths of lines and gaps in points."""
TURN = 5.0
"""The length in points of a dash of curves that lie on each other."""
WIDE, NARROW = 3.7, 1.75
"""Widths in inches: a figure of the page is read at its own size on a phone, so that its text is not shrunk."""


@dataclass(frozen=True)
class Line:
    """A curve along rounds, epochs or steps."""

    x: Sequence[float]
    y: Sequence[float]
    label: str = ""
    """For a legend inside the figure."""
    color: str = INK
    dash: Dash = "-"
    width: float = 1.5
    marks: Sequence[float] = field(default=())
    """Values of x with an upright dashed line."""
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Lower and upper bounds, drawn as a shaded band."""
    marker: str = ""
    opacity: float = 1.0


def short(name: str, length: int = 28) -> str:
    """Fit a name into a figure; the tables have it in full."""
    clean = "".join(letter if letter.isprintable() else "�" for letter in name)
    return clean if len(clean) <= length else clean[: length - 1] + "…"


def strip(
    scores: Mapping[str, Sequence[float]], styles: Mapping[str, Sequence[tuple[str, str]]], least: float,
    crowded: bool = False,
) -> Figure:  # fmt: skip
    """Draw a row per method, a dot per client in the colour and shape of its domain, and the mean as an upright bar.

    Where clients are too many for dots, a thin bar spans all but the worst and the best tenth, a thick one the middle
    half.
    """
    step = 0.36 if len(scores) <= 8 else 0.25
    figure = new_figure(WIDE, 0.75 + step * len(scores))
    axes = figure.add_subplot()
    for y, (name, mine) in enumerate(scores.items()):
        x = 100 * np.asarray(mine)
        if crowded:
            low, quarter, rest, high = np.quantile(x, [0.1, 0.25, 0.75, 0.9])
            axes.hlines(y, low, high, colors=INK, linewidth=1.2, alpha=0.6)
            axes.hlines(y, quarter, rest, colors=INK, linewidth=5.0, alpha=0.35)
        else:
            spread = np.linspace(-0.26, 0.26, len(mine)) if len(mine) > 1 else np.zeros(1)
            order = [(7 * i) % len(mine) for i in range(len(mine))] if len(mine) % 7 else list(range(len(mine)))
            size, height = 13 if step > 0.3 else 8, y + spread[order]
            for style in dict.fromkeys(styles[name]):
                here = np.array([one == style for one in styles[name]])
                axes.scatter(
                    x[here], height[here], s=size, color=style[0], marker=style[1], alpha=0.85, linewidths=0, zorder=2
                )
        axes.vlines(float(np.mean(x)), y - 0.4, y + 0.4, colors=INK, linewidth=2.0, zorder=3)
    axes.set_yticks(range(len(scores)), [short(name, 20) for name in scores])
    axes.set_ylim(len(scores) - 0.5, -0.5)
    axes.set_xlim(least, 101)
    axes.set_xlabel("personalized accuracy (%)")
    axes.grid(visible=False, axis="y")
    return figure


def curves(
    lines: Sequence[Line], along: str, what: str, limits: tuple[float, float] | None = None, title: str = "",
    *, legend: bool = False, ticks: Mapping[float, str] | None = None,
) -> Figure:  # fmt: skip
    """Draw curves over a whole-numbered x axis; without a legend inside, the page around the figure has one.

    Curves that lie on each other are dashed in turns, so that none hides another.
    """
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(WIDE, 3.0 if legend else 2.5)
    axes = figure.add_subplot()
    for line in apart(lines):
        known = int(np.isfinite(line.y).sum())
        marker = line.marker or ("o" if known <= 3 else "")
        axes.plot(
            line.x, line.y, label=line.label, color=line.color, linestyle=line.dash, linewidth=line.width,
            marker=marker, markersize=3.5, markeredgewidth=0, alpha=line.opacity, dash_capstyle="butt",
            markevery=None if known <= 10 else max(1, len(line.x) // 6),
        )  # fmt: skip
        if line.band is not None:
            axes.fill_between(line.x, *line.band, color=line.color, alpha=0.16, linewidth=0)
        for mark in line.marks:
            axes.axvline(mark, color=INK, linestyle=(0, (2, 3)), linewidth=0.9, alpha=0.6)
    axes.set_xlabel(along)
    axes.set_ylabel(what)
    if ticks is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    else:
        axes.set_xticks(list(ticks), list(ticks.values()))
    axes.ticklabel_format(axis="y", useOffset=False)
    x = [value for line in lines for value in line.x]
    margin = 0.03 * max(1, max(x) - min(x))
    axes.set_xlim(min(x) - margin, max(x) + margin)
    if limits is not None:
        axes.set_ylim(*limits)
    if title:
        axes.set_title(short(title, 34))
    if legend:
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def apart(lines: Sequence[Line]) -> list[Line]:
    """Dash curves that are equal up to the width of a line in turns: each is seen in the gaps of the others."""
    values = [value for line in lines for value in line.y if np.isfinite(value)]
    near = 0.004 * (max(values) - min(values)) if values else 0.0
    families: list[list[int]] = []
    for number, line in enumerate(lines):
        for mine in families:
            if _equal(lines[mine[0]], line, near):
                mine.append(number)
                break
        else:
            families.append([number])
    drawn = list(lines)
    for mine in (mine for mine in families if len(mine) > 1):
        for turn, number in enumerate(mine):
            dash = (TURN * (len(mine) - turn) % (TURN * len(mine)), (TURN, TURN * (len(mine) - 1)))
            drawn[number] = replace(lines[number], dash=dash)
    return drawn


def _equal(first: Line, second: Line, near: float) -> bool:
    if list(first.x) != list(second.x):
        return False
    return bool(np.allclose(first.y, second.y, rtol=0, atol=near, equal_nan=True))


def heat(
    values: Mapping[str, Sequence[float]], title: str, columns: Sequence[str], color: str = OWN_COLOR,
    span: tuple[float, float] = (0.0, 1.0),
) -> Figure:  # fmt: skip
    """Draw what clients learned: a row per client, domain by domain; the fuller, the larger.

    ``span`` is the number without colour and the one in full colour: 0 and 1 suit shares.
    """
    from matplotlib.colors import to_rgb

    common = columns[0].rstrip("0123456789")  # "basis 0", "basis 1" ... have one axis, called "basis"
    common = common if all(column.startswith(common) for column in columns) else ""
    low, high = span
    shares = (np.array([list(row) for row in values.values()], dtype=np.float64) - low) / (high - low)
    names = [domain_of(client) for client in values]
    figure = new_figure(NARROW, 0.75 + min(0.17, max(0.07, 3.2 / len(shares))) * len(shares))
    axes = figure.add_subplot()
    inks = np.broadcast_to(np.array(to_rgb(color)), (*shares.shape, 3))
    axes.grid(visible=False)
    axes.pcolormesh(np.dstack([inks, shares.clip(0, 1)]), edgecolors="none", linewidth=0, antialiased=False)
    starts = [0, *(i for i, (a, b) in enumerate(pairwise(names), start=1) if a != b), len(names)]
    for start in starts[1:-1]:
        axes.axhline(start, color=INK, linewidth=0.6)
    middles = [(a + b) / 2 for a, b in pairwise(starts)]
    axes.set_yticks(middles, [short(names[a], 11) for a in starts[:-1]])
    axes.set_xticks(np.arange(shares.shape[1]) + 0.5, [column.removeprefix(common) for column in columns])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(True)
    axes.set_ylim(len(shares), 0)
    axes.set_xlabel(common.strip())
    axes.set_title(short(title, 20))
    return figure


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure to be drawn as svg."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure
