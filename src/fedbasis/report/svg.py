"""Figures as inline SVG: unique ids, no date, the text colour of the page."""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#010203"
"""Replaced by the page's text colour, so that figures are readable on light and on dark."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and any script is shown
    "svg.hashsalt": "fedbasis",
    "text.parse_math": False,  # a name may hold a dollar sign
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#8a94a3",
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "font.size": 8.5,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "lines.linewidth": 1.5,
}
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
LONG = re.compile(r"-?\d+\.\d{3,}")
"""A number with more digits than are visible."""
NAMESPACE = "http://www.w3.org/2000/svg"
DROPPED = {"metadata", "style", "title", "script", "foreignObject"}
DARK = "#1c2128"
"""The text colour of a figure in a file of its own."""


@contextmanager
def style() -> Iterator[None]:
    """Draw in the page's style inside this block, and leave matplotlib as it was."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        # matplotlib measures text in its own font, which the browser does not use: glyphs it lacks do not matter
        warnings.simplefilter("ignore", UserWarning)
        yield


class Sheet:
    """Turns figures into inline SVG with ids that are unique on a page: a prefix and the figure's number."""

    def __init__(self, prefix: str = "f") -> None:
        self._prefix, self._count = prefix, 0

    def __call__(self, figure: "Figure", alt: str) -> Markup:
        """Return the figure as markup; ``alt`` says what it shows."""
        return self.place(drawn(figure), alt)

    def place(self, svg: str, alt: str) -> Markup:
        """Return an svg as markup of this page."""
        self._count += 1
        root = ElementTree.fromstring(CONTROL.sub("\ufffd", svg))
        _clean(root, f"{self._prefix}{self._count}-")
        width = float(root.get("viewBox", "0 0 400 300").split()[2]) * 96 / 72
        for name in ("width", "height", "version"):
            root.attrib.pop(name, None)
        root.attrib |= {"role": "img", "aria-label": CONTROL.sub("\ufffd", alt), "fill": "currentColor"}
        root.set("style", f"width:{width:.0f}px")
        return Markup(ElementTree.tostring(root, encoding="unicode"))


def drawn(figure: "Figure") -> str:
    """Return the figure as text, without a date."""
    _lay_out(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _lay_out(figure: "Figure") -> None:
    """Place the axes once; ``savefig`` would draw the whole figure to do so, and then again."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    engine = figure.get_layout_engine()
    if engine is None:
        return
    FigureCanvasSVG(figure)
    own, figure.dpi = figure.dpi, FigureCanvasSVG.fixed_dpi
    engine.execute(figure)
    figure.dpi = own
    figure.set_layout_engine("none")


def standalone(svg: str) -> str:
    """Return a figure as the text of an svg file, with a size and a dark text colour."""
    root = ElementTree.fromstring(CONTROL.sub("\ufffd", svg))
    _clean(root, "")
    width, height = root.get("viewBox", "0 0 400 300").split()[2:4]
    for name in ("style", "role", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"xmlns": NAMESPACE, "width": f"{width}pt", "height": f"{height}pt", "color": DARK}
    root.set("fill", "currentColor")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _clean(element: ElementTree.Element, prefix: str) -> None:
    """Drop unsafe elements, make ids unique and replace the text colour, recursively."""
    element.tag = _local(element.tag)
    attributes = {_local(key): value for key, value in element.attrib.items()}
    element.attrib.clear()
    for key, value in attributes.items():
        if key == "id":
            if element.tag not in ("g", "svg"):  # groups are never referred to
                element.set(key, prefix + value)
        elif key == "href":
            element.set(key, re.sub("^#", f"#{prefix}", value))
        elif key in ("d", "x", "y", "transform"):
            element.set(key, " ".join(LONG.sub(lambda found: f"{float(found[0]):.2f}", value).split()))
        elif not key.startswith("on"):
            element.set(key, value.replace("url(#", f"url(#{prefix}").replace(INK, "currentColor"))
    for child in list(element):
        if _local(child.tag) in DROPPED:
            element.remove(child)
        else:
            _clean(child, prefix)


def _local(name: str) -> str:
    return name.rpartition("}")[2]
