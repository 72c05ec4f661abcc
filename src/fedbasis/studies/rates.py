"""Table B and figure 4a: how much does a new client's learning rate matter?

The same trainings, with a wide grid of rates. All rates of a row vary together, by the same factor: in FedBasis that of
the coefficients is a fixed multiple of the classifier's. Figure 4a shows validation accuracy along the epochs, since
test images are scored for the reported epochs only.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fedbasis.report.chapter import Chapter, ReportFigure
from fedbasis.report.runs import RunData, validation_curve
from fedbasis.report.tables import Cell, Grid
from fedbasis.studies import drawing, paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import PAPER, another_scale, measured, not_tuned, number, title
from fedbasis.studies.new_clients import OURS, WITHOUT, rows_of, sizes
from fedbasis.studies.variants import Key, row_title
from fedbasis.studies.verdicts import PAIRS, PairScores, highest

FINE_TUNED: tuple[Key, ...] = (
    ("fedavg", "ft"), ("fedavg", "ft@own"), ("per-fedavg-fo", "ft"), ("per-fedavg-hf", "ft")
)  # fmt: skip
PROBES: tuple[Key, ...] = (("fedavg", "lp"), WITHOUT)
OWN: tuple[Key, ...] = (paper.FEDBASIS, OURS)
TOGETHER = (
    "All rates of a row vary together: of the whole network in fine-tuning, of the classifier in a linear probe, of "
    "the classifier and the coefficients in FedBasis. The normalization statistics of a row are those that were tuned "
    "for it, or else chosen at every rate on validation images. A verdict compares, client by client, the range of the "
    "scores over the rates."
)


class MetaRates(Study):
    """Last and Best at every rate, at size M."""

    name: ClassVar[str] = "meta-rates"
    aliases: ClassVar[tuple[str, ...]] = ("table-b",)
    title: ClassVar[str] = "New clients at fixed learning rates"
    keys: ClassVar[tuple[Key, ...]] = (*FINE_TUNED, *PROBES, *OWN)

    def requests(self, setup: Setup) -> list[RunRequest]:
        """A run for every method and variant; its training is that of the main table."""
        testbed, rates = setup.scale.hard[0], list(setup.scale.wide_rates)
        ways: dict[str, list[str]] = {}
        for name, how in (*FINE_TUNED, *PROBES, *OWN):  # the same for the table and the figure, which share their runs
            ways.setdefault(name, []).append(how)
        return [
            setup.request(testbed, name, seed, personalize={"ways": ways[name], "rates": rates})
            for name in dict.fromkeys(name for name, _ in self.keys) if setup.allows(name) for seed in setup.seeds
        ]  # fmt: skip

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """One table, with the range over the rates in claims."""
        testbed, rates = setup.scale.hard[0], setup.scale.wide_rates
        runs, names = found.by_name(self.requests(setup), testbed), sizes(setup, testbed)
        size = "M" if "M" in names else names[-1]
        rows, ranges = [], dict[Key, PairScores]()
        for key in self.keys:
            mine, cells = runs.get(key[0], []), list[Cell]()
            scores = [run.scores_by_rate(key[1], size) for run in mine]
            if not all(scores) or not mine:
                continue
            for rate in rates:
                means = [np.mean(list(of_run[rate].values()), axis=0) for of_run in scores]
                last, best = ([float(mean[place]) for mean in means] for place in (0, 1))
                printed = paper.META_RATES.get(key, {}).get(rate, (None, None))
                cells += [measured(last, mine[0].folder), measured(best, mine[0].folder), *map(number, printed)]
            rows.append((Cell(row_title(key), run=mine[0].folder), cells))
            ranges[key] = {
                (run.seed, client): _range([of_run[rate][client][0] for rate in rates])
                for run, of_run in zip(mine, scores, strict=True)
                for client in of_run[rates[0]]
            }
        groups = [pair for rate in rates for pair in ((f"rate {rate:g}", 2), (f"{PAPER} {rate:g}", 2))]
        grid = Grid(
            f"{title(setup, testbed)}, size {size}: accuracy of new clients by rate, in %", groups,
            ["Last", "Best"] * (2 * len(rates)), rows,
        )  # fmt: skip
        untuned = not_tuned(setup, testbed, list(runs))
        used = _statistics(runs, [key for key in self.keys if key in ranges], size)
        text = [another_scale(setup, testbed, "office-home"), TOGETHER, *used, *untuned, PAIRS]
        return Chapter(self.name, self.title, [*text, *_claims(ranges, "depends less on the rate than")], [grid])


class Rates(MetaRates):
    """The validation curves of these runs, at size S."""

    name: ClassVar[str] = "rates"
    aliases: ClassVar[tuple[str, ...]] = ("figure-4a",)
    title: ClassVar[str] = "Fine-tuning curves by learning rate"
    keys: ClassVar[tuple[Key, ...]] = (("per-fedavg-fo", "ft"), *PROBES, *OWN)

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """The paper's figure and one of the controls, by the first seed; claims about the drop from the maximum."""
        testbed = setup.scale.hard[0]
        runs, size = found.by_name(self.requests(setup), testbed), sizes(setup, testbed)[0]
        shown = self.keys[0], (setup.own, OURS[1])
        figures: list[ReportFigure] = []
        for name, keys in (("rates", shown), ("rates-controls", [key for key in self.keys if key not in shown])):
            lines: dict[str, drawing.Curve] = {}
            for key in keys:
                for rate in setup.scale.wide_rates if key[0] in runs else ():
                    records = runs[key[0]][0].at_rate(key[1], size, rate)
                    lines[f"{row_title(key)}, rate {rate:g}"] = validation_curve(records)
            caption = f"{title(setup, testbed)}, size {size}: mean validation accuracy of new clients along the epochs"
            if lines:
                figures.append(drawing.curves(name, caption, lines, "epoch", "validation accuracy (%)"))
        drops = {key: _drops(runs[key[0]], key[1], size, setup.scale.wide_rates) for key in self.keys if key[0] in runs}
        text = [
            "The paper's figure 4a shows test accuracy; these are validation images, which choose the epoch.",
            f"{TOGETHER.rpartition(' A verdict')[0]} A verdict compares, client by client, the largest drop from the "
            "maximum of a curve to its end.",
            PAIRS,
        ]
        return Chapter(
            self.name, self.title, [*text, *_claims(drops, "needs a stopping rule less than")], figures=figures
        )


