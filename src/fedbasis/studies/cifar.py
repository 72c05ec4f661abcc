"""Tables 5 and 6: the usual setting on CIFAR, five classes a client, for clients that took part and for new ones.

A client that took part and has a model of its own from training is scored with that one (``client-state``); where a
method keeps none, the client adapts the server's state as a new client would, with all of its images. The paper's table
6 has three rows. The others here are controls, as in the main table: what needs no training, linear probes, nearest
neighbours, fine-tuning with a proximal term, FedBasis without its coefficients, and FedBasis fine-tuned after them.
Table 5 has four of them.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from fedbasis.report.chapter import Chapter
from fedbasis.report.runs import RunData
from fedbasis.report.tables import Grid
from fedbasis.serving.personalize import CLIENT_STATE
from fedbasis.studies import paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.costs import costs
from fedbasis.studies.grids import PAPER, another_scale, budget, chosen_on, measured, number, printed, table, title
from fedbasis.studies.new_clients import FROM_PRIOR, OURS, WITHOUT, pull, rows_of
from fedbasis.studies.variants import Key, row_title
from fedbasis.studies.verdicts import PAIRS, higher, highest, last

SIZE = "M"
THEN_TUNED: Key = (OURS[0], f"{OURS[1]}+ft")
"""Fine-tuned after coefficients and classifier, as the strongest rows of other methods are fine-tuned."""
TUNED_FROM_PRIOR: Key = (FROM_PRIOR[0], f"{FROM_PRIOR[1]}+ft")
PULLED: Key = ("fedavg", "ft-prox")
CONTROLS: tuple[Key, ...] = (
    ("fedavg", "none"), ("fedavg", "prior"), ("fedavg", "lp"), PULLED, ("fedavg", "prior+ft"),
    ("knn-per", "knn"), ("knn-per", "knn+ft"), ("knn-per", "prior+knn+ft"), WITHOUT, THEN_TUNED, TUNED_FROM_PRIOR,
)  # fmt: skip
"""Rows of table 6 that the paper does not have."""
CONTROLS_PARTICIPATING: tuple[Key, ...] = (("fedavg", "lp"), ("fedavg", "prior+ft"), ("knn-per", "knn+ft"), WITHOUT)
"""The same of table 5: what needs no bases."""


class CifarNew(Study):
    """80 clients train, 20 are new."""

    name: ClassVar[str] = "cifar-new"
    aliases: ClassVar[tuple[str, ...]] = ("table-6",)
    title: ClassVar[str] = "CIFAR: new clients"
    served: ClassVar[str] = "new"
    controls: ClassVar[tuple[Key, ...]] = CONTROLS

    def figures(self, setup: Setup, testbed: str) -> Mapping[Key, float]:
        """The paper's numbers."""
        return paper.CIFAR_NEW[printed(setup, testbed)]

    def keys(self, setup: Setup, testbed: str) -> list[Key]:
        """The rows: those of the paper, controls, and FedBasis with the settings of this repository."""
        return [*self.figures(setup, testbed), *self.controls, OURS]

    def testbeds(self, setup: Setup) -> tuple[str, ...]:
        """The datasets."""
        return setup.scale.cifar

    def requests(self, setup: Setup) -> list[RunRequest]:
        """A run for every method, with the ways that the paper's table has."""
        requests = []
        for testbed in self.testbeds(setup):
            ways: dict[str, list[str]] = {}
            for name, how in self.keys(setup, testbed):
                ways.setdefault(name, []).append(how)
            for name, hows in ways.items():
                if setup.allows(name):
                    serve = {"ways": hows, "whom": self.served}
                    requests += [setup.request(testbed, name, seed, personalize=serve) for seed in setup.seeds]
        return requests

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """A table for every dataset, and what its rows cost."""
        tables, text = [], []
        for testbed in self.testbeds(setup):
            runs = found.by_name(self.requests(setup), testbed)
            if not any(runs.values()):  # the note on missing runs names them
                continue
            tables.append(self._grid(setup, testbed, runs))
            new = self.served == "new"
            tables.append(costs(testbed, title(setup, testbed), runs, self.keys(setup, testbed), [SIZE], new=new))
            text += [another_scale(setup, testbed, printed(setup, testbed)), budget(setup, testbed, runs)]
            names = list(dict.fromkeys(name for name, _ in self.keys(setup, testbed) if setup.allows(name)))
            text += [chosen_on(setup, testbed, names)]
            text += [*([pull(setup, testbed, "fedavg")] if PULLED in self.controls else []), PAIRS]
            if self.served == "participating":
                text += [self._epochs(setup, testbed)]
            if rows_of(runs, THEN_TUNED, SIZE):
                text += [
                    f"{row_title(THEN_TUNED)}, with or without the class prior, has twice the local passes of the "
                    "other rows: its epochs of fine-tuning follow as many on coefficients and classifier."
                ]
            text += self._claims(setup, testbed, runs)
        return Chapter(self.name, self.title, text, tables)

    def _grid(self, setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]]) -> Grid:
        beside, keys = self.figures(setup, testbed), self.keys(setup, testbed)
        rows = {
            row_title(key): [measured([row.last for row in found], runs[key[0]][0].folder), number(beside.get(key))]
            for key in keys
            if (found := rows_of(runs, key, SIZE))
        }
        scores = {row_title((name, how)): last(runs.get(name, []), how, SIZE) for name, how in keys}
        clients = "clients that took part" if self.served == "participating" else "new clients"
        caption = f"{title(setup, testbed)}: accuracy of {clients}, in %"
        return table(caption, ["here", PAPER], rows, {0: scores})

    def _epochs(self, setup: Setup, testbed: str) -> str:
        """Note that a model of a client's own is trained once more, and the server's model for longer."""
        bed = setup.testbed(testbed)
        own = [row_title(key) for key in self.keys(setup, testbed) if key[1] == CLIENT_STATE]
        return (
            f"{', '.join(own)}: the client's own model from training, after one more local update from the last state "
            f"of the server. All other rows that train do so on the server's state, for {bed.personalize['epochs']} "
            "epochs, as many as for new clients."
        )

    def _claims(self, setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]]) -> list[str]:
        scores = {key: last(runs.get(key[0]) or [], key[1], SIZE) for key in self.keys(setup, testbed)}
        own = (paper.FEDBASIS, OURS, THEN_TUNED, TUNED_FROM_PRIOR, WITHOUT)
        others = {row_title(key): mine for key, mine in scores.items() if mine and key not in own}
        claims: list[str] = []
        for key in own[:4]:
            name = row_title(key)
            ours = f"{title(setup, testbed)}: {name}", scores.get(key, {})
            claims += highest(f"{name} is better than every other method", ours, others)
        if scores.get(OURS) and scores.get(WITHOUT):
            ours = f"{title(setup, testbed)}: {row_title(OURS)}", scores[OURS]
            claims += higher("coefficients help FedBasis", ours, (row_title(WITHOUT), scores[WITHOUT]))
        return claims


class CifarParticipating(CifarNew):
    """100 clients, all of which train."""

    name: ClassVar[str] = "cifar-participating"
    aliases: ClassVar[tuple[str, ...]] = ("table-5",)
    title: ClassVar[str] = "CIFAR: clients that took part"
    served: ClassVar[str] = "participating"
    controls: ClassVar[tuple[Key, ...]] = CONTROLS_PARTICIPATING

    def figures(self, setup: Setup, testbed: str) -> Mapping[Key, float]:
        """Twelve methods."""
        return paper.PARTICIPATING[printed(setup, testbed)]

    def testbeds(self, setup: Setup) -> tuple[str, ...]:
        """The same images, with no client left out."""
        return setup.scale.cifar_all
