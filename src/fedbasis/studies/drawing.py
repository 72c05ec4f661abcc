"""The figures of the studies: each an svg of its own, with a legend inside, and the numbers that are drawn as csv."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fedbasis.report import figures
from fedbasis.report.chapter import ReportFigure
from fedbasis.report.colors import DASHES, OTHERS, family_colors
from fedbasis.report.svg import Sheet, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = tuple[Sequence[float], Sequence[float]]


def drawn(
    name: str, caption: str, draw: Callable[[], "Figure"], head: Sequence[str], rows: Iterable[Sequence[object]]
) -> ReportFigure:
    """Draw a figure in the report's style; the name in its ids keeps those of several figures apart.

    Args:
        name: The name of its files.
        caption: What it shows.
        draw: Makes it.
        head: The columns of its numbers.
        rows: Its numbers, as they are to be written.
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([head, *rows])
    with style():
        return ReportFigure(name, caption, str(Sheet(f"{name}-")(draw(), caption)), buffer.getvalue())


def curves(name: str, caption: str, named: Mapping[str, Curve], along: str, what: str) -> ReportFigure:
    """Draw named curves; names that agree up to a comma have one colour and different dashes."""
    families = [label.partition(",")[0] for label in named]
    colors = family_colors(families)
    lines = []
    for i, (label, curve) in enumerate(named.items()):
        before = [colors[family] for family in families[:i]]
        dash = DASHES[before.count(colors[families[i]]) % len(DASHES)]
        lines.append(figures.Line(*curve, label, colors[families[i]], dash))
    rows = [[label, f"{x:g}", f"{y:.5g}"] for label, curve in named.items() for x, y in zip(*curve, strict=True)]
    return drawn(name, caption, lambda: figures.curves(lines, along, what, legend=True), ["curve", along, what], rows)


def bars(
    name: str, caption: str, panels: Mapping[str, Mapping[str, Sequence[float]]], labels: Sequence[str]
) -> ReportFigure:
    """Draw class distributions: a panel for each split, a bar per class and part."""

    def draw() -> "Figure":
        figure = figures.new_figure(figures.WIDE, 2.0 * len(panels))
        for place, (title, parts) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(len(panels), 1, place)
            width = 0.8 / len(parts)
            for i, (part, shares) in enumerate(parts.items()):
                x = [position + i * width for position in range(len(shares))]
                axes.bar(x, shares, width, label=part, color=OTHERS[i % len(OTHERS)])
            axes.set_title(title)
            axes.set_xticks([position + 0.4 - width / 2 for position in range(len(labels))], labels)
            axes.set_ylabel("share")
            axes.legend(frameon=False)
        return figure

    rows = [
        [panel, part, *(f"{share:.5g}" for share in shares)]
        for panel, parts in panels.items()
        for part, shares in parts.items()
    ]
    return drawn(name, caption, draw, ["panel", "part", *labels], rows)
