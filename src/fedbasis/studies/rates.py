"""Table B and figure 4a: how much does a new client's learning rate matter?

The same runs with a wide grid of rates. FedBasis' coefficients have a rate of their own, which stays. Figure 4a shows
validation accuracy along the epochs, since test images are scored for the reported epochs only.
"""

from collections.abc import Mapping
from statistics import fmean
from typing import ClassVar

from fedbasis.report.chapter import Chapter
from fedbasis.report.runs import validation_curve
from fedbasis.report.tables import Cell, Grid
from fedbasis.serving.personalize import label
from fedbasis.studies import drawing, paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import PAPER, above, another_scale, claim, measured, number, percent, title
from fedbasis.studies.new_clients import sizes

WAYS: Mapping[str, str] = {
    "fedavg": "ft", "per-fedavg-fo": "ft", "per-fedavg-hf": "ft", "fedbasis": "coefficients+classifier"
}  # fmt: skip

OF_THE_CLASSIFIER = (
    "The rate that varies is that of SGD on weights: of the whole network in fine-tuning, of the classifier alone in "
    "FedBasis, whose coefficients keep a rate of their own."
)


class MetaRates(Study):
    """Last and Best at every rate, at size M."""

    name: ClassVar[str] = "meta-rates"
    aliases: ClassVar[tuple[str, ...]] = ("table-b",)
    title: ClassVar[str] = "New clients at fixed learning rates"
    methods: ClassVar[tuple[str, ...]] = tuple(WAYS)

    def requests(self, setup: Setup) -> list[RunRequest]:
        """A run for every method; its training is that of the main table."""
        testbed, rates = setup.scale.hard[0], list(setup.scale.wide_rates)
        return [
            setup.request(testbed, method, seed, personalize={"ways": [WAYS[method]], "rates": rates})
            for method in self.methods if setup.allows(method) for seed in setup.seeds
        ]  # fmt: skip

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """One table, with the range over the rates in a claim."""
        testbed, rates = setup.scale.hard[0], setup.scale.wide_rates
        runs, names = found.by_name(self.requests(setup), testbed), sizes(setup, testbed)
        size = "M" if "M" in names else names[-1]
        rows, ranges = [], {}
        for method, mine in runs.items():
            how, cells, lasts = WAYS[method], list[Cell](), []
            scores = [run.accuracies(how, size) for run in mine]
            for rate in rates:
                last, best = zip(*(of_run[rate] for of_run in scores), strict=True)
                printed = paper.META_RATES[method].get(rate, (None, None))
                cells += [measured(last, mine[0].folder), measured(best, mine[0].folder), *map(number, printed)]
                lasts.append(fmean(last))
            rows.append((Cell(label(method, how), run=mine[0].folder), cells))
            ranges[method] = max(lasts) - min(lasts)
        groups = [pair for rate in rates for pair in ((f"rate {rate:g}", 2), (f"{PAPER} {rate:g}", 2))]
        grid = Grid(
            f"{title(setup, testbed)}, size {size}: accuracy of new clients by rate, in %", groups,
            ["Last", "Best"] * (2 * len(rates)), rows,
        )  # fmt: skip
        text = [another_scale(setup, testbed, "office-home"), OF_THE_CLASSIFIER]
        others = {method: spread for method, spread in ranges.items() if method != "fedbasis"}
        if "fedbasis" in ranges and others:
            evidence = "Last differs between rates by " + ", ".join(
                f"{percent(spread)} points ({label(method, WAYS[method])})" for method, spread in ranges.items()
            )
            steady = above(min(others.values()), ranges["fedbasis"])
            text.append(claim("FedBasis depends less on the rate than fine-tuning does", steady, evidence))
        return Chapter(self.name, self.title, text, [grid])


class Rates(MetaRates):
    """The validation curves of these runs, at size S."""

    name: ClassVar[str] = "rates"
    aliases: ClassVar[tuple[str, ...]] = ("figure-4a",)
    title: ClassVar[str] = "Fine-tuning curves by learning rate"
    methods: ClassVar[tuple[str, ...]] = ("per-fedavg-fo", "fedbasis")

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """One figure, by the first seed; a claim about the drop from their maximum."""
        testbed = setup.scale.hard[0]
        runs, size = found.by_name(self.requests(setup), testbed), sizes(setup, testbed)[0]
        lines: dict[str, drawing.Curve] = {}
        drops: dict[str, float] = {}
        for method, (run, *_) in runs.items():
            for rate in setup.scale.wide_rates:
                epochs, means = validation_curve(run.at_rate(WAYS[method], size, rate))
                lines[f"{label(method, WAYS[method])}, rate {rate:g}"] = epochs, means
                drops[method] = max(drops.get(method, 0.0), max(means) - means[-1])
        text = [
            "The paper's figure 4a shows test accuracy; these are validation images, which choose the epoch.",
            OF_THE_CLASSIFIER,
        ]
        if len(drops) == 2:
            evidence = "the largest drop from the maximum of a curve to its end is " + " and ".join(
                f"{drop:.1f} points for {label(method, WAYS[method])}" for method, drop in drops.items()
            )
            steady = above(drops["per-fedavg-fo"], drops["fedbasis"], 0.5)
            text.append(claim("FedBasis needs no stopping rule", steady, evidence))
        caption = f"{title(setup, testbed)}, size {size}: mean validation accuracy of new clients along the epochs"
        figures = [drawing.curves("rates", caption, lines, "epoch", "validation accuracy (%)")] if lines else []
        return Chapter(self.name, self.title, text, figures=figures)
