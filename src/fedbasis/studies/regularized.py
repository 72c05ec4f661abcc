"""Table 3: regularized fine-tuning, by weight decay or by the proximal term of pFedMe's equation 2.

FedAvg is a control: the strength of its proximal term is tuned where the dataset has a tuning part.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from fedbasis.report.chapter import Chapter
from fedbasis.report.tables import Cell
from fedbasis.studies import paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import PAPER, another_scale, measured, not_tuned, number, table, title
from fedbasis.studies.new_clients import OURS, PROPOSED, at_one_size, main_request, pull, rows_of, sizes
from fedbasis.studies.variants import row_title
from fedbasis.studies.verdicts import PAIRS, PairScores, highest, last

WAYS: Mapping[str, tuple[str, ...]] = {"per-fedavg-fo": ("ft", "ft-prox"), "pfedme": ("ft", "pfedme")}
"""Weight decay first, the proximal term second."""
CONTROL, CONTROL_WAYS = "fedavg", ("ft", "ft-prox")
OWN = (paper.FEDBASIS, OURS)
MAIN = {name for name, _ in PROPOSED}


def regularized_request(setup: Setup, testbed: str, method: str, seed: int) -> RunRequest:
    """A method fine-tuned with weight decay and with a proximal term.

    Its strength is the one that was tuned, else the default of 1: with pFedMe's 15, which its authors chose for MNIST,
    fine-tuning hardly leaves the server's model. The tables read size S alone; a run that shares its training with the
    main table's must serve the sizes of that one.
    """
    request = setup.request(testbed, method, seed, personalize={"ways": list(WAYS[method])})
    if method in MAIN:
        return request
    return replace(request, raw=at_one_size(request.raw, sizes(setup, testbed)[0]))


class Regularized(Study):
    """On the hard dataset, at the smallest size."""

    name: ClassVar[str] = "regularized"
    aliases: ClassVar[tuple[str, ...]] = ("table-3",)
    title: ClassVar[str] = "Regularized fine-tuning of new clients"

    def requests(self, setup: Setup) -> list[RunRequest]:
        """Two methods, each with two regularizers, and those of the main table: the control and both FedBases."""
        testbed = setup.scale.hard[0]
        requests = [
            regularized_request(setup, testbed, method, seed)
            for method in WAYS if setup.allows(method) for seed in setup.seeds
        ]  # fmt: skip
        names = [CONTROL, *(name for name, _ in OWN)]
        return requests + [
            main_request(setup, testbed, name, seed) for name in names if setup.allows(name) for seed in setup.seeds
        ]

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """One table, and a claim for each FedBasis."""
        testbed = setup.scale.hard[0]
        runs, size = found.by_name(self.requests(setup), testbed), sizes(setup, testbed)[0]
        rows: dict[str, list[Cell]] = {}
        marks: dict[int, dict[str, PairScores]] = {0: {}, 2: {}}
        scores: dict[tuple[str, str], PairScores] = {}
        for name, hows in (*WAYS.items(), (CONTROL, CONTROL_WAYS), *((name, (how,)) for name, how in OWN)):
            title_of_row = row_title((name, hows[0]))
            cells = []
            for column, how, printed in zip(
                (0, 2), (*hows, None)[:2], paper.REGULARIZED.get(name, (None, None)), strict=True
            ):
                shares = [row.last for row in rows_of(runs, (name, how), size)] if how else []
                cells += [measured(shares), number(printed)]
                if shares and how:
                    scores[name, how] = marks[column][title_of_row] = last(runs[name], how, size)
            rows[title_of_row] = cells
        columns = ["weight decay", PAPER, "equation 2", PAPER]
        grid = table(f"{title(setup, testbed)}, size {size}: Last, in %", columns, rows, marks)
        text = [another_scale(setup, testbed, "office-home")]
        text += [pull(setup, testbed, name) for name in ("per-fedavg-fo", CONTROL) if setup.allows(name)]
        text += [*not_tuned(setup, testbed, list(runs)), PAIRS]
        others = {row_title(key): mine for key, mine in scores.items() if key not in OWN}
        for key in OWN:
            name = row_title(key)
            text += highest(f"regularized fine-tuning does not reach {name}", (name, scores.get(key, {})), others)
        return Chapter(self.name, self.title, text, [grid])
