"""Bubble plots of clients: a column per client, a row per class, the area is the number of images (figures B-D)."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pflbed.benchmark import MIXED, Benchmark
from pflbed.errors import InputError
from pflbed.files import replacing
from pflbed.plain_text import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

INK, QUIET, RULE = "#1c2128", "#56606d", "#dfe3e8"
"""Text, axis labels and grid lines."""
COLORS = ("#a8850a", "#5b6c8f", "#5f7a2e", "#4e8080", "#95608e", "#8f6b4f")
"""Colours of domains: muted, and with a contrast of at least 3:1 on white and on a dark page. Shapes differ as well."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
}
LARGEST = 120.0
"""Area of the largest bubble, in square points."""
SMALLEST = 3.0
"""Area of the smallest bubble: one image is visible."""
DRAWN = 400
"""Clients drawn at most; more are not legible."""
LABELLED = 80
"""Class names are drawn for at most so many classes."""


def domain_style(number: int) -> tuple[str, str]:
    """Return colour and marker of the domain with this number; the first 24 differ."""
    return COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]


def client_bubbles(benchmark: Benchmark, participating: bool = True, legend: bool = True) -> "Figure":
    """Draw the participating or the new clients, a colour and a shape per domain; no global figure is touched.

    Args:
        benchmark: The clients and their images.
        participating: Draw those that take part in training, or the new ones.
        legend: Name the domains inside the figure.
    """
    names = benchmark.participating if participating else benchmark.new
    if not names:
        raise InputError(
            "A plot of clients needs some, but this benchmark has none of this kind; choose the other kind"
        )
    return _figure(benchmark, {"participating clients" if participating else "new clients": names}, legend)


def save_bubbles(benchmark: Benchmark, path: Path) -> None:
    """Draw all clients, the participating ones above the new ones, into a png, svg or pdf file."""
    import matplotlib

    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"A picture must be a png, svg or pdf file, got {path.name!r}; change its ending")
    shown = {"participating clients": benchmark.participating, "new clients": benchmark.new}
    with matplotlib.rc_context(), replacing(path) as temporary, warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure = _figure(benchmark, {title: names for title, names in shown.items() if names})
        warnings.filterwarnings("ignore", message="Glyph")  # characters that the font lacks are drawn as boxes
        figure.savefig(temporary, format=kind, dpi=144, metadata={"Software": None} if kind == "png" else None)


def _figure(benchmark: Benchmark, panels: Mapping[str, Sequence[str]], legend: bool = True) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    classes = len(benchmark.table.class_names)
    widest = max(len(names[:DRAWN]) for names in panels.values())
    width = max(3.6, 1.3 + 0.14 * widest)
    height = max(1.7, 0.75 + (0.2 * classes if classes <= LABELLED else min(30.0, 0.06 * classes)))
    figure = Figure(figsize=(width, height * len(panels) + 0.35 * legend))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    all_axes = figure.subplots(len(panels), squeeze=False)[:, 0]
    largest = max(int(benchmark.counts(name).max()) for names in panels.values() for name in names[:DRAWN])
    domains: dict[str, tuple[str, str]] = {}
    for axes, (title, names) in zip(all_axes, panels.items(), strict=True):
        domains |= _panel(benchmark, axes, title, names, max(1, largest), titled=legend)
    if legend:
        _legend(figure, domains, max(1, largest))
    return figure


def _panel(
    benchmark: Benchmark, axes: "Axes", title: str, names: Sequence[str], largest: int, titled: bool
) -> dict[str, tuple[str, str]]:
    """Draw one column per client, one row per class; return the styles of the domains that are there."""
    from matplotlib.ticker import MaxNLocator

    table, drawn = benchmark.table, names[:DRAWN]
    counts = np.stack([benchmark.counts(name) for name in drawn])
    kinds = [benchmark.domain_of(name) for name in drawn]
    found = {}
    for number, domain in enumerate((*table.domain_names, MIXED)):
        here = np.array([kind == domain for kind in kinds])
        if not here.any():
            continue
        found[domain] = color, marker = domain_style(number)
        columns, classes = np.nonzero(counts * here[:, None])
        area = _area(counts[columns, classes], largest)
        axes.scatter(columns + 1, classes, s=area, color=color, marker=marker, alpha=0.85, linewidths=0)
    axes.set_xlim(0.2, len(drawn) + 0.8)
    axes.set_ylim(len(table.class_names) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    if len(table.class_names) <= LABELLED:
        size = 9 if len(table.class_names) <= 20 else 6
        axes.set_yticks(range(len(table.class_names)), [_short(name) for name in table.class_names], fontsize=size)
        for label in axes.get_yticklabels():
            label.set_parse_math(False)  # a name may hold a dollar sign
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    if titled:
        left = f" (the first {DRAWN} of {len(names):,})" if len(names) > DRAWN else ""
        axes.set_title(f"{len(drawn):,} {title}{left}")
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    return found


def bubble_sizes(largest: int) -> dict[int, float]:
    """Return a few round counts of images up to the largest, with the areas of their bubbles in square points."""
    steps = sorted({1, *(step for step in (10, 100, 1000, 10_000) if step < largest), largest})
    return {count: float(_area(np.array([count]), largest)[0]) for count in steps[-3:]}


def _area(counts: "NDArray[np.int64]", largest: int) -> "NDArray[np.float64]":
    area: NDArray[np.float64] = np.maximum(SMALLEST, counts * (LARGEST / largest))
    return area


def _legend(figure: "Figure", domains: Mapping[str, tuple[str, str]], largest: int) -> None:
    """Name the domains and three sizes above the panels."""
    from matplotlib.lines import Line2D

    def handle(color: str, marker: str, area: float) -> Line2D:
        return Line2D([], [], color=color, marker=marker, linestyle="", markersize=area**0.5, markeredgewidth=0)

    entries = [(handle(*style, 45.0), _short(domain)) for domain, style in domains.items()]
    entries += [(handle(QUIET, "o", area), _images(count)) for count, area in bubble_sizes(largest).items()]
    legend = figure.legend(
        [handle for handle, _ in entries], [""] * len(entries), loc="outside upper left", frameon=False,
        ncols=min(len(entries), max(3, int(figure.get_figwidth() / 1.1))), handletextpad=0.2, columnspacing=1.0,
    )  # fmt: skip
    for text, (_, label) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(label)  # given as labels, names that open with an underscore would be left out


def _images(count: int) -> str:
    return f"{count:,} image{'s' * (count != 1)}"


def _short(name: str) -> str:
    shown = one_line(name)
    return shown if len(shown) <= 24 else f"{shown[:22]}…"
