"""Partitions are disjoint, complete, deterministic and nested, whatever the labels."""

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pflbed import InputError
from pflbed.partition import balanced_holdout, dirichlet, nested_sizes, stratified_split
from pflbed.seeding import generator
from pflbed.table import Rows

labelings = st.lists(st.integers(0, 4), min_size=1, max_size=120).map(lambda x: np.array(x, dtype=np.int64))
seeds = st.integers(0, 2**32)


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Rows, Rows]:
    labels = draw(labelings)
    groups = draw(st.lists(st.integers(0, 30), min_size=len(labels), max_size=len(labels)))
    return labels, np.unique(groups, return_inverse=True)[1].astype(np.int64)


@given(labelings, st.integers(1, 8), st.sampled_from([0.01, 0.3, 1.0, 100.0]), st.integers(1, 3), seeds)
@settings(max_examples=60, deadline=None)
def test_dirichlet_deals_every_row_once_or_says_why_not(
    labels: Rows, clients: int, alpha: float, min_rows: int, seed: int
) -> None:
    try:
        parts = dirichlet(labels, clients, alpha, generator(seed), min_rows)
    except InputError as error:
        refusal = str(error)
    else:
        refusal = ""
    event("refused" if refusal else "dealt")
    if refusal:
        assert "fewer clients" in refusal
        assert "smaller min_rows" in refusal
        return
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert min(map(len, parts)) >= min_rows
    again = dirichlet(labels, clients, alpha, generator(seed), min_rows)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_dirichlet_skews_labels_more_for_a_small_alpha() -> None:
    labels = np.repeat(np.arange(10), 200)

    def largest_share(alpha: float) -> float:
        parts = dirichlet(labels, 20, alpha, generator(1))
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    assert largest_share(0.1) > largest_share(1.0) + 0.2 > largest_share(100.0) + 0.3


def test_dirichlet_skews_sizes() -> None:
    sizes = [len(part) for part in dirichlet(np.repeat(np.arange(7), 150), 20, 0.3, generator(0))]
    assert max(sizes) > 3 * min(sizes)


def test_dirichlet_says_what_to_change() -> None:
    with pytest.raises(InputError, match="need 12 images, got 10; ask for fewer clients"):
        dirichlet(np.zeros(10, dtype=np.int64), 6, 0.3, generator(0))
    with pytest.raises(InputError, match="larger alpha"):
        dirichlet(np.zeros(40, dtype=np.int64), 20, 0.05, generator(0))


@given(grouped(), st.integers(0, 6), seeds)
@settings(max_examples=80, deadline=None)
def test_holdout_is_balanced_and_owns_its_groups(data: tuple[Rows, Rows], count: int, seed: int) -> None:
    labels, groups = data
    rarest = int(np.unique(labels, return_counts=True)[1].min())
    if count > rarest:
        with pytest.raises(InputError, match=f"must have {count} images"):
            balanced_holdout(labels, groups, count, generator(seed))
        return
    chosen, surplus = balanced_holdout(labels, groups, count, generator(seed))
    assert all((labels[chosen] == label).sum() == count for label in np.unique(labels))
    assert not np.intersect1d(chosen, surplus).size
    rest = np.setdiff1d(np.arange(len(labels)), np.concatenate([chosen, surplus]))
    assert not np.intersect1d(groups[rest], groups[chosen]).size
    assert np.isin(groups[surplus], groups[chosen]).all()


@given(labelings, seeds)
@settings(max_examples=40, deadline=None)
def test_holdout_without_groups_has_no_surplus(labels: Rows, seed: int) -> None:
    assert not balanced_holdout(labels, None, 1, generator(seed))[1].size


@given(grouped(), st.floats(0, 1), seeds)
@settings(max_examples=60, deadline=None)
def test_stratified_split_is_complete_and_keeps_groups_whole(data: tuple[Rows, Rows], share: float, seed: int) -> None:
    labels, groups = data
    first, second = stratified_split(labels, groups, share, generator(seed))
    assert np.array_equal(np.sort(np.concatenate([first, second])), np.arange(len(labels)))
    assert not np.intersect1d(groups[first], groups[second]).size


@given(labelings, st.floats(0, 1), seeds)
@settings(max_examples=60, deadline=None)
def test_stratified_split_without_groups_is_exact_to_half_a_row(labels: Rows, share: float, seed: int) -> None:
    first, _ = stratified_split(labels, None, share, generator(seed))
    for label in np.unique(labels):
        assert abs((labels[first] == label).sum() - share * (labels == label).sum()) <= 0.5 + 1e-9


@given(labelings, seeds)
@settings(max_examples=60, deadline=None)
def test_sizes_are_nested_and_resemble_the_whole(labels: Rows, seed: int) -> None:
    rows = np.arange(len(labels), dtype=np.int64) * 3 + 1
    sizes = nested_sizes(rows, labels, {"S": 0.1, "M": 0.5, "L": 1.0}, generator(seed))
    assert np.array_equal(sizes["L"], rows)
    assert np.isin(sizes["S"], sizes["M"]).all()
    assert np.isin(sizes["M"], rows).all()
    assert len(sizes["S"]) >= 1
    assert abs(len(sizes["M"]) - len(rows) / 2) <= 0.5 or len(rows) == 1
    for label in np.unique(labels):
        part = (labels[(sizes["M"] - 1) // 3] == label).sum()
        assert abs(part - (labels == label).sum() / 2) <= 1
