"""Figure F: new clients' accuracy along the rounds of training, and their regularized fine-tuning."""

from collections.abc import Mapping
from typing import ClassVar

from fedbasis.report.chapter import Chapter, ReportFigure
from fedbasis.report.runs import validation_curve
from fedbasis.serving.personalize import label
from fedbasis.studies import drawing, paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import above, claim, title
from fedbasis.studies.new_clients import sizes
from fedbasis.studies.regularized import regularized_request

RATE = 0.005
"""Of the paper's curves; where a scale has others, its first."""
META = "per-fedavg-fo"
KEYS = ((META, "ft"), paper.FEDBASIS)


class Curves(Study):
    """Per-FedAvg + FT and FedBasis, by the first seed, at size S."""

    name: ClassVar[str] = "curves"
    aliases: ClassVar[tuple[str, ...]] = ("figure-f",)
    title: ClassVar[str] = "New clients along the rounds, and along regularized fine-tuning"

    def requests(self, setup: Setup) -> list[RunRequest]:
        """A run that serves new clients every few rounds for each method, and the regularized one."""
        testbed, seed = setup.scale.hard[0], setup.seeds[0]
        train = {"serve_every": setup.scale.curve_every}
        rates = [_rate(setup)]
        requests = [
            setup.request(testbed, method, seed, train=train, personalize={"ways": [how], "rates": rates})
            for method, how in KEYS
        ]
        regularized = regularized_request(setup, testbed, META, seed)
        return [*requests, RunRequest(testbed, "regularized", seed, regularized.raw)]

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """Two figures and a claim for each."""
        testbed = setup.scale.hard[0]
        runs = {name: mine[0] for name, mine in found.by_name(self.requests(setup), testbed).items()}
        size, figures, text = sizes(setup, testbed)[0], list[ReportFigure](), list[str]()
        along = {}
        for method, how in KEYS:
            lines = [line for line in runs[method].lines if line.get("served") is not None] if method in runs else []
            if lines:
                along[label(method, how)] = [line["round"] for line in lines], [100 * line["served"] for line in lines]
        if along:
            caption = f"{title(setup, testbed)}, size {size}: accuracy of new clients served after so many rounds"
            figures.append(drawing.curves("curves-rounds", caption, along, "round", "personalized accuracy (%)"))
        text += _ahead(along, "FedBasis stays ahead of Per-FedAvg + FT at the end of training")
        tuned = {}
        for name, method, how in (("regularized", META, "ft-prox"), ("fedbasis", *paper.FEDBASIS)):
            curve = validation_curve(runs[name].at_rate(how, size, _rate(setup))) if name in runs else ([], [])
            if curve[0]:
                tuned[label(method, how)] = curve
        if tuned:
            caption = f"{title(setup, testbed)}, size {size}: validation accuracy along regularized fine-tuning"
            figures.append(drawing.curves("curves-regularized", caption, tuned, "epoch", "validation accuracy (%)"))
        text += _ahead(tuned, "FedBasis stays ahead of regularized fine-tuning at its end, on validation images")
        return Chapter(self.name, self.title, text, figures=figures)


def _rate(setup: Setup) -> float:
    rates: list[float] = setup.testbed(setup.scale.hard[0]).personalize["rates"]
    return RATE if RATE in rates else rates[0]


def _ahead(curves: Mapping[str, drawing.Curve], text: str) -> list[str]:
    if len(curves) < 2:
        return []
    (other, (_, theirs)), (_, (_, ours)) = curves.items()
    return [claim(text, above(ours[-1], theirs[-1], 0.5), f"FedBasis {ours[-1]:.1f}, {other} {theirs[-1]:.1f}")]
