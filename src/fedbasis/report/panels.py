"""The figures about clients: accuracies, curves, coefficients and images."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from markupsafe import Markup

from fedbasis.report import figures
from fedbasis.report.colors import DASHES, LegendEntry, method_styles, shades
from fedbasis.report.figures import Line
from fedbasis.report.groups import ClientScores, Group
from fedbasis.report.runs import RunData, domain_of, domains_of, number, numbers, sizes_of, validation_curve
from fedbasis.report.svg import INK, Sheet
from fedbasis.serving.personalize import UNTRAINED
from pflbed.plots import client_bubbles, domain_style

ROWS = 20
"""The most rows of a figure of accuracies; the tables have all."""
DOTS = 2500
"""The most dots of a figure; more are drawn as bars."""


@dataclass(frozen=True)
class Panel:
    """Figures that belong together."""

    title: str
    figures: Sequence[Markup]
    legend: Sequence[LegendEntry] = ()
    note: str = ""

    @property
    def columns(self) -> int:
        """So many figures beside each other leave the fewest gaps: two or three."""
        return _columns(len(self.figures), (3, 2))

    @property
    def narrow_columns(self) -> int:
        """The same for narrow figures."""
        return _columns(len(self.figures), (6, 5, 4))


def domain_styles(groups: Sequence[Group]) -> dict[str, tuple[str, str]]:
    """Return colour and shape of every domain of the page, the same in all its figures and in clients.png."""
    names = domains_of([run for group in groups for run in group.runs])
    return {name: domain_style(number) for number, name in enumerate(names)}


def accuracies(groups: Sequence[Group], title: str, sheet: Sheet) -> Panel | None:
    """Show every client's accuracy, a figure per size, the best rows first where there are too many."""
    styles = domain_styles(groups)
    everyone = {
        size: {group.title(how): mine for group in groups for how in group.ways if (mine := group.scores(how, size))}
        for size in sizes_of([run for group in groups for run in group.scored])
    }
    found = {size: _best(rows) for size, rows in everyone.items() if rows}
    least = min((score for rows in found.values() for mine in rows.values() for score in mine.values()), default=0.0)
    crowded = any(sum(len(mine) for mine in rows.values()) > DOTS for rows in found.values())
    drawn, of = [], f"{title}: p" if title else "P"
    for size, rows in found.items():
        dots = {name: [styles[domain_of(client)] for _, client in mine] for name, mine in rows.items()}
        points = {name: list(mine.values()) for name, mine in rows.items()}
        figure = figures.strip(points, dots, max(-1.0, 10 * math.floor(10 * least) - 1), crowded)
        figure.axes[0].set_title(figures.short(f"size {size}"))
        drawn.append(sheet(figure, f"{of}ersonalized accuracy of every client by method, size {size}"))
    if not drawn:
        return None
    note = "A dot is one client (Last), in the colour and shape of its domain; the upright bar is the mean."
    if crowded:
        note = (
            "The thick bar holds the middle half of the clients (Last), the thin one all but the worst and the "
            "best tenth; the upright bar is the mean."
        )
    if (most := max(map(len, everyone.values()))) > ROWS:
        note += f" The {ROWS} best of {most} rows are drawn; the tables hold all."
    return Panel(title, drawn, [] if crowded else _domain_keys(styles), note)


def _domain_keys(styles: Mapping[str, tuple[str, str]]) -> list[LegendEntry]:
    return [LegendEntry(name, color, marker=marker, kind="dot") for name, (color, marker) in styles.items()]


@dataclass(frozen=True)
class _Adapted:
    """One way of personalizing: its mean validation accuracy after so many epochs, for every rate."""

    title: str
    color: str
    chosen: float
    before: float | None
    """In percent, of the model that the clients start from."""
    means: Mapping[float, tuple[list[int], list[float]]]

    @property
    def points(self) -> list[float]:
        return [value for _, mean in self.means.values() for value in mean if np.isfinite(value)]

    @property
    def epochs(self) -> list[int]:
        return sorted({epoch for epochs, _ in self.means.values() for epoch in epochs})

    def along(self, rate: float) -> tuple[list[int], list[float]]:
        epochs, mean = self.means[rate]
        return (epochs, mean) if self.before is None else ([0, *epochs], [self.before, *mean])


