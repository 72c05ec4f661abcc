"""The figures about training: loss and validation over the rounds, and the similarity of the bases."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedbasis.report import figures
from fedbasis.report.figures import Line
from fedbasis.report.groups import Group
from fedbasis.report.panels import Panel, seed_of
from fedbasis.report.runs import RunData, number
from fedbasis.report.svg import INK, Sheet

TOGETHER = 6
"""The most curves of one figure; more are hard to distinguish."""
WARM = ("end of the warm start", "currentColor", "upright")
CURVES = {"loss": ("training loss", 1.0), "validation": ("validation accuracy (%)", 100.0)}
BASES = {"cosine": "mean pairwise cosine", "entropy": "entropy of α (nats)"}


def training(groups: Sequence[Group], sheet: Sheet) -> list[Panel]:
    """Show loss and validation, a few methods together, then the bases of every method that has them."""
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
        legend += [WARM] if any(line.marks for line in lines["loss"][count]) else []
        panels.append(Panel("", drawn, legend))
    return panels


def bases(groups: Sequence[Group], sheet: Sheet) -> list[Panel]:
    """Show cosine and entropy along the rounds, block by block; of several seeds the first."""
    firsts = [(group, run) for group in groups for run in [run for run in group.runs if run.lines][:1]]
    return [panel for group, run in firsts if (panel := _bases(group.name + seed_of(group, run), run, sheet))]


def _line(group: Group, place: int, count: int, key: str) -> Line:
    """Average a curve over the seeds; a band holds them all."""
    runs = [run for run in group.runs if run.lines]
    start, end = min(int(run.lines[0]["round"]) for run in runs), runs[0].warm_start_end
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
        width=1.4 + 1.2 * (count - 1 - place) / count,  # equal curves overlap and stay visible
        marks=() if end is None else (end,),
        band=(low.tolist(), high.tolist()) if len(runs) > 1 else None,
    )  # fmt: skip


def _limits(lines: Sequence[Line]) -> tuple[float, float] | None:
    """Give all figures one scale, so that curves can be compared between them."""
    values = [value for line in lines for value in line.y if np.isfinite(value)]
    if not values:
        return None
    room = 0.05 * (max(values) - min(values)) or 1.0
    return min(values) - room, max(values) + room


def _bases(name: str, run: RunData, sheet: Sheet) -> Panel | None:
    cosine, entropy = _nested(run.lines, "cosine"), _nested(run.lines, "entropy")
    if not cosine and not entropy:
        return None
    blocks = list(entropy) or [block for block in cosine if block != "network"]
    colors = {block: figures.depth_color(i / max(1, len(blocks) - 1)) for i, block in enumerate(blocks)}
    end, rounds = run.warm_start_end, [line["round"] for line in run.lines]
    marks = () if end is None else (end,)
    whole = {"cosine": cosine.pop("network", [])}
    if entropy:
        whole["entropy"] = np.mean(list(entropy.values()), axis=0).tolist()
    drawn = []
    for what, series in (("cosine", cosine), ("entropy", entropy)):
        lines = [Line(rounds, values, color=colors.get(block, INK), width=1.0) for block, values in series.items()]
        if any(np.isfinite(whole.get(what, []))):
            lines.append(Line(rounds, whole[what], width=2.0, marks=marks))
        if lines:
            drawn.append(sheet(figures.curves(lines, "round", BASES[what]), f"{name}: {BASES[what]} along the rounds"))
    legend = [("whole network (cosine), mean of blocks (entropy)", "currentColor", "-")]
    legend += [(block, color, "-") for block, color in colors.items()] + ([WARM] if marks else [])
    return Panel(f"The bases of {name}", drawn, legend)


def _nested(lines: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[float]]:
    found = [line.get(key) or {} for line in lines]
    return {name: [number(values.get(name)) for values in found] for name in dict.fromkeys(n for v in found for n in v)}
