"""Table E: how many bases are enough? K in {1, 2, 4, 6, 8}, at the smallest size, the epoch chosen on validation data.

K = 1 is FedAvg + FT, as the paper's numbers for it are those of FedAvg + FT in table 2. A linear probe after FedAvg is
shown too: it learns nearly what FedBasis learns with one basis, a classifier without coefficients.
"""

from collections.abc import Mapping
from typing import ClassVar

from fedbasis.report.chapter import Chapter
from fedbasis.studies import paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import PAPER, another_scale, measured, number, printed, table, title
from fedbasis.studies.new_clients import at_one_size, main_request, rows_of, sizes
from fedbasis.studies.verdicts import PAIRS, PairScores, best, higher_each, highest

FEW = 4
PROBE = "K = 1, with a linear probe"
ONE: Mapping[str, str] = {"K = 1": "ft", PROBE: "lp"}
"""What a single model is served with."""


def _way(count: int) -> str:
    return "ft" if count == 1 else paper.FEDBASIS[1]


class Bases(Study):
    """A run for every number of bases."""

    name: ClassVar[str] = "bases"
    aliases: ClassVar[tuple[str, ...]] = ("table-e",)
    title: ClassVar[str] = "The number of bases"

    def requests(self, setup: Setup) -> list[RunRequest]:
        """FedAvg for one basis, FedBasis for more."""
        requests = []
        for testbed in setup.scale.counted:
            for seed in setup.seeds:
                for count in setup.scale.bases:
                    raw = main_request(setup, testbed, "fedavg" if count == 1 else setup.own, seed).raw
                    method = {**raw["method"], **({"bases": count} if count > 1 else {})}
                    if method != raw["method"]:  # a run that no other table reads
                        raw = at_one_size({**raw, "method": method}, sizes(setup, testbed)[0], _way(count))
                    requests.append(RunRequest(testbed, str(count), seed, raw))
        return requests

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """A table for every dataset."""
        tables, text = [], []
        for testbed in setup.scale.counted:
            runs, size = found.by_name(self.requests(setup), testbed), sizes(setup, testbed)[0]
            rows, scores = {}, dict[str, PairScores]()
            served = {name: ("1", way) for name, way in ONE.items() if 1 in setup.scale.bases}
            served |= {f"K = {count}": (str(count), _way(count)) for count in setup.scale.bases if count > 1}
            for name, key in served.items():
                shares = [row.best for row in rows_of(runs, key, size)]
                if shares:
                    paper_best = None if name == PROBE else paper.BASES[printed(setup, testbed)].get(int(key[0]))
                    rows[name] = [measured(shares, runs[key[0]][0].folder), number(paper_best)]
                    scores[name] = best(runs[key[0]], key[1], size)
            caption = f"{title(setup, testbed)}, size {size}: Best, in %"
            tables.append(table(caption, ["here", PAPER], rows, {0: scores}))
            text += [another_scale(setup, testbed, printed(setup, testbed)), SINGLE_MODEL, PAIRS, *_claims(scores)]
        return Chapter(self.name, self.title, text, tables)


SINGLE_MODEL = "K = 1 is fine-tuned in all its weights, as in the paper; a linear probe trains its classifier alone."


def _claims(scores: Mapping[str, PairScores]) -> list[str]:
    few = f"K = {FEW}"
    several = {int(name.removeprefix("K = ")): mine for name, mine in scores.items() if name not in ONE}
    questions = [
        (f"{count} bases are better than one model {'that is fine-tuned' if way == 'ft' else 'with a linear probe'}",
         (f"K = {count}", mine), (one, scores[one]))
        for one, way in ONE.items() if one in scores for count, mine in several.items()
    ]  # fmt: skip
    claims: list[str] = [*higher_each(questions, "comparisons")]
    more = {f"K = {count}": mine for count, mine in several.items() if count > FEW}
    if FEW in several and more:
        return claims + highest("four bases are better than more", (few, several[FEW]), more)
    return [
        *claims,
        "Whether four bases are enough cannot be said here: that needs runs with four and with more bases.",
    ]
