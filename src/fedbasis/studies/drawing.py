"""The figures of the studies: curves with a legend, coefficients, clients; each an svg that stands alone."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedbasis.report import figures
from fedbasis.report.chapter import ReportFigure
from fedbasis.report.svg import Sheet, style
from pflbed.benchmark import Benchmark
from pflbed.plots import client_bubbles

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

Curve = tuple[Sequence[float], Sequence[float]]
IDS = re.compile(r'((?:id="|#))f\d+-')


def curves(name: str, caption: str, lines: Mapping[str, Curve], along: str, what: str) -> ReportFigure:
    """Draw named curves; a name that begins like another has its colour, and the next line style."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    with style():
        figure = Canvas(figsize=(figures.WIDE, 3.0), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        families = list(dict.fromkeys(line.partition(",")[0] for line in lines))
        seen: dict[str, int] = {}
        for line, (x, y) in lines.items():
            family = line.partition(",")[0]
            seen[family] = seen.get(family, -1) + 1
            color = figures.method_color(families.index(family))
            dash = figures.DASHES[seen[family] % len(figures.DASHES)]
            axes.plot(x, y, label=line, color=color, linestyle=dash, marker="o" if len(x) < 4 else "", markersize=3)
        axes.set_xlabel(along)
        axes.set_ylabel(what)
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
        return _finished(name, caption, figure)


def coefficients(name: str, caption: str, alpha: Mapping[str, Sequence[float]], block: str) -> ReportFigure:
    """Draw one block's coefficients, a row per client, grouped by domain."""
    domains = {client: client.rpartition("/")[0] for client in alpha}
    with style():
        return _finished(name, caption, figures.heat(alpha, domains, block))


def clients(name: str, caption: str, benchmark: Benchmark, participating: bool) -> ReportFigure:
    """Draw who has how many images of which class."""
    with style():
        return _finished(name, caption, client_bubbles(benchmark, participating))


def bars(
    name: str, caption: str, groups: Mapping[str, Mapping[str, Sequence[float]]], labels: Sequence[str]
) -> ReportFigure:
    """Draw mixtures of classes side by side: a panel per way, a bar per class and part."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    with style():
        figure = Canvas(figsize=(figures.WIDE, 2.0 * len(groups)), layout="constrained")
        FigureCanvasSVG(figure)
        for place, (title, parts) in enumerate(groups.items(), start=1):
            axes = figure.add_subplot(len(groups), 1, place)
            width = 0.8 / len(parts)
            for i, (part, shares) in enumerate(parts.items()):
                x = [position + i * width for position in range(len(shares))]
                axes.bar(x, shares, width, label=part, color=figures.method_color(i))
            axes.set_title(title)
            axes.set_xticks([position + 0.4 - width / 2 for position in range(len(labels))], labels)
            axes.set_ylabel("share")
            axes.legend(frameon=False)
        return _finished(name, caption, figure)


def _finished(name: str, caption: str, figure: "Drawn") -> ReportFigure:
    """Turn a drawing into svg; its ids carry its name, so that figures of several studies share a page."""
    svg = IDS.sub(rf"\g<1>{name}-", str(Sheet()(figure, caption)))
    return ReportFigure(name, caption, svg)
