"""Table E: how many bases are enough? K in {1, 2, 4, 6, 8}, at the smallest size, the epoch chosen on validation data.

K = 1 is FedAvg + FT, as the paper's numbers for it are those of FedAvg + FT in table 2.
"""

from collections.abc import Mapping
from typing import ClassVar

from fedbasis.report.chapter import Chapter
from fedbasis.studies import paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import PAPER, another_scale, measured, number, printed, table, title
from fedbasis.studies.new_clients import at_one_size, main_request, rows_of, sizes
from fedbasis.studies.verdicts import PAIRS, PairScores, best, higher, highest

FEW = 4


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
            for count in setup.scale.bases:
                shares = [row.best for row in rows_of(runs, (str(count), _way(count)), size)]
                if shares:
                    paper_best = paper.BASES[printed(setup, testbed)].get(count)
                    rows[f"K = {count}"] = [measured(shares, runs[str(count)][0].folder), number(paper_best)]
                    scores[f"K = {count}"] = best(runs[str(count)], _way(count), size)
            caption = f"{title(setup, testbed)}, size {size}: Best, in %"
            tables.append(table(caption, ["here", PAPER], rows, {0: scores}))
            text += [another_scale(setup, testbed, printed(setup, testbed)), PAIRS, *_claims(scores)]
        return Chapter(self.name, self.title, text, tables)


def _claims(scores: Mapping[str, PairScores]) -> list[str]:
    one, few = "K = 1", f"K = {FEW}"
    claims: list[str] = []
    several = {name: mine for name, mine in scores.items() if name != one}
    if one in scores:
        for name, mine in several.items():
            claims += higher(f"{name.removeprefix('K = ')} bases are better than one", (name, mine), (one, scores[one]))
    more = {name: mine for name, mine in several.items() if int(name.removeprefix("K = ")) > FEW}
    if few in scores and more:
        return claims + highest("four bases are better than more", (few, scores[few]), more)
    return [
        *claims,
        "Whether four bases are enough cannot be said here: that needs runs with four and with more bases.",
    ]
