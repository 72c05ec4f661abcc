"""The figures of the page: each function takes plain numbers and returns one small figure that fits a phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fedbasis.report.runs import domain_of
from fedbasis.report.svg import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f8c3a")
"""Colour-blind safe, on light and on dark."""
DASHES: tuple[str, ...] = ("-", "--", "-.", ":")
"""For lines of one colour."""
DEPTHS = ("#4a7fd4", "#b35fb0", "#e08a2e")
BAR = "#2a78b8"
WIDE, NARROW = 4.6, 2.3


@dataclass(frozen=True)
class Line:
    """A curve along rounds, epochs or steps."""

    x: Sequence[float]
    y: Sequence[float]
    label: str = ""
    """For a legend inside the figure."""
    color: str = INK
    dash: str = "-"
    width: float = 1.5
    marks: Sequence[float] = field(default=())
    """Values of x with an upright dashed line."""
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """Lower and upper bounds, drawn as a shaded band."""


def method_color(number: int) -> str:
    """Return the colour of the run or line with this number."""
    return COLORS[number % len(COLORS)]


def domain_color(number: int) -> str:
    """Return the colour of a domain, the same as in PFLBed's plots."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return str(to_hex(colormaps["tab10"](number % 10)))


def depth_color(position: float) -> str:
    """Return a colour for a block by its depth, 0 for the first and 1 for the last, never near black or white."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    return str(to_hex(LinearSegmentedColormap.from_list("depth", DEPTHS)(position)))


def short(name: str, length: int = 28) -> str:
    """Fit a name into a figure; the tables have it in full."""
    clean = "".join(letter if letter.isprintable() else "�" for letter in name)
    return clean if len(clean) <= length else clean[: length - 1] + "…"


def strip(
    scores: Mapping[str, Sequence[float]], colors: Mapping[str, Sequence[str]], least: float, crowded: bool = False
) -> Figure:
    """Draw a row per method, a dot per client in its domain's colour, and the mean as an upright bar.

    Where clients are too many for dots, a thin bar spans all but the worst and the best tenth, a thick one the middle
    half.
    """
    step = 0.42 if len(scores) <= 8 else 0.24
    figure = new_figure(WIDE, 0.75 + step * len(scores))
    axes = figure.add_subplot()
    for y, (name, mine) in enumerate(scores.items()):
        x = 100 * np.asarray(mine)
        if crowded:
            low, quarter, rest, high = np.quantile(x, [0.1, 0.25, 0.75, 0.9])
            axes.hlines(y, low, high, colors=BAR, linewidth=1.2)
            axes.hlines(y, quarter, rest, colors=BAR, linewidth=5.0, alpha=0.55)
        else:
            spread = np.linspace(-0.26, 0.26, len(mine)) if len(mine) > 1 else np.zeros(1)
            order = [(7 * i) % len(mine) for i in range(len(mine))] if len(mine) % 7 else list(range(len(mine)))
            size = 16 if step > 0.3 else 9
            axes.scatter(x, y + spread[order], s=size, c=list(colors[name]), alpha=0.85, linewidths=0, zorder=2)
        axes.vlines(float(np.mean(x)), y - 0.4, y + 0.4, colors=INK, linewidth=2.0, zorder=3)
    axes.set_yticks(range(len(scores)), [short(name) for name in scores])
    axes.set_ylim(len(scores) - 0.5, -0.5)
    axes.set_xlim(least, 101)
    axes.set_xlabel("personalized accuracy (%)")
    axes.grid(visible=False, axis="y")
    return figure


def curves(
    lines: Sequence[Line], along: str, what: str, limits: tuple[float, float] | None = None, title: str = "",
    *, legend: bool = False,
) -> Figure:  # fmt: skip
    """Draw curves over a whole-numbered x axis; without a legend inside, the page around the figure has one."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(0.7 * WIDE if title else WIDE, 3.0 if legend else 2.5)
    axes = figure.add_subplot()
    for line in lines:
        marker = "o" if np.isfinite(line.y).sum() <= 3 else ""
        axes.plot(
            line.x, line.y, label=line.label, color=line.color, linestyle=line.dash, linewidth=line.width,
            marker=marker, markersize=3,
        )  # fmt: skip
        if line.band is not None:
            axes.fill_between(line.x, *line.band, color=line.color, alpha=0.16, linewidth=0)
        for mark in line.marks:
            axes.axvline(mark, color=line.color, linestyle=(0, (4, 3)), linewidth=0.9, alpha=0.9)
    axes.set_xlabel(along)
    axes.set_ylabel(what)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
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


def heat(
    values: Mapping[str, Sequence[float]],
    title: str,
    columns: Sequence[str],
    colors: Mapping[str, str] | None = None,
) -> Figure:
    """Draw what clients learned, as shares of one: a row per client in the colour of its domain."""
    from matplotlib.colors import to_rgb

    common = columns[0].rstrip("0123456789")  # "basis 0", "basis 1" ... have one axis, called "basis"
    common = common if all(column.startswith(common) for column in columns) else ""
    shares = np.array([list(row) for row in values.values()], dtype=np.float64)
    names = [domain_of(client) for client in values]
    if colors is None:
        colors = {name: domain_color(number) for number, name in enumerate(dict.fromkeys(names))}
    figure = new_figure(NARROW, 0.75 + min(0.17, max(0.07, 3.2 / len(shares))) * len(shares))
    axes = figure.add_subplot()
    inks = np.array([to_rgb(colors[name]) for name in names])[:, None, :].repeat(shares.shape[1], axis=1)
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
