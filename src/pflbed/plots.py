"""Who has what, at a glance: a column per client, a row per class, a bubble as large as the count (figures B-D)."""

from typing import TYPE_CHECKING

import numpy as np

from pflbed.benchmark import Benchmark
from pflbed.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 120.0
"""Area of the largest bubble, in square points."""


def client_bubbles(benchmark: Benchmark, participating: bool = True) -> "Figure":
    """Draw the participating or the new clients, one colour per domain; no global figure is touched."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

    names = benchmark.participating if participating else benchmark.new
    if not names:
        raise InputError(
            "a plot of clients needs some, but this benchmark has none of this kind; choose the other kind"
        )
    table = benchmark.table
    counts = np.stack([benchmark.counts(name) for name in names])
    scale = LARGEST / max(1, int(counts.max()))
    figure = Figure(figsize=(max(5.0, 1.6 + 0.14 * len(names)), max(2.4, 1.2 + 0.22 * len(table.class_names))))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    domains = np.array([table.domain_names.index(benchmark.domain_of(name)) for name in names])
    for number, domain in enumerate(table.domain_names):
        columns, classes = np.nonzero(counts * (domains == number)[:, None])
        color = colormaps["tab10"](number % 10)
        area = counts[columns, classes] * scale
        axes.scatter(columns, classes, s=area, color=color, alpha=0.75, linewidths=0, label=domain)
    axes.set_xlim(-1, len(names))
    axes.set_ylim(len(table.class_names) - 0.4, -0.6)
    axes.set_yticks(range(len(table.class_names)), table.class_names, fontsize=8 if len(table.class_names) <= 20 else 5)
    axes.set_xlabel("participating clients" if participating else "new clients")
    axes.set_ylabel("classes")
    legend = figure.legend(loc="outside upper center", ncols=min(4, len(table.domain_names)), frameon=False)
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([40.0])
    figure.set_layout_engine("constrained")
    return figure
