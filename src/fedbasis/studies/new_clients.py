"""Tables 2, C and D: how well every method serves new clients, S to L, Last and Best, and how much seeds matter.

All three are read off the same runs. |Delta| is the difference of Last and Best: what choosing the epoch is worth. Rows
that the paper lacks are controls: fine-tuning with the server's normalization statistics or a proximal term, a linear
probe, what starts from the client's class prior, FedBasis without its coefficients, and FedBasis with the settings of
this repository beside the printed ones.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import variance
from typing import Any, ClassVar

from fedbasis.experiment.config import PersonalizeConfig
from fedbasis.report.chapter import Chapter
from fedbasis.report.runs import RunData
from fedbasis.report.tables import NOTHING, Cell, Grid
from fedbasis.serving.evaluation import ResultRow
from fedbasis.serving.personalize import split_way
from fedbasis.studies import paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.costs import costs
from fedbasis.studies.grids import PAPER, another_scale, budget, chosen_on, marked, measured, number, printed, title
from fedbasis.studies.scales import Scale
from fedbasis.studies.variants import PRINTED, Key, row_title
from fedbasis.studies.verdicts import PAIRS, Named, PairScores, claim, higher_each, highest, last, stopping

SEEDS = 3
"""Of the main tables, where a scale judges the paper's claims."""
OURS: Key = ("fedbasis", "coefficients+classifier")
FROM_PRIOR: Key = ("fedbasis", "prior+coefficients+classifier")
WITHOUT: Key = ("fedbasis", "lp")
"""The uniform combination of the bases, and a classifier: what FedBasis has without coefficients."""
WAYS: Mapping[str, tuple[str, ...]] = {
    "fedrep": ("lp", "ft"),
    "fedbn": ("bn", "lp", "ft"),
    "pfedhn": ("embedding", "embedding+lp", "embedding+ft"),
    "per-fedavg-fo": ("ft", "prior+ft"),
    "knn-per": ("knn", "knn+ft"),
    "fedavg": ("none", "prior", "lp", "lp@frozen", "lp@own", "ft", "ft@frozen", "ft-prox", "prior+lp", "prior+ft"),
    PRINTED: ("coefficients+classifier",),
    "fedbasis": ("lp", "coefficients+classifier", "prior+lp", "prior+coefficients+classifier"),
}
"""Every run and what it serves new clients with."""
PROPOSED: tuple[Key, ...] = (
    ("fedrep", "lp"), ("fedbn", "bn"), ("pfedhn", "embedding"), ("pfedhn", "embedding+ft"), ("per-fedavg-fo", "ft"),
    ("per-fedavg-fo", "prior+ft"), ("knn-per", "knn"), ("knn-per", "knn+ft"), ("fedavg", "none"), ("fedavg", "prior"),
    ("fedavg", "lp"), ("fedavg", "ft"), ("fedavg", "ft@frozen"), ("fedavg", "ft-prox"), ("fedavg", "prior+lp"),
    ("fedavg", "prior+ft"), WITHOUT, ("fedbasis", "prior+lp"), paper.FEDBASIS, OURS, FROM_PRIOR,
)  # fmt: skip
"""The rows of table 2, each method as it was proposed, and the controls."""
EVERY: tuple[Key, ...] = tuple((name, how) for name, hows in WAYS.items() for how in hows)
SIZES: Mapping[str, float] = {"S": 0.5, "M": 1.0}
"""PFLBed's own, where a scale says nothing else."""
WITHOUT_TRAINING = ("none", "prior", "knn")
"""Ways that have no learning rate."""
SINGLE = (*WITHOUT_TRAINING, "embedding")
"""Ways that train nothing, or for which the paper prints one number."""


def main_ways(scale: Scale, name: str) -> tuple[str, ...]:
    """Return what the run of one method or variant serves new clients with at a scale."""
    return (*WAYS.get(name, ()), *scale.further_ways.get(name, ()))


def further_keys(scale: Scale) -> tuple[Key, ...]:
    """Return the rows that the main tables have at this scale alone."""
    return tuple((name, how) for name, hows in scale.further_ways.items() for how in hows)


def main_request(setup: Setup, testbed: str, name: str, seed: int) -> RunRequest:
    """The run of one method or variant that these tables read, and others too."""
    return setup.request(testbed, name, seed, personalize={"ways": list(main_ways(setup.scale, name))})


