"""Where the points come from: from FedAvg to FedBasis one part at a time, and FedBasis without one of them.

Every row differs from the row it is compared with in one part: a class prior, a trained classifier, the client's own
normalization statistics, all other weights, a proximal term, bases in place of one model, or coefficients. It is
compared client by client. The paper has no such table. Most rows are those of the main table, from the same runs; the
others serve new clients from the same trainings, at the learning rate that was tuned for their way, or for the
classifier if none was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedbasis.report.chapter import Chapter
from fedbasis.report.paired import LEVEL, holm, paired
from fedbasis.report.runs import RunData
from fedbasis.report.tables import NOTHING, Cell, Grid
from fedbasis.serving.personalize import split_way
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import measured, title
from fedbasis.studies.new_clients import SEEDS, main_request, main_ways, sizes
from fedbasis.studies.scales import Scale
from fedbasis.studies.variants import Key, row_title
from fedbasis.studies.verdicts import PairScores, last

FEDAVG, FEDBASIS = "fedavg", "fedbasis"
FURTHER = {FEDAVG: "FedAvg, further ways", FEDBASIS: "further ways"}
"""The runs that serve the rows that the main table lacks."""
TUNED = {FEDAVG: "lp", FEDBASIS: "coefficients+classifier"}
"""The way whose learning rate those rows have, if they have none of their own."""


@dataclass(frozen=True)
class PartRow:
    """One row: what is changed, and in which earlier row."""

    key: Key
    change: str = ""
    of: int = 0
    """The number of the row it is compared with, from 1; 0: none."""


PARTS: tuple[PartRow, ...] = (
    PartRow((FEDAVG, "none")),
    PartRow((FEDAVG, "prior"), "+ class prior", 1),
    PartRow((FEDAVG, "lp@frozen"), "+ classifier", 1),
    PartRow((FEDAVG, "lp@own"), "+ own statistics", 3),
    PartRow((FEDAVG, "ft@own"), "+ all other weights", 4),
    PartRow((FEDAVG, "ft-prox@own"), "+ a pull towards the start", 5),
    PartRow((FEDBASIS, "lp@own"), "+ bases, combined uniformly", 4),
    PartRow((FEDBASIS, "coefficients+classifier@own"), "+ coefficients", 7),
    PartRow((FEDBASIS, "prior+coefficients+classifier@own"), "+ class prior", 8),
    PartRow((FEDBASIS, "coefficients+classifier@frozen"), "− own statistics", 8),
    PartRow((FEDBASIS, "coefficients@own"), "− classifier", 8),
)
KEYS = [part.key for part in PARTS]
RULE = (
    "A gain is over the row of that number, in points. Bold ones differ from zero by a two-sided paired t-test over "
    f"clients and seeds at {100 * LEVEL:g} %, Holm-corrected for the gains of a size. Each method has the settings "
    "that were tuned for it, so the row that adds bases differs in these too. A class prior without training has tuned "
    "normalization statistics, so its gain is that of both."
)


class Parts(Study):
    """What each part of FedBasis gives."""

    name: ClassVar[str] = "parts"
    aliases: ClassVar[tuple[str, ...]] = ()
    title: ClassVar[str] = "What each part of FedBasis gives"

    def seeds(self, scale: Scale) -> int:
        """As many as the main table, whose runs it reads."""
        return max(scale.seeds, SEEDS) if scale.judges else scale.seeds

    def requests(self, setup: Setup) -> list[RunRequest]:
        """The main table's runs of both methods, and one of each that serves the other rows from its training."""
        requests = []
        for testbed in setup.scale.hard:
            for seed in setup.seeds:
                for name in _names(setup):
                    requests.append(main_request(setup, testbed, name, seed))
                    if serve := _further(setup, testbed, name):
                        requests.append(setup.request(testbed, name, seed, FURTHER[name], personalize=serve))
        return requests

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """A table for every dataset."""
        tables = []
        for testbed in setup.scale.hard:
            runs = found.by_name(self.requests(setup), testbed)
            tables.append(_grid(setup, testbed, runs))
        return Chapter(self.name, self.title, [RULE], tables)


