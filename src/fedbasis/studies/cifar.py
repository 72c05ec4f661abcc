"""Tables 5 and 6: the usual setting on CIFAR, five classes a client, for clients that took part and for new ones.

A client that took part and has a model of its own from training is scored with that one (``client-state``); where a
method keeps none, the client adapts the server's state as a new client would, with all of its images.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import ClassVar

from fedbasis.report.chapter import Chapter
from fedbasis.report.runs import RunData
from fedbasis.report.tables import Grid
from fedbasis.serving.personalize import label
from fedbasis.studies import paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import (
    PAPER,
    another_scale,
    budget,
    claim,
    measured,
    number,
    percent,
    printed,
    table,
    title,
)
from fedbasis.studies.new_clients import rows_of
from fedbasis.studies.paper import Key

SIZE = "M"


class CifarNew(Study):
    """80 clients train, 20 are new."""

    name: ClassVar[str] = "cifar-new"
    aliases: ClassVar[tuple[str, ...]] = ("table-6",)
    title: ClassVar[str] = "CIFAR: new clients"
    served: ClassVar[str] = "new"

    def figures(self, setup: Setup, testbed: str) -> Mapping[Key, float]:
        """The paper's numbers; their keys are the runs."""
        return paper.CIFAR_NEW[printed(setup, testbed)]

    def testbeds(self, setup: Setup) -> tuple[str, ...]:
        """The datasets."""
        return setup.scale.cifar

    def requests(self, setup: Setup) -> list[RunRequest]:
        """A run for every method, with the ways that the paper's table has."""
        requests = []
        for testbed in self.testbeds(setup):
            ways: dict[str, list[str]] = {}
            for method, how in self.figures(setup, testbed):
                ways.setdefault(method, []).append(how)
            for method, hows in ways.items():
                if setup.allows(method):
                    serve = {"ways": hows, "whom": self.served}
                    requests += [setup.request(testbed, method, seed, personalize=serve) for seed in setup.seeds]
        return requests

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """A table for every dataset."""
        tables, text = [], []
        for testbed in self.testbeds(setup):
            runs = found.by_name(self.requests(setup), testbed)
            tables.append(self._grid(setup, testbed, runs))
            text += [another_scale(setup, testbed, printed(setup, testbed)), budget(setup, testbed, runs)]
            text += self._claims(setup, testbed, runs)
        return Chapter(self.name, self.title, text, tables)

    def _grid(self, setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]]) -> Grid:
        rows = {
            label(*key): [measured([row.last for row in found], runs[key[0]][0].folder), number(beside)]
            for key, beside in self.figures(setup, testbed).items()
            if (found := rows_of(runs, key, SIZE))
        }
        clients = "clients that took part" if self.served == "participating" else "new clients"
        return table(f"{title(setup, testbed)}: accuracy of {clients}, in %", ["here", PAPER], rows, best=(0,))

    def _claims(self, setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]]) -> list[str]:
        means = {
            key: fmean(row.last for row in found)
            for key in self.figures(setup, testbed)
            if (found := rows_of(runs, key, SIZE))
        }
        ours = means.pop(paper.FEDBASIS, None)
        if ours is None or not means:
            return []
        best = max(means, key=lambda key: means[key])
        evidence = f"{title(setup, testbed)}: FedBasis {percent(ours)}, {label(*best)} {percent(means[best])}"
        near = ours > means[best] - 0.01
        return [claim("FedBasis is above the best other method, or less than a point below it", near, evidence)]


class CifarParticipating(CifarNew):
    """100 clients, all of which train."""

    name: ClassVar[str] = "cifar-participating"
    aliases: ClassVar[tuple[str, ...]] = ("table-5",)
    title: ClassVar[str] = "CIFAR: clients that took part"
    served: ClassVar[str] = "participating"

    def figures(self, setup: Setup, testbed: str) -> Mapping[Key, float]:
        """Twelve methods."""
        return paper.PARTICIPATING[printed(setup, testbed)]

    def testbeds(self, setup: Setup) -> tuple[str, ...]:
        """The same images, with no client left out."""
        return setup.scale.cifar_all