def at_one_size(raw: Mapping[str, Any], size: str, way: str | None = None) -> dict[str, Any]:
    """Serve new clients at one size alone, and in one way, for a table that reads no other; sizes are drawn one by one.

    ``way`` None keeps all ways.
    """
    data = {**raw["data"], "sizes": {size: raw["data"].get("sizes", SIZES)[size]}}
    if way is None:
        return {**raw, "data": data}
    serve = raw["personalize"]
    chosen = {name: best for name, best in serve.get("by_way", {}).items() if name == way}
    return {**raw, "data": data, "personalize": {**serve, "ways": [way], "by_way": chosen}}


class NewClients(Study):
    """The main result."""

    name: ClassVar[str] = "new-clients"
    aliases: ClassVar[tuple[str, ...]] = ("table-2",)
    title: ClassVar[str] = "Personalized accuracy of new clients"
    keys: ClassVar[tuple[Key, ...]] = PROPOSED

    def rows(self, scale: Scale) -> tuple[Key, ...]:
        """The rows at a scale, the further ones last."""
        return (*self.keys, *further_keys(scale))

    def seeds(self, scale: Scale) -> int:
        """Three, since its verdicts are about all clients of several trainings."""
        return max(scale.seeds, SEEDS) if scale.judges else scale.seeds

    def requests(self, setup: Setup) -> list[RunRequest]:
        """One run for every dataset, method or variant, and seed."""
        names = [name for name in WAYS if setup.allows(name)]
        return [
            main_request(setup, testbed, name, seed)
            for testbed in setup.scale.main
            for name in names
            for seed in setup.seeds
        ]

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """Three tables for every dataset."""
        tables, text = [], []
        for testbed in setup.scale.main:
            runs = found.by_name(self.requests(setup), testbed)
            tables += self.grids(setup, testbed, runs)
            text += [
                another_scale(setup, testbed, printed(setup, testbed)),
                budget(setup, testbed, runs),
                *self.notes(setup, testbed),
            ]
            text += self.claims(setup, testbed, runs)
        return Chapter(self.name, self.title, text, tables)

    def grids(self, setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]]) -> list[Grid]:
        """Lay out Last, Best and |Delta| by size, and the paper's; then what was chosen, and what it costs."""
        paper_scores = paper.NEW_CLIENTS[printed(setup, testbed)]
        names, keys = sizes(setup, testbed), [key for key in self.rows(setup.scale) if runs.get(key[0])]
        rows: list[tuple[Cell, Sequence[Cell]]] = []
        for key in keys:
            mine, beside = runs[key[0]], paper_scores.get(key, {})
            cells = [cell for size in names for cell in (*_cells(mine, key[1], size), *_printed(beside.get(size, ())))]
            rows.append((Cell(row_title(key), run=mine[0].folder), cells))
        columns = ["Last", "Best", "|Δ|"] * (2 * len(names))
        groups = [pair for size in names for pair in ((f"size {size}", 3), (f"{PAPER} {size}", 3))]
        caption = f"{title(setup, testbed)}: personalized accuracy of new clients, in %"
        scores = {6 * i: [last(runs[name], how, size) for name, how in keys] for i, size in enumerate(names)}
        results = Grid(caption, groups, columns, marked(rows, scores))
        spent = costs(testbed, title(setup, testbed), runs, keys, names)
        return [results, chosen(setup, testbed, runs, keys), spent]

    def notes(self, setup: Setup, testbed: str) -> list[str]:
        """Note how rows are chosen and compared, and how often clients are validated."""
        every = setup.testbed(testbed).personalize.get("validate_every", 1)
        names = [name for name in dict.fromkeys(name for name, _ in self.rows(setup.scale)) if setup.allows(name)]
        notes = [chosen_on(setup, testbed, names), pull(setup, testbed, "fedavg")]
        notes += [*repeated(setup, testbed, self.rows(setup.scale)), PAIRS]
        if validations(setup, testbed) == 1:
            said = "Validation looks only at the end of each stage of personalization, so Best and |Δ| are no results."
            return [*notes, said]
        return [*notes, *([f"Best and |Δ| are over every {every}th epoch only."] if every > 1 else [])]

    def claims(self, setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]]) -> list[str]:
        """FedBasis is accurate, its coefficients help, and it is robust to the stopping epoch; for both FedBases."""
        found, where, coefficients = list[str](), title(setup, testbed), list[tuple[str, Named, Named]]()
        for size in sizes(setup, testbed):
            scores = self._scores(setup.scale, runs, size, last)
            stops = self._scores(setup.scale, runs, size, stopping) if validations(setup, testbed) > 1 else {}
            further = [key for key in further_keys(setup.scale) if key[0] == OURS[0]]
            for key in (paper.FEDBASIS, OURS, FROM_PRIOR, *further):
                name, here = row_title(key), f"{where}, {size}: {row_title(key)}"
                text = f"{name} serves new clients best"
                found += highest(text, (here, scores.get(key, {})), _rivals(scores))
                if key == OURS and WITHOUT in scores:
                    without = row_title(WITHOUT), scores[WITHOUT]
                    coefficients.append(("coefficients help FedBasis", (here, scores.get(key, {})), without))
                text = f"choosing the epoch matters least for {name}, by the mean of |Last − Best| over clients"
                found += highest(text, (here, stops.get(key, {})), _rivals(stops, learns), lower=True)
        return found + higher_each(coefficients, "sizes")

    def _scores(
        self,
        scale: Scale,
        runs: Mapping[str, Sequence[RunData]],
        size: str,
        of: Callable[[Sequence[RunData], str, str], PairScores],
    ) -> dict[Key, PairScores]:
        scores = {(name, how): of(runs.get(name, []), how, size) for name, how in self.rows(scale)}
        return {key: mine for key, mine in scores.items() if mine}


