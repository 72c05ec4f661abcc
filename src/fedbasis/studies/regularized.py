"""Table 3: regularized fine-tuning, by weight decay or by the proximal term of pFedMe's equation 2."""

from collections.abc import Mapping
from statistics import fmean
from typing import ClassVar

from fedbasis.report.chapter import Chapter
from fedbasis.serving.personalize import label
from fedbasis.studies import paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import PAPER, above, another_scale, claim, measured, number, percent, table, title
from fedbasis.studies.new_clients import main_request, rows_of, sizes

WAYS: Mapping[str, tuple[str, ...]] = {"per-fedavg-fo": ("ft", "ft-prox"), "pfedme": ("ft", "pfedme")}
"""Weight decay first, the proximal term second."""
OURS = paper.FEDBASIS


def regularized_request(setup: Setup, testbed: str, method: str, seed: int) -> RunRequest:
    """A method fine-tuned with weight decay and with a proximal term.

    Its strength is the one that was tuned, else the default of 1: with pFedMe's 15, which its authors chose for MNIST,
    fine-tuning hardly leaves the server's model.
    """
    return setup.request(testbed, method, seed, personalize={"ways": list(WAYS[method])})


class Regularized(Study):
    """On the hard dataset, at the smallest size."""

    name: ClassVar[str] = "regularized"
    aliases: ClassVar[tuple[str, ...]] = ("table-3",)
    title: ClassVar[str] = "Regularized fine-tuning of new clients"

    def requests(self, setup: Setup) -> list[RunRequest]:
        """Two methods, each with two regularizers, and FedBasis."""
        testbed = setup.scale.hard[0]
        requests = [
            regularized_request(setup, testbed, method, seed)
            for method in WAYS if setup.allows(method) for seed in setup.seeds
        ]  # fmt: skip
        return requests + [main_request(setup, testbed, OURS[0], seed) for seed in setup.seeds if setup.allows(OURS[0])]

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """One table and one claim."""
        testbed = setup.scale.hard[0]
        runs, size = found.by_name(self.requests(setup), testbed), sizes(setup, testbed)[0]
        rows, scores = {}, {}
        for method, hows in (*WAYS.items(), (OURS[0], (OURS[1],))):
            cells = []
            for how, printed in zip((*hows, None)[:2], paper.REGULARIZED[method], strict=True):
                last = [row.last for row in rows_of(runs, (method, how), size)] if how else []
                cells += [measured(last), number(printed)]
                if last and how:
                    scores[method, how] = fmean(last)
            rows[label(method, "ft") if method != OURS[0] else label(*OURS)] = cells
        columns = ["weight decay", PAPER, "equation 2", PAPER]
        grid = table(f"{title(setup, testbed)}, size {size}: Last, in %", columns, rows, best=(0, 2))
        text = [another_scale(setup, testbed, "office-home")]
        ours = scores.pop(OURS, None)
        if ours is not None and scores:
            best = max(scores, key=lambda key: scores[key])
            evidence = f"FedBasis {percent(ours)}, the best regularized fine-tuning, {label(*best)}, "
            evidence += percent(scores[best])
            text.append(claim("regularized fine-tuning is not enough", above(ours, scores[best]), evidence))
        return Chapter(self.name, self.title, text, [grid])
