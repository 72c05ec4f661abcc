"""The paired test agrees with SciPy's and, where it should, with trying every exchange of two models' scores."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from fedbasis.report.paired import LEVEL, bold, family, holm, holm_levels, leaders, paired


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


def by_closed_testing(ps: list[float]) -> list[float]:
    """Holm's p values by their definition: the largest Bonferroni p of all families that a test is a member of."""
    everybody = range(len(ps))
    families = [members for size in everybody for members in combinations(everybody, size + 1)]
    return [
        max(min(1.0, len(members) * min(ps[m] for m in members)) for members in families if i in members)
        for i in everybody
    ]


@pytest.mark.parametrize("seed", range(20))
def test_holm_is_the_closed_test_of_bonferroni(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ps = (rng.uniform(0, 1, 7) ** 4).tolist()
    assert holm(ps) == pytest.approx(by_closed_testing(ps))
    doubled = [*ps, ps[0]]  # ties
    assert holm(doubled) == pytest.approx(by_closed_testing(doubled))


def test_holm_of_nothing_and_of_one() -> None:
    assert holm([]) == []
    assert holm([0.03]) == [0.03]
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize("seed", range(10))
def test_an_interval_at_holms_level_has_zero_inside_exactly_if_the_test_is_not_significant(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = rng.uniform(0.5, 0.8, 20)
    first, others = scored(base), [scored(base + rng.normal(gap, 0.03, 20)) for gap in (0.0, 0.01, 0.015, 0.02, 0.04)]
    found = [test for test in family(first, others, holms_intervals=True) if test is not None]
    assert len(found) == len(others)
    for test in found:
        assert test.low is not None
        assert test.high is not None
        assert (test.low <= 0 <= test.high) == (not test.significant)
    raw = [paired(first, other).p for other in others]
    assert [test.adjusted for test in found] == pytest.approx(holm(raw))
    rejected = [p < level for p, level in zip(raw, holm_levels(raw), strict=True)]
    assert rejected == [p < LEVEL for p in holm(raw)]


def test_among_many_equal_rows_luck_is_not_called_significant() -> None:
    rng = np.random.default_rng(1)
    base = rng.uniform(0.5, 0.8, 40)
    alone, corrected = 0, 0
    for _ in range(100):
        rows = [scored(base + rng.normal(0, 0.02, 40)) for _ in range(15)]
        tests = [test for test in family(rows[0], rows[1:]) if test is not None]
        alone += any(test.p < LEVEL for test in tests)
        corrected += any(test.significant for test in tests)
    assert alone > 15
    assert corrected <= 10


def test_a_row_on_other_clients_is_not_in_the_family() -> None:
    first, other = {"a": 0.5, "b": 0.6, "c": 0.7}, {"a": 0.55, "b": 0.64, "c": 0.76}
    assert family(first, [{}, {"x": 0.5}, other]) == [None, None, paired(first, other)]


def test_bold_marks_nothing_where_nearly_all_rows_lead() -> None:
    rng = np.random.default_rng(2)
    base = rng.uniform(0.5, 0.8, 30)
    equal = [scored(base + rng.normal(0, 0.02, 30)) for _ in range(5)]
    assert bold(equal) == [False] * 5
    assert bold([*equal[:2], scored(base - 0.1)]) == [True, True, False]