def _rivals(scores: Mapping[Key, PairScores], kept: Callable[[Key], bool] = lambda key: True) -> dict[str, PairScores]:
    """Return the rows of other methods by title."""
    own = (PRINTED, "fedbasis")
    return {row_title(key): mine for key, mine in scores.items() if key[0] not in own and kept(key)}


def chosen(setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]], keys: Sequence[Key]) -> Grid:
    """Lay out the statistics and the rate of every row, all of them where seeds differ."""
    names, rows = sizes(setup, testbed), []
    for key in keys:
        cells = []
        for size in names:
            mine = rows_of(runs, key, size)
            folder = runs[key[0]][0].folder
            statistics = dict.fromkeys(row.statistics for row in mine if row.statistics)
            rates = sorted({row.rate for row in mine}) if key[1] not in WITHOUT_TRAINING else []
            cells += [
                Cell(", ".join(statistics) or NOTHING, run=folder),
                Cell(", ".join(f"{rate:g}" for rate in rates) or NOTHING, run=folder),
            ]
        rows.append((Cell(row_title(key), run=runs[key[0]][0].folder), cells))
    caption = f"{title(setup, testbed)}: statistics and learning rate of every row"
    groups = [(f"size {size}", 2) for size in names]
    return Grid(caption, groups, ["statistics", "rate"] * len(names), rows, name=f"chosen-{testbed}")


class AllMethods(NewClients):
    """The same with a linear probe and fine-tuning after every method."""

    name: ClassVar[str] = "all-methods"
    aliases: ClassVar[tuple[str, ...]] = ("table-c",)
    title: ClassVar[str] = "A linear probe and fine-tuning after every method"
    keys: ClassVar[tuple[Key, ...]] = EVERY


class Variance(NewClients):
    """How much the seed matters: variances of Last and Best, in squared points."""

    name: ClassVar[str] = "variance"
    aliases: ClassVar[tuple[str, ...]] = ("table-d",)
    title: ClassVar[str] = "Variance over the seeds"
    keys: ClassVar[tuple[Key, ...]] = tuple(key for key in EVERY if key != ("fedbn", "bn"))

    def grids(self, setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]]) -> list[Grid]:
        """Lay out the variances by size, and the paper's."""
        paper_variance, names = paper.VARIANCE[printed(setup, testbed)], sizes(setup, testbed)
        rows = []
        for key in self.rows(setup.scale):
            cells: list[Cell] = []
            for size in names:
                mine = rows_of(runs, key, size)
                for pick in ([row.last for row in mine], [row.best for row in mine]):
                    cells.append(number(spread(pick), 2, runs[key[0]][0].folder if mine else ""))
                cells += [number(value, 2) for value in paper_variance.get(key, {}).get(size, (None, None))]
            if runs.get(key[0]):
                rows.append((Cell(row_title(key)), cells))
        groups = [pair for size in names for pair in ((f"size {size}", 2), (f"{PAPER} {size}", 2))]
        seeds = max(map(len, runs.values()), default=0)
        caption = f"{title(setup, testbed)}: variance over {seeds} seed{'s' * (seeds != 1)}, in squared points"
        return [Grid(caption, groups, ["Last", "Best"] * (2 * len(names)), rows)]

    def notes(self, setup: Setup, testbed: str) -> list[str]:
        """Note what another seed changes."""
        return ["Another seed is another split into clients too, not only another training."]

    def claims(self, setup: Setup, testbed: str, runs: Mapping[str, Sequence[RunData]]) -> list[str]:
        """Differences in the main table are larger than what seeds do."""
        found = [
            value for key in self.rows(setup.scale) for size in sizes(setup, testbed)
            for pick in ("last", "best")
            if (value := spread([getattr(row, pick) for row in rows_of(runs, key, size)])) is not None
        ]  # fmt: skip
        if not found:
            return ["A variance needs at least two seeds that every row has; add --seeds 3."]
        evidence = f"{title(setup, testbed)}: at most {max(found):.2f}, in the paper at most {LARGEST:.2f}"
        text = "seeds move no row of the main table by more than in the paper"
        evidence += "; no test, the largest of all rows, Last and Best"
        return [claim(text, round(max(found), 2) <= LARGEST, evidence)]


