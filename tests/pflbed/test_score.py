"""The weighted accuracy is the paper's sum, term by term."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pflbed import InputError, global_accuracy, label_mismatch, personalized_accuracy

pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)
shares = st.lists(st.integers(1, 9), min_size=4, max_size=4)


@given(pairs, shares)
def test_personalized_accuracy_equals_brute_force(data: list[tuple[int, int]], share: list[int]) -> None:
    p = np.array(share) / sum(share)
    expected = sum(p[y] for guess, y in data if guess == y) / sum(p[y] for _, y in data)
    got = personalized_accuracy([guess for guess, _ in data], [y for _, y in data], p)
    assert got == pytest.approx(expected, rel=1e-12, abs=1e-15)


@given(pairs)
def test_uniform_weights_give_the_global_accuracy(data: list[tuple[int, int]]) -> None:
    guess, truth = [g for g, _ in data], [y for _, y in data]
    uniform = personalized_accuracy(guess, truth, [0.25] * 4)
    assert uniform == pytest.approx(global_accuracy(guess, truth), rel=1e-12)
    assert personalized_accuracy(truth, truth, [0.1, 0.2, 0.3, 0.4]) == 1.0


def test_classes_a_client_lacks_do_not_count() -> None:
    assert personalized_accuracy([0, 0, 0], [0, 1, 1], [1.0, 0.0]) == 1.0
    assert global_accuracy([0, 0, 0], [0, 1, 1]) == pytest.approx(1 / 3)


def test_mismatch_is_the_mean_l1_distance() -> None:
    assert label_mismatch([[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]) == 1.0
    assert label_mismatch([0.25, 0.75], [0.25, 0.75]) == 0.0


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(InputError, match="at least one prediction"):
        global_accuracy(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    with pytest.raises(InputError, match="one prediction per label"):
        global_accuracy([1], [1, 2])
    with pytest.raises(InputError, match="class numbers"):
        global_accuracy([0.5], [1])
    with pytest.raises(InputError, match="zero for all"):
        personalized_accuracy([1], [1], [1.0, 0.0])
    with pytest.raises(InputError, match="one entry per class"):
        personalized_accuracy([1], [5], [1.0, 0.0])
    with pytest.raises(InputError, match="finite numbers"):
        personalized_accuracy([1], [1], [1.0, float("nan")])
    with pytest.raises(InputError, match="row per client"):
        label_mismatch([1, 0], [1, 0, 0])
