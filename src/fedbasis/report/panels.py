"""The figures about clients: accuracies, curves, coefficients and images."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from fedbasis.report import figures
from fedbasis.report.figures import Line
from fedbasis.report.groups import ClientScores, Group
from fedbasis.report.runs import RunData, domain_of, domains_of, sizes_of, validation_curve
from fedbasis.report.svg import Sheet
from fedbasis.serving.personalize import UNTRAINED
from pflbed.plots import client_bubbles

Legend = Sequence[tuple[str, str, str]]  # name, colour, style of the line, "dot" or "upright"
ROWS = 20
"""The most rows of a figure of accuracies; the tables have all."""
DOTS = 2500
"""The most dots of a figure; more are drawn as bars."""


@dataclass(frozen=True)
class Panel:
    """Figures that belong together."""

    title: str
    figures: Sequence[Markup]
    legend: Legend = ()
    note: str = ""


def domain_colors(groups: Sequence[Group]) -> dict[str, str]:
    """Return a colour for every domain of the page, the same in all its figures."""
    names = domains_of([run for group in groups for run in group.runs])
    return {name: figures.domain_color(number) for number, name in enumerate(names)}


def accuracies(groups: Sequence[Group], title: str, sheet: Sheet) -> Panel | None:
    """Show every client's accuracy, a figure per size, the best rows first where there are too many."""
    colors = domain_colors(groups)
    everyone = {
        size: {group.title(how): mine for group in groups for how in group.ways if (mine := group.scores(how, size))}
        for size in sizes_of([run for group in groups for run in group.scored])
    }
    found = {size: _best(rows) for size, rows in everyone.items() if rows}
    least = min((score for rows in found.values() for mine in rows.values() for score in mine.values()), default=0.0)
    crowded = any(sum(len(mine) for mine in rows.values()) > DOTS for rows in found.values())
    drawn, of = [], f"{title}: p" if title else "P"
    for size, rows in found.items():
        dots = {name: [colors[domain_of(client)] for _, client in mine] for name, mine in rows.items()}
        points = {name: list(mine.values()) for name, mine in rows.items()}
        figure = figures.strip(points, dots, max(-1.0, 10 * math.floor(10 * least) - 1), crowded)
        figure.axes[0].set_title(figures.short(f"size {size}"))
        drawn.append(sheet(figure, f"{of}ersonalized accuracy of every client by method, size {size}"))
    if not drawn:
        return None
    note = "A dot is one client (Last), coloured by its domain; the upright bar is the mean."
    if crowded:
        note = (
            "The thick bar holds the middle half of the clients (Last), the thin one all but the worst and the "
            "best tenth; the upright bar is the mean."
        )
    if (most := max(map(len, everyone.values()))) > ROWS:
        note += f" The {ROWS} best of {most} rows are drawn; the tables hold all."
    return Panel(title, drawn, [] if crowded else [(name, color, "dot") for name, color in colors.items()], note)


def adaptation(groups: Sequence[Group], size: str, sheet: Sheet) -> Panel | None:
    """Show the mean validation accuracy along the epochs, a figure per method and a line per rate."""
    found: list[tuple[str, float, dict[float, tuple[list[int], list[float]]]]] = []
    for group in groups:
        for how in (how for how in group.ways if how not in UNTRAINED):
            mine = [r for run in group.scored for r in run.records if (r["how"], r["size"]) == (how, size)]
            rates = sorted({record["rate"] for record in mine})
            means = {rate: validation_curve([r for r in mine if r["rate"] == rate]) for rate in rates}
            chosen = Counter(row.rate for row in group.rows(how, size)).most_common(1)
            if chosen and any(np.isfinite(value) for _, mean in means.values() for value in mean):
                found.append((group.title(how), chosen[0][0], means))
    if not found:
        return None
    every = sorted({rate for *_, means in found for rate in means})
    values = [value for *_, means in found for _, mean in means.values() for value in mean if np.isfinite(value)]
    room = max(1.0, 0.05 * (max(values) - min(values)))
    limits = (min(values) - room, max(values) + room)
    drawn = []
    for title, used, means in found:
        lines = [
            Line(*curve, color=figures.method_color(every.index(rate)), width=2.6 if rate == used else 1.0)
            for rate, curve in means.items()
        ]
        figure = figures.curves(lines, "epoch", "validation accuracy (%)", limits, title)
        drawn.append(sheet(figure, f"{title}: mean validation accuracy along the adaptation epochs, size {size}"))
    return Panel("", drawn, [(f"rate {rate:g}", figures.method_color(i), "-") for i, rate in enumerate(every)])


def learned(groups: Sequence[Group], size: str, sheet: Sheet) -> list[Panel]:
    """Show what every new client learned at the chosen rate, a figure per row of a table; of the first seed."""
    colors = domain_colors(groups)
    order = list(colors)
    panels = []
    for group in groups:
        shown = [(first, row) for first in group.scored[:1] for row in first.rows if row.size == size]
        for run, row in shown:
            for table in run.learned(row.how, row.size).values():
                title = f"{group.title(row.how)}{seed_of(group, run)}: {table.title}"
                drawn = []
                for name, values in table.rows.items():
                    clients = sorted(values, key=lambda client: (order.index(domain_of(client)), client))
                    figure = figures.heat({client: values[client] for client in clients}, name, table.columns, colors)
                    drawn.append(sheet(figure, f"{title}, {name}"))
                panels.append(Panel(title, drawn, [(name, color, "dot") for name, color in colors.items()]))
    return panels


def populations(groups: Sequence[Group], sheet: Sheet) -> list[Panel]:
    """Show the images per class and client, once for every set of clients; of several seeds the first."""
    shown: dict[str, tuple[Group, RunData]] = {}
    for group in groups:
        for run in [run for run in group.runs if run.benchmark][:1]:
            shown.setdefault(run.population, (group, run))
    panels = []
    for group, run in shown.values():
        assert run.benchmark is not None
        for participating in (True, False):
            clients = run.benchmark.participating if participating else run.benchmark.new
            if clients:
                title = f"{len(clients)} {'participating' if participating else 'new'} clients{seed_of(group, run)}"
                drawn = sheet(client_bubbles(run.benchmark, participating), f"Images per class of {title}")
                panels.append(Panel(title, [drawn]))
    return panels


def seed_of(group: Group, run: RunData) -> str:
    """Name the seed where the group has several."""
    return f", seed {run.seed}" if len(group.runs) > 1 else ""


def _best(scores: dict[str, ClientScores]) -> dict[str, ClientScores]:
    """Keep the best rows where there are too many to draw."""
    if len(scores) <= ROWS:
        return scores
    ranked = sorted(scores, key=lambda name: -float(np.mean(list(scores[name].values()))))
    return {name: scores[name] for name in ranked[:ROWS]}
