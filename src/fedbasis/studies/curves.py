"""Figure F: new clients' accuracy along the rounds of training, and their regularized fine-tuning."""

from dataclasses import replace
from typing import ClassVar

from fedbasis.report.chapter import Chapter, ReportFigure
from fedbasis.report.runs import RunData, validation_curve
from fedbasis.studies import drawing
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import title
from fedbasis.studies.new_clients import OURS, at_one_size, sizes
from fedbasis.studies.regularized import regularized_request
from fedbasis.studies.variants import Key, row_title
from fedbasis.studies.verdicts import PAIRS, PairScores, higher, last

RATE = 0.005
"""Of the paper's curves; where a scale has others, its first."""
META = "per-fedavg-fo"
TUNED: Key = (META, "ft")


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
            setup.request(testbed, name, seed, train=train, personalize={"ways": [how], "rates": rates})
            for name, how in (TUNED, _own(setup))
        ]
        size = sizes(setup, testbed)[0]
        requests = [replace(request, raw=at_one_size(request.raw, size)) for request in requests]
        regularized = regularized_request(setup, testbed, META, seed)
        return [*requests, RunRequest(testbed, "regularized", seed, regularized.raw)]

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """Two figures and a claim for each."""
        testbed, own = setup.scale.hard[0], _own(setup)
        runs = {name: mine[0] for name, mine in found.by_name(self.requests(setup), testbed).items()}
        size, figures, text = sizes(setup, testbed)[0], list[ReportFigure](), [PAIRS]
        along = {}
        for key in (TUNED, own):
            lines = [line for line in runs[key[0]].lines if line.get("served") is not None] if key[0] in runs else []
            if lines:
                along[row_title(key)] = [line["round"] for line in lines], [100 * line["served"] for line in lines]
        if along:
            caption = f"{title(setup, testbed)}, size {size}: accuracy of new clients served after so many rounds"
            figures.append(drawing.curves("curves-rounds", caption, along, "round", "personalized accuracy (%)"))
        ends = {key: last([runs[key[0]]], key[1], size) if key[0] in runs else {} for key in (TUNED, own)}
        ours, other = row_title(own), row_title(TUNED)
        said = f"{ours} stays ahead of {other} at the end of training"
        text += higher(said, (ours, ends[own]), (other, ends[TUNED]))
        tuned, scores = {}, {}
        pulled: Key = (META, "ft-prox")
        for name, key in (("regularized", pulled), (own[0], own)):
            records = runs[name].at_rate(key[1], size, _rate(setup)) if name in runs else []
            if records:
                tuned[row_title(key)] = validation_curve(records)
                scores[key] = _validation(runs[name], key[1], size, _rate(setup))
        if tuned:
            caption = f"{title(setup, testbed)}, size {size}: validation accuracy along regularized fine-tuning"
            figures.append(drawing.curves("curves-regularized", caption, tuned, "epoch", "validation accuracy (%)"))
        said = f"{ours} stays ahead of regularized fine-tuning at its end, on validation images"
        text += higher(said, (ours, scores.get(own, {})), (row_title(pulled), scores.get(pulled, {})))
        return Chapter(self.name, self.title, text, figures=figures)


def _own(setup: Setup) -> Key:
    return setup.own, OURS[1]


def _rate(setup: Setup) -> float:
    rates: list[float] = setup.testbed(setup.scale.hard[0]).personalize["rates"]
    return RATE if RATE in rates else rates[0]


def _validation(run: RunData, how: str, size: str, rate: float) -> PairScores:
    return {(run.seed, record["client"]): record["validation"][-1] for record in run.at_rate(how, size, rate)}
