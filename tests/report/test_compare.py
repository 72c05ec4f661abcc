"""Two runs side by side: the numbers are SciPy's, and what cannot be compared is refused in one sentence."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedbasis.report.compare import compare
from fedbasis.training.runs import Run
from helpers.report_runs import FEDAVG, FEDBASIS, make_run
from pflbed import InputError


@pytest.fixture
def two(tmp_path: Path) -> list[Run]:
    return [
        make_run(tmp_path / "fedavg-a", "fedavg", FEDAVG),
        make_run(tmp_path / "fedbasis-b", "fedbasis", FEDBASIS, settings={"tau": 0.1}),
    ]


def test_every_way_and_size_with_a_paired_test(two: list[Run]) -> None:
    found = compare(*two)
    assert found.settings == {"method.name": ["fedavg", "fedbasis"], "method.tau": [None, 0.1]}
    ways = [("none", "coefficients+classifier"), ("ft", "coefficients+classifier")]
    assert [(d.size, d.ways) for d in found.differences] == [(size, pair) for size in "SM" for pair in ways]
    for difference in found.differences:
        mine = FEDAVG[difference.ways[0]][difference.size]
        theirs = FEDBASIS[difference.ways[1]][difference.size]
        expected = stats.ttest_rel(theirs, mine)
        assert difference.means == pytest.approx((np.mean(mine), np.mean(theirs)))
        assert difference.paired.p == pytest.approx(expected.pvalue)
        assert difference.paired.low == pytest.approx(expected.confidence_interval(0.95).low)
        assert difference.paired.wins == sum(b > a for a, b in zip(mine, theirs, strict=True))


def test_a_way_that_both_have_meets_itself(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, name, FEDAVG) for name in ("fedavg", "fedprox")]
    assert [d.ways for d in compare(*runs).differences] == [("none", "none"), ("ft", "ft")] * 2
    more = {**FEDAVG, "lp": FEDAVG["ft"]}
    runs[1] = make_run(tmp_path / "fedprox-more", "fedprox", more)
    found = [d.ways for d in compare(*runs).differences if d.size == "S"]
    assert found == [("none", "none"), ("ft", "ft"), ("none", "lp"), ("ft", "lp")]


def test_two_runs_of_a_method_are_named_by_their_settings(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"fedbasis-{tau}", "fedbasis", FEDBASIS, settings={"tau": tau}) for tau in (1, 2)]
    found = compare(*runs)
    assert found.differences[0].titles == ("FedBasis · tau 1", "FedBasis · tau 2")
    assert [d.paired.ties for d in found.differences] == [4, 4]


def test_what_cannot_be_compared_is_refused(two: list[Run], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="are the same one"):
        compare(two[0], Run(two[0].folder / ".." / "fedavg-a"))
    with pytest.raises(InputError, match="has none yet: 1 of 3 rounds are done"):
        compare(two[0], make_run(tmp_path / "young", "fedbasis", {}, rounds=1))
    with pytest.raises(InputError, match="the seeds 0 and 1 drew other clients"):
        compare(two[0], make_run(tmp_path / "seed", "fedbasis", FEDBASIS, seed=1))
    with pytest.raises(InputError, match="served others: their splits differ"):
        compare(two[0], make_run(tmp_path / "split", "fedbasis", FEDBASIS, classes=("cat", "dog", "cow")))
    with pytest.raises(InputError, match=r"has no config\.json"):
        compare(two[0], Run(tmp_path))
