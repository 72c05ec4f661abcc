"""Tables 4 and F: what coordinate descent, sharpening and the major basis contribute.

Training coefficients and bases together only works with the plain mean and one rate for every basis. Where a scale
uses other settings for FedBasis, a fifth row has coordinate descent with those of joint training.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from fedbasis.report.chapter import Chapter
from fedbasis.studies import paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import PAPER, another_scale, measured, number, table, title, warm_start
from fedbasis.studies.new_clients import at_one_size, main_request, rows_of, sizes
from fedbasis.studies.verdicts import PAIRS, PairScores, higher, last

PLAIN: Mapping[str, Any] = {"upload": "full", "aggregation": "mean", "rate": "per-basis"}
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "joint": {**PLAIN, "coordinate_descent": False},
    "no major basis": {"major": False},
    "tau = 1": {"tau": 1.0},
    "plain mean": {"aggregation": "mean", "rate": "per-basis"},
}
WHOLE = "FedBasis"
HOW = paper.FEDBASIS[1]


class Ablation(Study):
    """FedBasis without one of its designs at a time."""

    name: ClassVar[str] = "ablation"
    aliases: ClassVar[tuple[str, ...]] = ("table-4", "table-f")
    title: ClassVar[str] = "FedBasis without one of its designs"

    def requests(self, setup: Setup) -> list[RunRequest]:
        """A run for every design that is missing, and the whole."""
        requests = []
        for testbed in setup.scale.hard:
            for seed in setup.seeds:
                whole = main_request(setup, testbed, setup.own, seed)
                requests.append(RunRequest(testbed, WHOLE, seed, whole.raw))
                for name, change in CHANGES.items():
                    raw = at_one_size(whole.raw, _size(setup, testbed), HOW)
                    request = RunRequest(testbed, name, seed, {**raw, "method": {**whole.raw["method"], **change}})
                    if request.experiment.method != whole.experiment.method:  # the paper's FedBasis is plain already
                        requests.append(request)
        return requests

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """A table for every dataset, at size M as in the paper."""
        tables, text = [], []
        for testbed in setup.scale.hard:
            runs, size = found.by_name(self.requests(setup), testbed), _size(setup, testbed)
            scores = {name: [row.last for row in rows_of(runs, (name, HOW), size)] for name in (*CHANGES, WHOLE)}
            dataset = testbed if testbed in paper.ABLATION else "office-home"
            printed = paper.ABLATION[dataset]
            rows = {
                name: [measured(shares, runs[name][0].folder), number(printed.get(name))]
                for name, shares in scores.items()
                if shares
            }
            clients = {name: last(runs.get(name, []), HOW, size) for name in rows}
            caption = f"{title(setup, testbed)}, size {size}: Last, in %"
            tables.append(table(caption, ["here", PAPER], rows, {0: clients}))
            text += [another_scale(setup, testbed, dataset), _reach(setup, testbed), PAIRS, *_claims(clients)]
        return Chapter(self.name, self.title, text, tables)


def _reach(setup: Setup, testbed: str) -> str:
    share = 100 * warm_start(setup, testbed, setup.own)
    return (
        f"FedBasis trains as FedAvg does for {share:.0f} % of the rounds, its warm start, so coordinate descent, "
        f"sharpening and aggregation act in the other {100 - share:.0f} % alone."
    )


def _size(setup: Setup, testbed: str) -> str:
    names = sizes(setup, testbed)
    return "M" if "M" in names else names[-1]


def _claims(scores: Mapping[str, PairScores]) -> list[str]:
    claims: list[str] = []
    designs = {"joint": "coordinate descent", "no major basis": "the major basis", "tau = 1": "sharpening"}
    for name, design in designs.items():
        with_it = scores.get("plain mean" if name == "joint" and "plain mean" in scores else WHOLE, {})
        claims += higher(f"{design} helps", ("with it", with_it), ("without", scores.get(name, {})))
    return claims
