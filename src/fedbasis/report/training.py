"""Which figure shows what of training: loss and validation along the rounds, and the charts that a method asks for."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from fedbasis.report import figures
from fedbasis.report.colors import DASHES, OWN, LegendEntry, MethodStyle, method_styles, shades
from fedbasis.report.figures import Line
from fedbasis.report.groups import Group
from fedbasis.report.panels import Panel, seed_of
from fedbasis.report.runs import RunData, number, numbers
from fedbasis.report.svg import Sheet

TOGETHER = 6
"""Curves of one figure; more cannot be told apart."""
CURVES = {"loss": ("training loss", 1.0), "validation": ("validation accuracy (%)", 100.0)}
WHOLE = "network"
"""The line of a chart that is about the whole network; the others are about its blocks."""


def training(groups: Sequence[Group], sheet: Sheet) -> list[Panel]:
    """Show loss and validation, a few methods together, FedBasis and the strongest other method in every figure."""
    styles = method_styles(groups)
    parts = _parts([group for group in groups if any(run.lines for run in group.runs)])
    lines = {key: [[_line(group, styles[group.anchor], key) for group in part] for part in parts] for key in CURVES}
    limits = {key: _limits([line for part in mine for line in part]) for key, mine in lines.items()}
    panels = []
    for count, part in enumerate(parts):
        drawn = []
        for key, (name, _) in CURVES.items():
            figure = figures.curves(
                lines[key][count], "round", name, limits[key] if len(parts) > 1 else None, ticks=_few(lines[key][count])
            )
            shown = ", ".join(group.name for group in part)
            drawn.append(sheet(figure, f"{name.capitalize()} along the rounds: {shown}"))
        legend = [
            LegendEntry(group.name, style.color, style.dash, style.marker)
            for group in part
            for style in [styles[group.anchor]]
        ]
        legend += _ends([run for group in part for run in group.runs])
        panels.append(Panel("", drawn, legend))
    return panels


def _parts(groups: Sequence[Group]) -> list[list[Group]]:
    """Share groups out over figures; the best FedBasis and the strongest other group are in all of them."""
    if len(groups) <= TOGETHER:
        return [list(groups)] if groups else []
    own = max((group for group in groups if group.method == OWN), key=_strength, default=None)
    other = max((group for group in groups if group.method != OWN), key=_strength, default=None)
    fixed = [group for group in (own, other) if group is not None]
    rest = [group for group in groups if group not in fixed]
    count = -(-len(rest) // (TOGETHER - len(fixed)))
    size = -(-len(rest) // count)
    return [fixed + rest[i : i + size] for i in range(0, len(rest), size)]


def _strength(group: Group) -> tuple[float, float]:
    """Return the best mean accuracy of the group's ways, and the last validation accuracy."""
    means = {how: [row.last for run in group.scored for row in run.rows if row.how == how] for how in group.ways}
    seen = [value for run in group.runs for value in numbers(run.lines, "validation")[-1:]]
    return max((fmean(mine) for mine in means.values()), default=-1.0), max(seen, default=-1.0)


def _few(lines: Sequence[Line]) -> dict[float, str] | None:
    """Return a tick for every round where these are few."""
    rounds = sorted({x for line in lines for x in line.x})
    return {x: f"{x:g}" for x in rounds} if len(rounds) <= 8 else None


def charts(groups: Sequence[Group], sheet: Sheet) -> list[Panel]:
    """Draw the charts that methods ask for, such as how alike their bases are; of several seeds the first."""
    styles = method_styles(groups)
    firsts = [(group, run) for group in groups for run in [run for run in group.runs if run.lines][:1]]
    found = [_charts(group.name + seed_of(group, run), run, styles[group.anchor].color, sheet) for group, run in firsts]
    return [panel for panel in found if panel]


def _ends(runs: Sequence[RunData]) -> list[LegendEntry]:
    phases = dict.fromkeys(phase for run in runs for _, phase in run.phase_ends)
    return [LegendEntry(f"end of the {phase}", kind="upright") for phase in phases]


def _line(group: Group, style: MethodStyle, key: str) -> Line:
    """Average a curve over the seeds; a band holds them all."""
    runs = [run for run in group.runs if run.lines]
    start, ends = min(int(run.lines[0]["round"]) for run in runs), runs[0].phase_ends
    last = max(int(run.lines[-1]["round"]) for run in runs)
    values = np.full((len(runs), last - start + 1), np.nan)
    for row, run in zip(values, runs, strict=True):
        for line in run.lines:
            row[int(line["round"]) - start] = CURVES[key][1] * number(line.get(key))
    known = np.isfinite(values).any(axis=0)
    low, mean, high = (np.full(values.shape[1], np.nan) for _ in range(3))
    low[known], high[known] = np.nanmin(values[:, known], axis=0), np.nanmax(values[:, known], axis=0)
    mean[known] = np.nanmean(values[:, known], axis=0)
    return Line(
        range(start, last + 1), mean.tolist(), color=style.color, dash=style.dash, marker=style.marker,
        width=2.0 if group.method == OWN else 1.5, marks=[round_ for round_, _ in ends],
        band=(low.tolist(), high.tolist()) if len(runs) > 1 else None,
    )  # fmt: skip


def _limits(lines: Sequence[Line]) -> tuple[float, float] | None:
    """Give all figures one scale, so that curves can be compared between them."""
    values = [value for line in lines for value in line.y if np.isfinite(value)]
    if not values:
        return None
    room = 0.05 * (max(values) - min(values)) or 1.0
    return min(values) - room, max(values) + room


def _charts(name: str, run: RunData, color: str, sheet: Sheet) -> Panel | None:
    """Draw one chart for every group of numbers: a line a block, and a thick one for the network or the mean."""
    found = {key: series for key in run.about["charts"] if (series := _nested(run.lines, key))}
    blocks = list(dict.fromkeys(block for series in found.values() for block in series if block != WHOLE))
    shade = dict(zip(blocks, shades(len(blocks)), strict=True))
    dash = {block: DASHES[-1 - i % len(DASHES)] for i, block in enumerate(reversed(blocks))}
    rounds, marks = [line["round"] for line in run.lines], [number_ for number_, _ in run.phase_ends]
    drawn = []
    for key, series in found.items():
        title = run.about["charts"][key]
        whole = series.get(WHOLE) or np.mean(list(series.values()), axis=0).tolist()
        lines = [
            Line(rounds, values, width=1.1, dash=dash[block], opacity=shade[block])
            for block, values in series.items()
            if block in shade
        ]
        if any(np.isfinite(whole)):
            lines.append(Line(rounds, whole, color=color, width=2.4, marks=marks))
        if lines:
            figure = figures.curves(lines, "round", title, ticks=_few(lines))
            drawn.append(sheet(figure, f"{name}: {title} along the rounds"))
    if not drawn:
        return None
    legend = [LegendEntry("whole network, or mean of its blocks", color, width=3.0)]
    legend += [LegendEntry(block, dash=dash[block], width=1.5, opacity=shade[block]) for block in blocks]
    return Panel(name, drawn, legend + _ends([run]))


def _nested(lines: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[float]]:
    found: list[dict[str, Any]] = [value if isinstance(value := line.get(key), dict) else {} for line in lines]
    return {name: [number(values.get(name)) for values in found] for name in dict.fromkeys(n for v in found for n in v)}
