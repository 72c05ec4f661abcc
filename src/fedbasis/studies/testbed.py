"""Table 1 and figures 3, A to D: the datasets and their clients. Nothing is trained here.

The number of images, classes and clients, the images per client, and the label mismatch of a client's training and
test data: with PFLBed's weighted test set and with the usual halving of a client's own images.
"""

from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedbasis.report.chapter import Chapter, ReportFigure
from fedbasis.report.tables import NOTHING, Cell
from fedbasis.studies import drawing, paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import PAPER, number, printed, table, title
from fedbasis.studies.verdicts import claim
from pflbed.benchmark import Benchmark
from pflbed.dataset import find
from pflbed.mismatch import halved_users, halves, mismatch
from pflbed.plots import client_bubbles

FEMNIST = "femnist"


class _Untrained(Study):
    """A study of the data alone."""

    def requests(self, setup: Setup) -> list[RunRequest]:
        """No run."""
        return []


class Datasets(_Untrained):
    """Table 1."""

    name: ClassVar[str] = "datasets"
    aliases: ClassVar[tuple[str, ...]] = ("table-1",)
    title: ClassVar[str] = "The benchmarks"

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """A row for every dataset, with the paper's below it in the same columns."""
        columns = ["images", "classes", "pixels", "domains", "clients, participating + new"]
        rows: dict[str, list[Cell]] = {}
        for testbed in setup.scale.testbeds:
            benchmark = setup.prepared(testbed).benchmark
            images, classes = len(benchmark.table), len(benchmark.table.class_names)
            data, domains = setup.testbed(testbed).data, len(benchmark.table.domain_names)
            pixels = int(data.get("crop", data.get("resolution", 28)))
            many = f"{len(benchmark.participating)} + {len(benchmark.new)}"
            here = [Cell(f"{value:,}", value) for value in (images, classes, pixels, domains)]
            rows[f"{title(setup, testbed)} ({testbed})"] = [*here, Cell(many)]
            printed_row = paper.DATASETS.get(printed(setup, testbed))
            rows[f"{PAPER} {printed(setup, testbed)}"] = [
                Cell(text) for text in printed_row or [NOTHING] * len(columns)
            ]
        text = [
            "* The paper's table 1 as it is printed: counts are rounded, both CIFARs share a row; instead of numbers "
            "of domains and clients it says what the domains are and how clients are made. Its CIFAR clients are "
            "Dirichlet there and have five classes each in its tables 5 and 6; here they have five classes."
        ]
        return Chapter(self.name, self.title, text, [table("Datasets and their clients", columns, rows)])


class Split(_Untrained):
    """Figures 3 and A: how the split works, measured."""

    name: ClassVar[str] = "split"
    aliases: ClassVar[tuple[str, ...]] = ("figure-3", "figure-a")
    title: ClassVar[str] = "PFLBed's split against the usual one"

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """One client's mixtures in both ways, and the mismatch over all clients."""
        figures: list[ReportFigure] = []
        rows: dict[str, list[Cell]] = {}
        text = [
            "The mismatch is (1/M) Σ‖P_train − P_test‖₁ over all clients: 0 is none, 2 the largest. The paper "
            f"measured {paper.MISMATCH_FEMNIST} on LEAF's FEMNIST with halves."
        ]
        for testbed in dict.fromkeys((*setup.scale.main, *setup.scale.cifar)):
            benchmark = setup.prepared(testbed).benchmark
            both = mismatch(benchmark)
            if both is None:
                continue
            rows[f"{title(setup, testbed)} ({testbed})"] = [number(both.here, 4), number(both.conventional, 4)]
            evidence = f"{title(setup, testbed)}: {both.here:.4f} against {both.conventional:.4f}"
            text.append(
                claim(
                    "the usual split is mismatched and PFLBed's is not", both.here < 1e-6 < both.conventional, evidence
                )
            )
            if len(benchmark.table.class_names) <= 20:
                figures.append(_example(testbed, title(setup, testbed), benchmark))
        text.append(_writers(setup, rows))
        columns = ["PFLBed", "halves", f"{PAPER} halves"]
        padded = {name: [*cells, *[Cell(NOTHING)] * (len(columns) - len(cells))] for name, cells in rows.items()}
        return Chapter(self.name, self.title, text, [table("Label mismatch", columns, padded)], figures)


def _writers(setup: Setup, rows: dict[str, list[Cell]]) -> str:
    """Add the row of LEAF's FEMNIST if its files were given; return a note about it."""
    place = setup.places.get(FEMNIST)
    if place is None:
        return f"FEMNIST is not measured here: its files were not given (--data {FEMNIST}=FOLDER)."
    found, writers = halved_users(find(place, FEMNIST).table, setup.seeds[0])
    rows["FEMNIST, every writer a client (LEAF)"] = [Cell(NOTHING), number(found, 4), number(paper.MISMATCH_FEMNIST, 2)]
    return (
        f"FEMNIST: {writers} writers of the files in {Path(place).name}. LEAF draws which writers and images there "
        "are, so the paper's sample is another one. Every writer is tested on images of its own, not PFLBed's."
    )


class ClientsStudy(_Untrained):
    """Figures B, C and D."""

    name: ClassVar[str] = "clients"
    aliases: ClassVar[tuple[str, ...]] = ("figure-b", "figure-c", "figure-d")
    title: ClassVar[str] = "Images per class and client"

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """A bubble plot of every dataset's participating clients, and of its new ones."""
        figures, text = [], []
        for testbed in setup.scale.main:
            benchmark, where = setup.prepared(testbed).benchmark, title(setup, testbed)
            for participating, names in ((True, benchmark.participating), (False, benchmark.new)):
                if names:
                    kind = "participating" if participating else "new"
                    caption = f"{where}: {len(names)} {kind} clients, a column each; area is the number of images"
                    draw = partial(client_bubbles, benchmark, participating)
                    head = ["client", *benchmark.table.class_names]
                    counts = [[name, *benchmark.counts(name).tolist()] for name in names]
                    figures.append(drawing.drawn(f"clients-{testbed}-{kind}", caption, draw, head, counts))
            largest = max(int(benchmark.counts(name).max()) for name in benchmark.client_ids)
            text.append(f"{where}: a client has at most {largest} images of one class.")
        return Chapter(self.name, self.title, text, figures=figures)


def _example(testbed: str, where: str, benchmark: Benchmark) -> ReportFigure:
    """Draw the mixtures of a client of median size."""
    names = sorted(benchmark.client_ids, key=lambda name: int(benchmark.counts(name).sum()))
    name = names[len(names) // 2]
    train, test = halves(benchmark, name)
    panels = {
        "the client's own images halved": {"train": train.tolist(), "test": test.tolist()},
        "PFLBed: the domain's test set, weighted": {
            "train": benchmark.label_distribution(name).tolist(), "test": benchmark.held_distribution(name).tolist()
        },
    }  # fmt: skip
    count = int(np.sum(benchmark.counts(name)))
    caption = f"{where}: the classes of client {name} ({count} images) in training and in its test"
    return drawing.bars(f"split-{testbed}", caption, panels, benchmark.table.class_names)