LARGEST = max(
    value
    for rows in paper.VARIANCE.values()
    for by_size in rows.values()
    for pair in by_size.values()
    for value in pair
)
"""The largest variance of the paper's table D."""


def sizes(setup: Setup, testbed: str) -> list[str]:
    """Name the sizes of a new client's data."""
    return list(setup.testbed(testbed).data.get("sizes", SIZES))


def pull(setup: Setup, testbed: str, name: str) -> str:
    """Note how strong the proximal term of ``ft-prox`` is after a method, and whether that is a choice."""
    default = PersonalizeConfig.model_fields["prox"].default
    chosen = setup.raw(testbed, name)["personalize"].get("prox")
    strength = f"{default:g}, the default: it is not tuned" if chosen is None else f"{chosen:g}"
    return f"The proximal term of {row_title((name, 'ft-prox'))} has the strength {strength}."


def repeated(setup: Setup, testbed: str, keys: Sequence[Key]) -> list[str]:
    """Note which rows with fixed statistics are another row again, because the tuning chose the same for that one."""
    same = []
    for name, how in keys:
        way, fixed = split_way(how)
        ways = list(main_ways(setup.scale, name))
        tuned = setup.raw(testbed, name, personalize={"ways": ways})["personalize"].get("by_way", {})
        if fixed and way in tuned and tuned[way] == tuned.get(how) and tuned[way]["statistics"] == [fixed]:
            same.append(f"{row_title((name, how))} is {row_title((name, way))}")
    return [f"Equal rows, since the tuning chose these statistics: {', '.join(same)}."] if same else []


def validations(setup: Setup, testbed: str) -> int:
    """Count the epochs after which a new client is validated."""
    serve = setup.testbed(testbed).personalize
    return int(serve["epochs"]) // int(serve.get("validate_every", 1))


def rows_of(runs: Mapping[str, Sequence[RunData]], key: Key, size: str) -> list[ResultRow]:
    """Return one row of the results for every seed."""
    found = [run.row(key[1], size) for run in runs.get(key[0], [])]
    return [row for row in found if row is not None]


def spread(shares: Sequence[float]) -> float | None:
    """Return the variance of shares of one in squared points, if there are several."""
    return variance([100 * share for share in shares]) if len(shares) > 1 else None


def learns(key: Key) -> bool:
    """Whether Last and Best can differ."""
    return key[1] not in SINGLE


def _cells(runs: Sequence[RunData], how: str, size: str) -> list[Cell]:
    rows = [row for run in runs if (row := run.row(how, size)) is not None]
    if not rows:
        return [Cell(NOTHING)] * 3
    folder = runs[0].folder
    if not learns(("", how)):
        return [measured([row.last for row in rows], folder), Cell(NOTHING), Cell(NOTHING)]
    return [measured(values, folder) for values in zip(*((r.last, r.best, r.delta) for r in rows), strict=True)]


def _printed(numbers: Sequence[float]) -> list[Cell]:
    if len(numbers) < 2:
        return [number(numbers[0] if numbers else None), Cell(NOTHING), Cell(NOTHING)]
    return [*map(number, numbers), number(abs(numbers[0] - numbers[1]))]