def adaptation(groups: Sequence[Group], size: str, sheet: Sheet) -> Panel | None:
    """Show the mean validation accuracy along the epochs, a figure per method and a line per rate.

    A way that was validated once, with nothing known from before, is a sentence instead.
    """
    found, styles = list[_Adapted](), method_styles(groups)
    for group in groups:
        for how in (how for how in group.ways if how not in UNTRAINED):
            mine = [r for run in group.scored for r in run.records if (r["how"], r["size"]) == (how, size)]
            rates = sorted({record["rate"] for record in mine})
            means = {rate: validation_curve([r for r in mine if r["rate"] == rate]) for rate in rates}
            chosen = Counter(row.rate for row in group.rows(how, size)).most_common(1)
            if chosen:
                color, before = styles[group.anchor].color, accuracy_before(group, mine, size)
                found.append(_Adapted(group.title(how), color, chosen[0][0], before, means))
    found = [way for way in found if way.points]
    if not found:
        return None
    curves = [way for way in found if len(way.epochs) + (way.before is not None) > 1]
    short = ", ".join(f"{way.title} {max(way.points):.1f}\xa0%" for way in found if way not in curves)
    note = f"Validated after the last epoch only, at the best rate: {short}." if short else ""
    if not curves:
        return Panel("", [], [], note)
    every = sorted({rate for way in curves for rate in way.means})
    shade, dash = dict(zip(every, shades(len(every)), strict=True)), {r: DASHES[i % 4] for i, r in enumerate(every)}
    values = [value for way in curves for value in [*way.points, *([] if way.before is None else [way.before])]]
    room = max(1.0, 0.05 * (max(values) - min(values)))
    drawn = []
    for way in curves:
        lines = [
            Line(
                *way.along(rate), color=way.color if rate == way.chosen else INK, dash=dash[rate], marker="o",
                width=2.4 if rate == way.chosen else 1.1, opacity=1.0 if rate == way.chosen else shade[rate],
            )
            for rate in sorted(way.means, key=lambda rate: rate == way.chosen)
        ]  # fmt: skip
        limits = (min(values) - room, max(values) + room)
        ticks = _ticks(way.epochs, way.before is not None)
        figure = figures.curves(lines, "epoch", "validation accuracy (%)", limits, way.title, ticks=ticks)
        drawn.append(sheet(figure, f"{way.title}: mean validation accuracy along the adaptation epochs, size {size}"))
    return Panel(
        "", drawn, [LegendEntry(f"rate {rate:g}", dash=dash[rate], opacity=shade[rate]) for rate in every], note
    )


def _ticks(epochs: Sequence[int], before: bool) -> dict[float, str]:
    """Return ticks at the epochs that were measured, at most six, the last one among them; 0 is called before."""
    step = -(-len(epochs) // 6)
    chosen = sorted(epochs[::-1][::step])
    return {**({0: "before"} if before else {}), **{epoch: str(epoch) for epoch in chosen}}


def accuracy_before(group: Group, records: Sequence[Mapping[str, Any]], size: str) -> float | None:
    """Return the mean validation accuracy, in percent, of the common model that these clients start from.

    It is what the records say, or else the way ``none`` of the same runs; nothing where neither has it.
    """
    if not records:
        return None
    said = numbers(records, "before")
    if len(said) == len(records):
        return 100 * fmean(said)
    common = [r for run in group.scored for r in run.records if (r["how"], r["size"]) == ("none", size)]
    known = {r["client"]: number(r["validation"][-1]) for r in common if r["validation"]}
    if not {record["client"] for record in records} <= known.keys():
        return None
    before = fmean(known[record["client"]] for record in records)
    return 100 * before if np.isfinite(before) else None


def learned(groups: Sequence[Group], size: str, sheet: Sheet) -> list[Panel]:
    """Show what every new client learned at the chosen rate, a figure per row of a table; of the first seed."""
    order, styles = list(domain_styles(groups)), method_styles(groups)
    panels = []
    for group in groups:
        color = styles[group.anchor].color
        shown = [(first, row) for first in group.scored[:1] for row in first.rows if row.size == size]
        for run, row in shown:
            for table in run.learned(row.how, row.size).values():
                title = f"{group.title(row.how)}{seed_of(group, run)}: {table.title}"
                drawn, ends = [], (f"{table.span[0]:.3g}", f"{table.span[1]:.3g}")
                for name, values in table.rows.items():
                    clients = sorted(values, key=lambda client: (order.index(domain_of(client)), client))
                    mine = {client: values[client] for client in clients}
                    figure = figures.heat(mine, name, table.columns, color, table.span)
                    drawn.append(sheet(figure, f"{title}, {name}"))
                panels.append(Panel(title, drawn, [LegendEntry("", color, kind="shades", ends=ends)]))
    return panels


def populations(groups: Sequence[Group], sheet: Sheet) -> list[Panel]:
    """Show the images per class and client, once for every set of clients; of several seeds the first."""
    shown: dict[str, tuple[Group, RunData]] = {}
    styles = domain_styles(groups)
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
                drawn = sheet(
                    client_bubbles(run.benchmark, participating, legend=False), f"Images per class of {title}"
                )
                there = dict.fromkeys(run.benchmark.domain_of(client) for client in clients)
                keys = _domain_keys({name: styles[name] for name in there if name in styles})
                largest = max(int(run.benchmark.counts(client).max()) for client in clients)
                panels.append(Panel(title, [drawn], keys, f"The largest bubble is {largest:,} images."))
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


def _columns(count: int, choices: Sequence[int]) -> int:
    """Return the number of columns that leaves the fewest places of the last row empty; the first of equals."""
    if count <= max(choices):
        return max(1, count)
    return min(choices, key=lambda columns: -count % columns)
