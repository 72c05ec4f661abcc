"""What a study says of the paper's own numbers: they stand in both columns, and no claim of the paper fails on them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fedbasis.report.runs import RunData
from fedbasis.report.tables import Grid
from fedbasis.serving.evaluation import ResultRow
from fedbasis.studies import STUDIES, paper
from fedbasis.studies.base import Results, RunRequest, Setup
from fedbasis.studies.grids import PAPER
from fedbasis.studies.scales import SCALES
from fedbasis.training.runs import Run

SETUP = Setup(SCALES["paper"], seeds=(0, 1, 2), strict=False)
PrintedScores = Mapping[tuple[str, str], tuple[float, ...]]  # way and size -> Last, Best, global, in percent


@dataclass(frozen=True, eq=False)
class Printed(RunData):
    """A run with the paper's numbers."""

    scores: PrintedScores = field(default_factory=dict)
    by_rate: Mapping[float, tuple[float, float]] = field(default_factory=dict)

    def row(self, how: str, size: str) -> ResultRow | None:
        found = self.scores.get((how, size))
        if found is None:
            return None
        last, best, general = (*found, found[-1], found[-1])[:3]
        return ResultRow("", "", how, size, 0.01, last / 100, best / 100, general / 100, 0.0, {})

    def accuracies(self, how: str, size: str) -> dict[float, tuple[float, float]]:
        return {rate: (last / 100, best / 100) for rate, (last, best) in self.by_rate.items()}


def printed(study: str, request: RunRequest) -> Printed:
    """What the paper prints for a run of a study; the other cells of its tables stay empty."""
    run, rates = Run(Path(request.name)), paper.META_RATES[request.name] if study == "meta-rates" else {}
    scores = {} if rates else scores_of(study, request.testbed.removesuffix("-all"), request)
    return Printed(run, scores=scores, by_rate=rates)


def scores_of(study: str, testbed: str, request: RunRequest) -> dict[tuple[str, str], tuple[float, ...]]:
    name, ours = request.name, paper.FEDBASIS[1]
    found: dict[tuple[str, str], tuple[float, ...]] = {}
    if study in ("new-clients", "all-methods", "variance"):
        tables = paper.VARIANCE if study == "variance" else paper.NEW_CLIENTS
        for (method, how), by_size in tables[testbed].items():
            found |= {(how, size): pair for size, pair in by_size.items() if method == name}
        if study == "variance":  # -s, 0 and s have the variance s^2
            found = {key: tuple(50 + (request.seed - 1) * math.sqrt(v) for v in pair) for key, pair in found.items()}
    elif study == "regularized":
        decayed, pulled = paper.REGULARIZED[name]
        ways = {way: pulled if way in ("pfedme", "ft-prox") else decayed for way in request.experiment.ways}
        found = {(way, "S"): (value,) for way, value in ways.items() if value is not None}
    elif study == "ablation":
        found = {(ours, "M"): (paper.ABLATION[testbed][name],)}
    elif study == "bases":
        found = {("ft" if name == "1" else ours, "S"): (0.0, paper.BASES[testbed][int(name)])}
    elif study == "communication":
        own, general = paper.COMMUNICATION[name != "every step"]
        found = {("coefficients", "M"): (own, own, general)}
    else:
        figures = {"cifar-participating": paper.PARTICIPATING, "cifar-new": paper.CIFAR_NEW}[study][testbed]
        found = {(how, "M"): (value,) for (method, how), value in figures.items() if method == name}
    return found


NUMBERED = ("new-clients", "all-methods", "variance", "regularized", "ablation", "cifar-participating", "cifar-new",
            "communication", "bases", "meta-rates")  # fmt: skip


@pytest.mark.parametrize("name", NUMBERED)
def test_no_claim_fails_on_the_papers_own_numbers(name: str) -> None:
    study = STUDIES[name]
    found = Results({request.key: printed(name, request) for request in study.requests(SETUP)})
    section = study.chapter(SETUP, found)
    said = [line for line in section.text if " here: " in line]
    assert any(line.startswith("Holds here") for line in said)
    assert not [line for line in said if line.startswith("Does not hold")]
    for grid in section.tables:
        assert compared(grid) > 2


def compared(grid: Grid) -> int:
    """Compare every cell of the paper's columns with the one that was computed; return how many there were."""
    groups = [name for name, width in grid.groups for _ in range(width)]
    beside = [PAPER in name or PAPER in column for name, column in zip(groups, grid.columns, strict=True)]
    step = next(i for i, is_papers in enumerate(beside) if is_papers)
    count = 0
    for name, cells in grid.rows:
        for place, is_papers in enumerate(beside):
            if is_papers and cells[place].value is not None:
                mean = cells[place - step].text.partition(" ")[0]
                assert mean == cells[place].text, (name.text, grid.columns[place])
                count += 1
    return count


def test_claims_about_bases_need_enough_of_them_and_half_a_point() -> None:
    study = STUDIES["bases"]
    requests = [request for request in study.requests(SETUP) if request.testbed == "pacs"]

    def said(**means: float) -> str:
        outcomes = {
            request.key: Printed(
                Run(Path("run")), scores={(way, "S"): (means[f"k{request.name}"],) for way in request.experiment.ways}
            )
            for request in requests
            if f"k{request.name}" in means
        }
        return " ".join(study.chapter(SETUP, Results(outcomes)).text)

    assert "Holds here: no number of bases is half a point or more above four" in said(k1=80, k2=82, k4=84, k8=84.4)
    assert "Does not hold here: no number of bases" in said(k1=80, k2=82, k4=84, k8=84.6)
    assert "cannot be said here" in said(k1=80, k2=82, k4=84)
    assert "Too close to call here: several bases are better than one" in said(k1=80, k2=80.3, k4=84, k6=84)
    assert "Does not hold here: several bases are better than one" in said(k1=80, k2=79.3, k4=84, k6=84)


def test_only_seeds_that_all_rows_have_are_averaged() -> None:
    study = STUDIES["cifar-new"]
    requests = [request for request in study.requests(SETUP) if request.testbed == "cifar10"]
    score = {"fedavg": 70.0, "per-fedavg-fo": 72.0, "fedbasis": 74.0}

    def outcome(request: RunRequest) -> Printed:
        ways = {(way, "M"): (score[request.name] + 10 * request.seed,) for way in request.experiment.ways}
        return Printed(Run(Path("run")), scores=ways)

    kept = [request for request in requests if (request.name, request.seed) != ("per-fedavg-fo", 1)]
    found = Results({request.key: outcome(request) for request in kept})
    grid = study.chapter(SETUP, found).tables[0]
    assert [cells[0].value for _, cells in grid.rows] == pytest.approx([80, 82, 84])  # seeds 0 and 2 of every row
    assert found.lacking(requests) == [
        "1 of 9 runs are missing (per-fedavg-fo on cifar10, seed 1): what is left of a table, its marks and its claims "
        "are over the seeds that all its rows have."
    ]
    whole = Results({request.key: outcome(request) for request in requests if request.name != "fedavg"})
    grid = study.chapter(SETUP, whole).tables[0]
    assert [cells[0].value for _, cells in grid.rows] == pytest.approx([82, 84])  # all three seeds of what there is
    assert Results({request.key: outcome(request) for request in requests}).lacking(requests) == []
