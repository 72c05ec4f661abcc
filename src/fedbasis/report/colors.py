"""The colours of the page: one colour means one thing.

FedBasis has a colour of its own. Every other method has one of six others, three of them from Okabe and Ito's palette,
which colour-blind readers can tell apart, and three that are always dashed. Domains have muted colours and shapes
(``pflbed.plots``). Whatever else has an order, such as rates and blocks, is drawn in shades of the text's colour. All
colours have a contrast of at least 3:1 on the light and on the dark page.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedbasis.report.groups import Group

OWN = "fedbasis"
OWN_COLOR = "#d55e00"
OTHERS = ("#0072b2", "#009e73", "#c26c9b", "#7b61c4", "#2f93a8", "#6f7885")
SOLID = 3
"""So many of the others can be told apart by their colour alone; the rest are dashed."""
DASHES: tuple[str, ...] = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
FAINTEST = 0.5
"""The opacity of the lightest shade: still 3:1 on both pages."""


@dataclass(frozen=True)
class MethodStyle:
    """How the curves and dots of a method are drawn."""

    color: str
    dash: str = "-"
    marker: str = "o"


@dataclass(frozen=True)
class LegendEntry:
    """An entry of a legend: a line, with a marker or not, a marker alone, or an upright line."""

    name: str
    color: str = "currentColor"
    dash: str = "-"
    marker: str = ""
    width: float = 2.0
    opacity: float = 1.0
    kind: str = "line"
    """``line``, ``dot``, ``upright`` or ``shades``."""
    ends: tuple[str, str] = ("0", "1")
    """What no colour and full colour mean, for ``shades``."""


def method_styles(groups: Sequence[Group]) -> dict[str, MethodStyle]:
    """Return the style of every group by its anchor; groups of one method share their colour."""
    others = list(dict.fromkeys(group.method for group in groups if group.method != OWN))
    used = Counter[str]()
    styles = {}
    for number, group in enumerate(groups):
        place = None if group.method == OWN else others.index(group.method) % len(OTHERS)
        color, first = (OWN_COLOR, 0) if place is None else (OTHERS[place], int(place >= SOLID))
        dash = DASHES[(first + used[color]) % len(DASHES)]
        styles[group.anchor] = MethodStyle(color, dash, MARKERS[number % len(MARKERS)])
        used[color] += 1
    return styles


def family_colors(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for every name; one that opens with FedBasis has its own."""
    distinct = list(dict.fromkeys(names))
    others = [name for name in distinct if not name.startswith("FedBasis")]
    return {name: OTHERS[others.index(name) % len(OTHERS)] if name in others else OWN_COLOR for name in distinct}


def shades(count: int) -> list[float]:
    """Return so many opacities of the text's colour, from faint to full."""
    return [FAINTEST + (1 - FAINTEST) * i / (count - 1) for i in range(count)] if count > 1 else [1.0] * count
