"""Which figure shows what: from runs to panels, each with its drawing, its legend and a subtitle."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from fedbasis.evaluation import Row
from fedbasis.report import figures
from fedbasis.report.data import RunData, domain_of, domains_of, sizes_of
from fedbasis.report.figures import Line
from fedbasis.report.svg import INK, Sheet
from pflbed.plots import client_bubbles

Legend = Sequence[tuple[str, str, str]]  # name, colour, style of the line, "dot" or "upright"
WARM = ("end of the warm start", "currentColor", "upright")


@dataclass(frozen=True)
class Panel:
    """Figures that belong together."""

    title: str
    figures: Sequence[Markup]
    legend: Legend = ()


def accuracies(runs: Sequence[RunData], sheet: Sheet) -> Panel | None:
    """Show every new client's accuracy, a figure per size."""
    scored = [run for run in runs if run.rows]
    colors = {name: figures.domain_color(i) for i, name in enumerate(domains_of(scored))}
    shown = [(run, row) for run in scored for row in run.rows if row.per_client]
    if not shown:
        return None
    least = max(-1.0, 10 * math.floor(10 * min(min(row.per_client.values()) for _, row in shown)) - 1)
    drawn = []
    for size in sizes_of(scored):
        scores = {run.title(row): row.per_client for run, row in shown if row.size == size}
        domains = {client: domain_of(client) for mine in scores.values() for client in mine}
        if scores:
            figure = figures.strip(scores, domains, colors, least)
            figure.axes[0].set_title(figures.short(f"size {size}"))
            drawn.append(sheet(figure, f"Personalized accuracy of every new client by method, size {size}"))
    return Panel("", drawn, [(name, color, "dot") for name, color in colors.items()])


def training(runs: Sequence[RunData], sheet: Sheet) -> list[Panel]:
    """Show loss and validation of all runs together, then the bases of every run that has them."""
    started = [run for run in runs if run.lines]
    if not started:
        return []
    loss, validation, legend = [], [], []
    for number, run in enumerate(started):
        color, dash, end = figures.method_color(number), figures.method_dash(number), run.warm_start_end
        width = 1.4 + 1.2 * (len(started) - 1 - number) / len(started)  # equal curves lie on each other, all visible
        look: dict[str, Any] = {"start": int(run.lines[0]["round"]), "color": color, "dash": dash, "width": width}
        look["marks"] = () if end is None else (end,)
        loss.append(Line(_series(run.lines, "loss"), **look))
        validation.append(Line([100 * score for score in _series(run.lines, "validation")], **look))
        legend.append((run.name, color, dash))
    drawn = [
        sheet(figures.curves(loss, "round", "training loss"), "Training loss along the rounds"),
        sheet(figures.curves(validation, "round", "validation accuracy (%)"), "Validation accuracy along the rounds"),
    ]
    legend += [WARM] if any(line.marks for line in loss) else []
    return [Panel("", drawn, legend), *(panel for run in started if (panel := _bases(run, sheet)))]


def _bases(run: RunData, sheet: Sheet) -> Panel | None:
    cosine, entropy = _nested(run.lines, "cosine"), _nested(run.lines, "entropy")
    if not cosine and not entropy:
        return None
    blocks = list(entropy) or [name for name in cosine if name != "network"]
    colors = {block: figures.depth_color(i / max(1, len(blocks) - 1)) for i, block in enumerate(blocks)}
    end, start = run.warm_start_end, int(run.lines[0]["round"])
    marks = () if end is None else (end,)
    whole = {"cosine": cosine.pop("network", [])}
    if entropy:
        whole["entropy"] = np.mean(list(entropy.values()), axis=0).tolist()
    drawn = []
    for what, series in (("cosine", cosine), ("entropy", entropy)):
        lines = [Line(values, start, colors.get(block, INK), width=1.0) for block, values in series.items()]
        if any(np.isfinite(whole.get(what, []))):
            lines.append(Line(whole[what], start, INK, width=2.0, marks=marks))
        if lines:
            name = {"cosine": "mean pairwise cosine", "entropy": "entropy of α (nats)"}[what]
            drawn.append(sheet(figures.curves(lines, "round", name), f"{run.name}: {name} along the rounds"))
    legend = [("whole network (cosine), mean of blocks (entropy)", "currentColor", "-")]
    legend += [(block, color, "-") for block, color in colors.items()] + ([WARM] if marks else [])
    return Panel(f"The bases of {run.name}", drawn, legend)