def _claims(numbers: Mapping[Key, PairScores], text: str) -> list[str]:
    """Judge each FedBasis against fine-tuning and against linear probes; the lower number is the better one."""
    claims: list[str] = []
    for key in OWN:
        for others, what in ((FINE_TUNED, "fine-tuning"), (PROBES, "a linear probe")):
            theirs = {row_title(other): numbers[other] for other in others if other in numbers}
            name = row_title(key)
            claims += highest(f"{name} {text} {what}", (name, numbers.get(key, {})), theirs, lower=True)
    return claims


def _statistics(runs: Mapping[str, Sequence[RunData]], keys: Sequence[Key], size: str) -> list[str]:
    """Name the normalization statistics of every row, those at its best rate if they differ by rate."""
    used = {key: "/".join(dict.fromkeys(row.statistics for row in rows_of(runs, key, size))) for key in keys}
    named = [f"{row_title(key)} {found}" for key, found in used.items() if found]
    return [f"Normalization statistics of the rows (at their best rate): {', '.join(named)}."] if named else []


def _range(shares: Sequence[float]) -> float:
    return max(shares) - min(shares)


def _drops(runs: Sequence[RunData], how: str, size: str, rates: Sequence[float]) -> PairScores:
    """Return the largest drop from the maximum of a client's validation curves to their ends."""
    found: dict[tuple[int, str], float] = {}
    for run in runs:
        records: list[Mapping[str, Any]] = [record for rate in rates for record in run.at_rate(how, size, rate)]
        for record in records:
            pair, curve = (run.seed, record["client"]), record["validation"]
            found[pair] = max(found.get(pair, 0.0), max(curve) - curve[-1])
    return found
