"""Bubble plots of clients: a column per client, a row per class, the area is the number of images (figures B-D)."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pflbed.benchmark import MIXED, Benchmark
from pflbed.errors import InputError
from pflbed.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 120.0
"""Area of the largest bubble, in square points."""
DRAWN = 400
"""Clients drawn at most; more are not legible."""
LABELLED = 80
"""Class names are drawn for at most so many classes."""


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
    shown = {"participating clients": benchmark.participating, "new clients": benchmark.new}
    figure = _figure(benchmark, {title: names for title, names in shown.items() if names})
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"A picture must be a png, svg or pdf file, got {path.name!r}; change its ending")
    with replacing(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # characters that the font lacks are drawn as boxes
        figure.savefig(temporary, format=kind, dpi=130, metadata={"Software": None} if kind == "png" else None)


def _figure(benchmark: Benchmark, panels: Mapping[str, tuple[str, ...]]) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

    classes = len(benchmark.table.class_names)
    widest = max(len(names[:DRAWN]) for names in panels.values())
    width = max(5.0, 1.6 + 0.14 * widest)
    height = max(2.4, 1.2 + (0.22 * classes if classes <= LABELLED else min(30.0, 0.06 * classes)))
    figure = Figure(figsize=(width, height * len(panels)))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    all_axes = figure.subplots(len(panels), squeeze=False)[:, 0]
    for axes, (title, names) in zip(all_axes, panels.items(), strict=True):
        _panel(benchmark, axes, title, names)
    handles = {
        label: handle for axes in all_axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    legend = figure.legend(
        handles.values(), handles, loc="outside upper center", ncols=min(4, len(handles)), frameon=False
    )
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([40.0])
    return figure


def _panel(benchmark: Benchmark, axes: "Axes", title: str, names: tuple[str, ...]) -> None:
    """One column per client, one row per class."""
    from matplotlib import colormaps

    table, drawn = benchmark.table, names[:DRAWN]
    counts = np.stack([benchmark.counts(name) for name in drawn])
    scale = LARGEST / max(1, int(counts.max()))
    kinds = [benchmark.domain_of(name) for name in drawn]
    for number, domain in enumerate((*table.domain_names, MIXED)):
        here = np.array([kind == domain for kind in kinds])
        if not here.any():
            continue
        columns, classes = np.nonzero(counts * here[:, None])
        area = counts[columns, classes] * scale
        color = colormaps["tab10"](number % 10)
        axes.scatter(columns, classes, s=area, color=color, alpha=0.75, linewidths=0, label=domain)
    axes.set_xlim(-1, len(drawn))
    axes.set_ylim(len(table.class_names) - 0.4, -0.6)
    if len(table.class_names) <= LABELLED:
        size = 8 if len(table.class_names) <= 20 else 5
        axes.set_yticks(range(len(table.class_names)), [_plain(name) for name in table.class_names], fontsize=size)
    left = f" (the first {DRAWN} of {len(names):,})" if len(names) > DRAWN else ""
    axes.set_xlabel(title + left)
    axes.set_ylabel("classes")


def _plain(name: str) -> str:
    """A class name as plain text: dollar signs are escaped, long names are cut off."""
    short = name if len(name) <= 24 else f"{name[:22]}…"
    return short.replace("$", r"\$")
