"""The paired test agrees with SciPy's and, where it should, with trying every exchange of two models' scores."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedbasis.report.paired import leaders, paired


def scored(values: np.ndarray) -> dict[str, float]:
    return {f"client {i}": float(value) for i, value in enumerate(values)}


@pytest.mark.parametrize("count", [2, 8, 40])
def test_it_is_the_paired_t_test(count: int) -> None:
    rng = np.random.default_rng(count)
    first = rng.uniform(0.4, 0.9, count)
    second = first + rng.normal(0.02, 0.03, count)
    found = paired(scored(first), scored(second))
    expected = stats.ttest_rel(second, first)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert [found.low, found.high] == pytest.approx([interval.low, interval.high])
    assert found.mean == pytest.approx((second - first).mean())
    assert (found.wins, found.ties, found.losses) == ((second > first).sum(), 0, (second < first).sum())


def test_it_says_about_what_all_exchanges_say() -> None:
    rng = np.random.default_rng(3)
    first = rng.uniform(0.4, 0.9, 12)
    gaps = rng.normal(0.015, 0.03, 12)
    reached = [
        abs(np.mean(np.array(signs) * gaps)) >= abs(gaps.mean()) - 1e-12 for signs in product((1, -1), repeat=12)
    ]
    assert paired(scored(first), scored(first + gaps)).p == pytest.approx(np.mean(reached), abs=0.02)


def test_the_order_of_clients_does_not_matter_and_the_sides_mirror_each_other() -> None:
    first, second = {"a": 0.5, "b": 0.7, "c": 0.6}, {"c": 0.8, "a": 0.6, "b": 0.65}
    one, two = paired(first, second), paired(second, first)
    assert one.mean == pytest.approx((0.1 - 0.05 + 0.2) / 3)
    assert one.low is not None
    assert one.high is not None
    assert [two.mean, two.low, two.high] == pytest.approx([-one.mean, -one.high, -one.low])
    assert (one.wins, one.ties, one.losses) == (two.losses, two.ties, two.wins) == (2, 0, 1)


def test_the_ends_of_the_scale() -> None:
    assert paired({"a": 0.5}, {"a": 0.9}).p == 1.0  # one client tells nothing
    assert paired({"a": 0.5}, {"a": 0.9}).low is None
    same = paired({"a": 0.1 + 0.2, "b": 0.5}, {"a": 0.3, "b": 0.5})
    assert (same.p, same.ties, same.mean) == (1.0, 2, 0.0)  # rounding is no difference
    steady = paired({"a": 0.5, "b": 0.25, "c": 0.125}, {"a": 0.75, "b": 0.5, "c": 0.375})
    assert (steady.p, steady.low, steady.high) == (0.0, 0.25, 0.25)
    with pytest.raises(ValueError, match="same clients"):
        paired({"a": 0.5}, {"b": 0.5})
    with pytest.raises(ValueError, match="at least one"):
        paired({}, {})


def test_ties_with_the_best_are_marked_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.5, 0.8, 30)
    rows = [
        scored(base + 0.05),
        scored(base + 0.05 + rng.normal(-0.002, 0.02, 30)),  # worse by luck
        scored(base + rng.normal(0, 0.01, 30)),  # worse by five points
        {},
        {f"other {key}": value for key, value in scored(base).items()},
    ]
    assert leaders(rows) == [True, True, False, False, False]
    assert leaders([{}, {}]) == [False, False]
    assert leaders([]) == []
