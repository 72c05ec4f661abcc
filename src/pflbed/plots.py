"""Bubble plots of clients: a column per client, a row per class, the area is the number of images (figures B-D)."""

import warnings
from collections.abc import Mapping
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

LARGEST = 120.0
"""Area of the largest bubble, in square points."""
SMALLEST = 5.0
"""Area of the smallest bubble; less is not visible."""
DRAWN = 400
"""Clients drawn at most; more are not legible."""
LABELLED = 80
"""Class names are drawn for at most so many classes."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a94a3")
"""The colours of Okabe and Ito that are visible on white and on dark, and a grey; domains take them in order."""
MARKERS = ("o", "s", "^", "D")
"""With more domains than colours the shape changes."""
STYLE: dict[Any, Any] = {
    "font.size": 8.5, "text.color": "#1c2128", "axes.labelcolor": "#1c2128", "axes.edgecolor": "#1c2128",
    "xtick.color": "#1c2128", "ytick.color": "#1c2128", "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "text.parse_math": False, "svg.hashsalt": "pflbed",
}  # fmt: skip
"""As on the page of a report."""


def client_bubbles(benchmark: Benchmark, participating: bool = True) -> "Figure":
    """Draw the participating or the new clients, one colour per domain; no global figure is touched."""
    names = benchmark.participating if participating else benchmark.new
    if not names:
        raise InputError(
            "A plot of clients needs some, but this benchmark has none of this kind; choose the other kind"
        )
    return _figure(benchmark, {"participating clients" if participating else "new clients": names})


def save_bubbles(benchmark: Benchmark, path: Path) -> None:
    """Draw all clients, the participating ones above the new ones, into a png, svg or pdf file."""
    import matplotlib

    shown = {"participating clients": benchmark.participating, "new clients": benchmark.new}
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"A picture must be a png, svg or pdf file, got {path.name!r}; change its ending")
    with replacing(path) as temporary, matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure = _figure(benchmark, {title: names for title, names in shown.items() if names})
        warnings.filterwarnings("ignore", message="Glyph")  # characters that the font lacks are drawn as boxes
        figure.savefig(temporary, format=kind, dpi=130, metadata={"Software": None} if kind == "png" else None)


def _figure(benchmark: Benchmark, panels: Mapping[str, tuple[str, ...]]) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    classes = len(benchmark.table.class_names)
    widest = max(len(names[:DRAWN]) for names in panels.values())
    width = max(5.0, 1.6 + 0.14 * widest)
    height = max(2.4, 1.2 + (0.22 * classes if classes <= LABELLED else min(30.0, 0.06 * classes)))
    figure = Figure(figsize=(width, height * len(panels)))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    most = max(int(benchmark.counts(name).max()) for names in panels.values() for name in names[:DRAWN])
    all_axes = figure.subplots(len(panels), squeeze=False)[:, 0]
    drawn: dict[int, Any] = {}
    for axes, (title, names) in zip(all_axes, panels.items(), strict=True):
        drawn |= _panel(benchmark, axes, title, names, most)
    domains = (*benchmark.table.domain_names, MIXED)
    handles = {domains[number]: _handle(40.0, *_look(number)) for number in sorted(drawn)}
    _legend(figure, handles, "outside upper center")
    sizes = {f"{count:,} images" if count > 1 else "1 image": count for count in (1, max(1, most // 4), most)}
    areas = {label: _handle(_area(count, most), COLORS[-1], "o") for label, count in sizes.items()}
    _legend(figure, areas, "outside lower center")
    return figure


def _legend(figure: "Figure", handles: Mapping[str, Any], place: Any) -> None:
    """A legend whose names are set as they are: no formulas, and none left out for a leading underscore."""
    numbers = [str(i) for i in range(len(handles))]
    legend = figure.legend(
        list(handles.values()), numbers, loc=place, ncols=min(4, len(handles)), frameon=False, borderpad=0.2
    )
    for text, name in zip(legend.get_texts(), handles, strict=True):
        text.set_parse_math(False)
        text.set_text(_plain(name))


def _handle(area: float, color: str, marker: str) -> Any:
    from matplotlib.lines import Line2D

    size = float(np.sqrt(area))
    return Line2D([], [], linestyle="", marker=marker, color=color, markersize=size, alpha=0.8, markeredgewidth=0)


def _look(number: int) -> tuple[str, str]:
    """The colour and the shape of a domain."""
    return COLORS[number % len(COLORS)], MARKERS[number // len(COLORS) % len(MARKERS)]


def _area(count: Any, most: int) -> Any:
    return np.maximum(SMALLEST, count * (LARGEST / max(1, most)))


def _panel(benchmark: Benchmark, axes: "Axes", title: str, names: tuple[str, ...], most: int) -> dict[int, str]:
    """One column per client, one row per class; returns the domains that occur, by number."""
    from matplotlib.ticker import MaxNLocator

    table, drawn = benchmark.table, names[:DRAWN]
    counts = np.stack([benchmark.counts(name) for name in drawn])
    kinds = [benchmark.domain_of(name) for name in drawn]
    found: dict[int, str] = {}
    for number, domain in enumerate((*table.domain_names, MIXED)):
        here = np.array([kind == domain for kind in kinds])
        if not here.any() or domain in found.values():
            continue
        found[number] = domain
        columns, classes = np.nonzero(counts * here[:, None])
        color, marker = _look(number)
        area = _area(counts[columns, classes], most)
        axes.scatter(columns + 1, classes, s=area, color=color, marker=marker, alpha=0.8, linewidths=0)
    axes.set_xlim(0.4, len(drawn) + 0.6)
    axes.set_ylim(len(table.class_names) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#8a94a3", alpha=0.3, linewidth=0.5)
    axes.set_axisbelow(True)
    if len(table.class_names) <= LABELLED:
        size = 8 if len(table.class_names) <= 20 else 5
        axes.set_yticks(range(len(table.class_names)), [_plain(name) for name in table.class_names], fontsize=size)
        for label in axes.get_yticklabels():
            label.set_parse_math(False)
    left = f" (the first {DRAWN} of {len(names):,})" if len(names) > DRAWN else ""
    axes.set_xlabel(title + left)
    axes.set_ylabel("classes")
    return found


def _plain(name: str) -> str:
    """A name as it is, without control characters; long names are cut off."""
    shown = one_line(name)
    return shown if len(shown) <= 24 else f"{shown[:22]}…"
