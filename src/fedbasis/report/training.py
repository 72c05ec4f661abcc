"""Which figure shows what of training: loss and validation along the rounds, and the charts that a method asks for."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedbasis.report import figures
from fedbasis.report.figures import Line
from fedbasis.report.groups import Group
from fedbasis.report.panels import Panel, seed_of
from fedbasis.report.runs import RunData, number
from fedbasis.report.svg import Sheet

TOGETHER = 6
"""Curves of one figure; more cannot be told apart."""
CURVES = {"loss": ("training loss", 1.0), "validation": ("validation accuracy (%)", 100.0)}
WHOLE = "network"
"""The line of a chart that is about the whole network; the others are about its blocks."""


def training(groups: Sequence[Group], sheet: Sheet) -> list[Panel]:
    """Show loss and validation, a few methods together."""
    started = [group for group in groups if any(run.lines for run in group.runs)]
    parts = [started[i : i + TOGETHER] for i in range(0, len(started), TOGETHER)]
    lines = {
        key: [[_line(group, i, len(part), key) for i, group in enumerate(part)] for part in parts] for key in CURVES
    }
    limits = {key: _limits([line for part in mine for line in part]) for key, mine in lines.items()}
    panels = []
    for count, part in enumerate(parts):
        drawn = []
        for key, (name, _) in CURVES.items():
            figure = figures.curves(lines[key][count], "round", name, limits[key] if len(parts) > 1 else None)
            shown = ", ".join(group.name for group in part)
            drawn.append(sheet(figure, f"{name.capitalize()} along the rounds: {shown}"))
        legend = [(group.name, figures.method_color(i), "-") for i, group in enumerate(part)]
        legend += _ends([run for group in part for run in group.runs])
        panels.append(Panel("", drawn, legend))
    return panels


def charts(groups: Sequence[Group], sheet: Sheet) -> list[Panel]:
    """Draw the charts that methods ask for, such as how alike their bases are; of several seeds the first."""
    firsts = [(group, run) for group in groups for run in [run for run in group.runs if run.lines][:1]]
    return [panel for group, run in firsts if (panel := _charts(group.name + seed_of(group, run), run, sheet))]


def _ends(runs: Sequence[RunData]) -> list[tuple[str, str, str]]:
    phases = dict.fromkeys(phase for run in runs for _, phase in run.phase_ends)
    return [(f"end of the {phase}", "currentColor", "upright") for phase in phases]


def _line(group: Group, place: int, count: int, key: str) -> Line:
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
        range(start, last + 1), mean.tolist(), color=figures.method_color(place),
        width=1.4 + 1.2 * (count - 1 - place) / count,  # equal curves lie on each other, all visible
        marks=[round_ for round_, _ in ends],
        band=(low.tolist(), high.tolist()) if len(runs) > 1 else None,
    )  # fmt: skip


def _limits(lines: Sequence[Line]) -> tuple[float, float] | None:
    """Give all figures one scale, so that curves can be compared between them."""
    values = [value for line in lines for value in line.y if np.isfinite(value)]
    if not values:
        return None
    room = 0.05 * (max(values) - min(values)) or 1.0
    return min(values) - room, max(values) + room


def _charts(name: str, run: RunData, sheet: Sheet) -> Panel | None:
    """Draw one chart for every group of numbers: a line a block, and a thick one for the network or the mean."""
    found = {key: series for key in run.about["charts"] if (series := _nested(run.lines, key))}
    blocks = list(dict.fromkeys(block for series in found.values() for block in series if block != WHOLE))
    colors = {block: figures.depth_color(i / max(1, len(blocks) - 1)) for i, block in enumerate(blocks)}
    rounds, marks = [line["round"] for line in run.lines], [number_ for number_, _ in run.phase_ends]
    drawn = []
    for key, series in found.items():
        title = run.about["charts"][key]
        whole = series.get(WHOLE) or np.mean(list(series.values()), axis=0).tolist()
        lines = [
            Line(rounds, values, color=colors[block], width=1.0) for block, values in series.items() if block in colors
        ]
        if any(np.isfinite(whole)):
            lines.append(Line(rounds, whole, width=2.0, marks=marks))
        if lines:
            drawn.append(sheet(figures.curves(lines, "round", title), f"{name}: {title} along the rounds"))
    if not drawn:
        return None
    legend = [("whole network, or mean of its blocks", "currentColor", "-")]
    legend += [(block, color, "-") for block, color in colors.items()] + _ends([run])
    return Panel(name, drawn, legend)


def _nested(lines: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[float]]:
    found: list[dict[str, Any]] = [value if isinstance(value := line.get(key), dict) else {} for line in lines]
    return {name: [number(values.get(name)) for values in found] for name in dict.fromkeys(n for v in found for n in v)}