def _names(setup: Setup) -> list[str]:
    return [name for name in (FEDAVG, FEDBASIS) if setup.allows(name)]


def _in_main_table(setup: Setup, testbed: str, key: Key) -> str:
    """Return the way of the main table's run that is this row; empty: it has none.

    A way without fixed statistics is this row if these statistics were tuned for it.
    """
    name, how = key
    way, fixed = split_way(how)
    tuned = _by_way(setup, testbed, name).get(way, {}).get("statistics")
    shown = main_ways(setup.scale, name)
    if how in shown:
        return how
    return way if way in shown and tuned == [fixed] else ""


def _by_way(setup: Setup, testbed: str, name: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the rates and statistics that were tuned for the ways of a main run."""
    serve = setup.raw(testbed, name, personalize={"ways": list(main_ways(setup.scale, name))})["personalize"]
    found: Mapping[str, Mapping[str, Any]] = serve.get("by_way", {})
    return found


def _further(setup: Setup, testbed: str, name: str) -> dict[str, Any]:
    """Return how the rows of a method that the main table lacks are served; nothing if it has all of them."""
    ways = [how for one, how in KEYS if one == name and not _in_main_table(setup, testbed, (one, how))]
    tuned = _by_way(setup, testbed, name)
    chosen = {how: tuned.get(split_way(how)[0], tuned.get(TUNED[name])) for how in ways}
    rates = {how: {"rates": one["rates"]} for how, one in chosen.items() if one}
    return {"ways": ways, **({"by_way": rates} if rates else {})} if ways else {}


def _scores(setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]], key: Key, size: str) -> PairScores:
    how = _in_main_table(setup, testbed, key)
    return last(runs.get(key[0], []), how, size) if how else last(runs.get(FURTHER[key[0]], []), key[1], size)


def _grid(setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]]) -> Grid:
    names = sizes(setup, testbed)
    by_size = {size: [_scores(setup, testbed, runs, key, size) for key in KEYS] for size in names}
    gains = {size: _gains(scores) for size, scores in by_size.items()}
    rows = []
    for number, part in enumerate(PARTS):
        cells = [Cell(part.change or NOTHING), Cell(str(part.of) if part.of else NOTHING)]
        for size in names:
            mine = by_size[size][number]
            cells += [measured(_by_seed(mine)), *gains[size][number]]
        if any(by_size[size][number] for size in names):
            rows.append((Cell(f"{number + 1}. {row_title(part.key)}"), cells))
    groups = [("", 2), *((f"size {size}", 3) for size in names)]
    columns = ["change", "of row", *["Last", "gain", "p"] * len(names)]
    return Grid(f"{title(setup, testbed)}: Last of new clients, in %, part by part", groups, columns, rows)


def _by_seed(scores: PairScores) -> list[float]:
    """Return the mean over the clients of every seed."""
    seeds = {seed: [score for (of, _), score in scores.items() if of == seed] for seed, _ in scores}
    return [sum(mine) / len(mine) for _, mine in sorted(seeds.items())]


def _gains(scores: Sequence[PairScores]) -> list[list[Cell]]:
    """Compare every row with its own earlier one, corrected for the number of comparisons."""
    tests = {
        number: paired(before, scores[number])
        for number, part in enumerate(PARTS)
        if part.of and (before := scores[part.of - 1]) and before.keys() == scores[number].keys()
    }
    cells = [[Cell(NOTHING), Cell(NOTHING)] for _ in PARTS]
    for (number, test), p in zip(tests.items(), holm([test.p for test in tests.values()]), strict=True):
        gain = Cell(f"{100 * test.mean:+.1f}", 100 * test.mean, best=p < LEVEL)
        cells[number] = [gain, Cell(f"{p:.3f}" if p >= 0.001 else "< 0.001", p)]
    return cells