def adaptation(runs: Sequence[RunData], size: str, sheet: Sheet) -> Panel | None:
    """Show the mean validation accuracy along the epochs, a figure per method and a line per rate."""
    found: list[tuple[str, float, int, dict[float, list[float]]]] = []
    for run in runs:
        for row in (row for row in run.rows if row.size == size and row.how != "none"):
            mine = [r for r in run.records if (r["how"], r["size"]) == (row.how, size)]
            means = {rate: _mean([r["validation"] for r in mine if r["rate"] == rate]) for rate in _rates(mine)}
            if any(np.isfinite(value) for mean in means.values() for value in mean):
                found.append((run.title(row), row.rate, int(mine[0]["validate_every"]), means))
    if not found:
        return None
    every = sorted({rate for *_, means in found for rate in means})
    values = [value for *_, means in found for mean in means.values() for value in mean if np.isfinite(value)]
    room = max(1.0, 0.05 * (max(values) - min(values)))
    limits = (min(values) - room, max(values) + room)
    drawn = []
    for title, chosen, gap, means in found:
        lines = [
            Line(mean, gap, figures.method_color(every.index(rate)), "-", 2.6 if rate == chosen else 1.0, step=gap)
            for rate, mean in means.items()
        ]
        figure = figures.curves(lines, "epoch", "validation accuracy (%)", limits, title)
        drawn.append(sheet(figure, f"{title}: mean validation accuracy along the adaptation epochs, size {size}"))
    return Panel("", drawn, [(f"rate {rate:g}", figures.method_color(i), "-") for i, rate in enumerate(every)])


def learned(runs: Sequence[RunData], size: str, sheet: Sheet) -> list[Panel]:
    """Show the coefficients of every new client at the chosen rate, a figure per block."""
    panels = []
    for run in runs:
        for row in (row for row in run.rows if row.size == size):
            alpha = _alpha(run, row)
            domains = {client: domain_of(client) for client in alpha}
            order = domains_of([run])
            clients = sorted(alpha, key=lambda client: (order.index(domain_of(client)), client))
            drawn = [
                sheet(
                    figures.heat({client: alpha[client][block] for client in clients}, domains, block),
                    f"{run.title(row)}: coefficients of every new client in block {block}",
                )
                for block in (alpha[clients[0]] if clients else ())
            ]
            if drawn:
                panels.append(Panel(run.title(row), drawn))
    return panels


def populations(runs: Sequence[RunData], sheet: Sheet) -> list[Panel]:
    """Show who has how many images of which class, once for every different set of clients."""
    panels = []
    for run in {run.population: run for run in reversed(runs) if run.benchmark}.values():
        assert run.benchmark is not None
        for participating in (True, False):
            clients = run.benchmark.participating if participating else run.benchmark.new
            if clients:
                title = f"{len(clients)} {'participating' if participating else 'new'} clients"
                drawn = sheet(client_bubbles(run.benchmark, participating), f"Images per class of {title}")
                panels.append(Panel(title, [drawn]))
    return panels


def _alpha(run: RunData, row: Row) -> dict[str, Mapping[str, Sequence[float]]]:
    key = (row.how, row.size, row.rate)
    return {r["client"]: r["alpha"] for r in run.records if r["alpha"] and (r["how"], r["size"], r["rate"]) == key}


def _rates(records: Sequence[Mapping[str, Any]]) -> list[float]:
    return sorted({record["rate"] for record in records})


def _mean(curves: Sequence[Sequence[Any]]) -> list[float]:
    """Average the clients' curves, in percent."""
    return [100 * float(np.mean([_number(value) for value in values])) for values in zip(*curves, strict=False)]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _series(lines: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [_number(line.get(key)) for line in lines]


def _nested(lines: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[float]]:
    names = list(dict.fromkeys(name for line in lines for name in line.get(key, {})))
    return {name: _series([line.get(key, {}) for line in lines], name) for name in names}
