"""Verdicts on synthetic scores whose answer is known."""

import numpy as np
import pytest
from scipy import stats

from fedbasis.studies.verdicts import PairScores, by_margin, claim, higher, higher_each, highest

SEEDS, CLIENTS = 3, 40


def scores(gain: float, noise: float, row: int) -> PairScores:
    """120 clients of three seeds: what clients have in common in all rows, a gain, and noise of the row."""
    base = np.random.default_rng(0).uniform(0.4, 0.9, SEEDS * CLIENTS)
    own = np.random.default_rng(row).normal(0, noise, SEEDS * CLIENTS) if noise else np.zeros(SEEDS * CLIENTS)
    values = base + gain + own - own.mean()
    return {(i // CLIENTS, f"client {i % CLIENTS}"): float(value) for i, value in enumerate(values)}


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [(0.02, "Holds here"), (-0.02, "Does not hold here"), (0.001, "No significant difference here")],
)
def test_one_row_against_another(gain: float, verdict: str) -> None:
    ours, theirs = scores(gain, 0.05, 1), scores(0.0, 0.05, 2)
    (said,) = higher("A is better", ("A", ours), ("B", theirs))
    assert said.startswith(f"{verdict}: A is better (A ")
    expected = stats.ttest_rel(list(ours.values()), list(theirs.values()))
    interval = expected.confidence_interval(0.95)
    assert f"difference {100 * gain:+.1f} points" in said
    assert f"95 % interval {100 * interval.low:+.1f} to {100 * interval.high:+.1f}" in said
    assert (f"p = {expected.pvalue:.3f}" if expected.pvalue >= 0.001 else "p < 0.001") in said
    assert "120 pairs" in said
    (mirrored,) = higher("A is lower", ("A", ours), ("B", theirs), lower=True)
    opposite = {"Holds here": "Does not hold here", "Does not hold here": "Holds here"}.get(verdict, verdict)
    assert mirrored.startswith(opposite)


def test_one_row_against_all_others() -> None:
    low, level, far = scores(-0.03, 0.02, 2), scores(0.0, 0.02, 3), scores(0.03, 0.02, 4)
    ours = "A", scores(0.0, 0.02, 1)
    (said,) = highest("A is best", ours, {"low": low, "lower": scores(-0.06, 0.02, 5)})
    assert said.startswith("Holds here")
    assert "the best other, low" in said
    assert "of 2 other rows 2 are significantly lower, 0 not significantly different, 0 significantly higher" in said
    (said,) = highest("A is best", ours, {"low": low, "level": level})
    assert said.startswith("No significant difference here")
    assert "after Holm's correction for 2 rows" in said
    (said,) = highest("A is best", ours, {"low": low, "level": level, "far": far})
    assert said.startswith("Does not hold here")
    assert "the best other, far" in said
    (said,) = highest("A is lowest", ours, {"far": far, "level": level}, lower=True)
    assert said.startswith("No significant difference here")
    assert "the lowest other, level" in said


def test_many_rows_need_more_evidence_than_one() -> None:
    ours, near = scores(0.011, 0.05, 1), scores(0.0, 0.03, 2)
    assert higher("A", ("A", ours), ("B", near))[0].startswith("Holds here")
    crowd = {"B": near} | {f"low {i}": scores(-0.1, 0.02, 10 + i) for i in range(3)}
    assert highest("A", ("A", ours), crowd)[0].startswith("Holds here")  # the others are decided first
    level = {f"level {i}": scores(0.011, 0.05, 20 + i) for i in range(20)}
    assert highest("A", ("A", ours), {"B": near} | level)[0].startswith("No significant difference here")


def test_questions_that_are_asked_together_need_more_evidence_than_one() -> None:
    ours, theirs = scores(0.0095, 0.05, 1), scores(0.0, 0.03, 2)
    one = "A", ("A", ours), ("B", theirs)
    p = float(stats.ttest_rel(list(ours.values()), list(theirs.values())).pvalue)
    assert 0.025 < p < 0.05
    assert higher_each([one], "sizes") == higher(*one)
    small, large = higher_each([one, ("A", ("A", ours), ("C", scores(0.012, 0.05, 3)))], "sizes")
    assert small.startswith("No significant difference here: A (A ")
    assert f"p = {2 * p:.3f} after Holm's correction for 2 sizes" in small
    assert large.startswith("No significant difference here")
    above, below = higher_each([one, ("A", ("A", ours), ("C", scores(0.2, 0.05, 3)))], "sizes")
    assert above.startswith("Holds here")  # the other one is decided first, so this one needs no correction
    assert below.startswith("Does not hold here")
    assert higher_each([("A", ("A", ours), ("B", {}))], "sizes") == []


def test_rows_without_clients_in_common_are_not_judged() -> None:
    assert higher("A", ("A", {}), ("B", scores(0, 0, 1))) == []
    assert higher("A", ("A", scores(0, 0, 1)), ("B", {})) == []
    assert higher("A", ("A", {(0, "x"): 0.5}), ("B", {(0, "y"): 0.5})) == []
    (said,) = higher("A", ("A", {(0, "x"): 0.5}), ("B", {(0, "x"): 0.4}))
    assert said.startswith("No significant difference here")  # one client tells nothing
    assert "interval" not in said


def test_a_margin_is_stated() -> None:
    assert by_margin("it rises", 0.51, 0.5, 0.005, "0.5 to 0.51") == (
        "Holds here: it rises (0.5 to 0.51; rule: at least 0.005 apart, since there are no scores of single clients to "
        "test)."
    )
    assert by_margin("it rises", 0.5, 0.51, 0.005, "").startswith("Does not hold here")
    assert by_margin("it rises", 0.501, 0.5, 0.005, "").startswith("Too close to call here")
    assert claim("x", None, "y") == "No significant difference here: x (y)."
