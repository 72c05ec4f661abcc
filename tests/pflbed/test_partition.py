"""Partitions are disjoint, complete, deterministic and nested, whatever the labels."""

import re

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pflbed import InputError
from pflbed.partition import (
    balanced_holdout,
    dirichlet,
    dirichlet_client,
    iid,
    mixture,
    nested_sizes,
    parts_of,
    shards,
    stratified_split,
)
from pflbed.seeding import generator
from pflbed.table import Rows

labelings = st.lists(st.integers(0, 4), min_size=1, max_size=120).map(lambda x: np.array(x, dtype=np.int64))
seeds = st.integers(0, 2**32)


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Rows, Rows]:
    labels = draw(labelings)
    groups = draw(st.lists(st.integers(0, 30), min_size=len(labels), max_size=len(labels)))
    return labels, np.unique(groups, return_inverse=True)[1].astype(np.int64)


def deal(kind: str, labels: Rows, clients: int, alpha: float, rng: np.random.Generator, min_rows: int) -> Rows:
    """Any partition by name; the domains of a mixture are every other row."""
    match kind:
        case "dirichlet":
            return dirichlet(labels, clients, alpha, rng, min_rows)
        case "dirichlet-client":
            return dirichlet_client(labels, clients, alpha, rng, min_rows)
        case "shards":
            return shards(labels, clients, 2, rng, min_rows)
        case "iid":
            return iid(len(labels), clients, rng, min_rows)
        case _:
            return mixture(labels, np.arange(len(labels)) % 2, clients, alpha, 0.3, rng, min_rows)


KINDS = ["dirichlet", "dirichlet-client", "shards", "iid", "mixture"]


@pytest.mark.parametrize("kind", KINDS)
@given(labelings, st.integers(1, 8), st.sampled_from([0.01, 0.3, 1.0, 100.0]), st.integers(1, 3), seeds)
@settings(max_examples=60, deadline=None)
def test_every_partition_deals_every_row_once_or_says_why_not(
    kind: str, labels: Rows, clients: int, alpha: float, min_rows: int, seed: int
) -> None:
    try:
        owners = deal(kind, labels, clients, alpha, generator(seed), min_rows)
    except InputError as error:
        refusal = str(error)
    else:
        refusal = ""
    event("refused" if refusal else "dealt")
    if refusal:
        assert re.search("ask for (fewer|more) clients|ask for a (smaller|larger) classes_per_client", refusal)
        assert re.search("smaller min_rows|classes_per_client", refusal)
        return
    parts = parts_of(owners, clients)
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert all((owners[part] == i).all() and (np.diff(part) > 0).all() for i, part in enumerate(parts))
    assert min(map(len, parts)) >= min_rows
    assert np.array_equal(deal(kind, labels, clients, alpha, generator(seed), min_rows), owners)
    if kind in ("iid", "dirichlet-client"):
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if kind == "shards":
        assert all(len(np.unique(labels[part])) <= 2 for part in parts)


@pytest.mark.parametrize("kind", ["dirichlet", "dirichlet-client", "mixture"])
def test_a_small_alpha_skews_labels_more(kind: str) -> None:
    labels = np.repeat(np.arange(10), 200)

    def largest_share(alpha: float) -> float:
        parts = parts_of(deal(kind, labels, 20, alpha, generator(1), 2), 20)
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    low, middle, high = (
        largest_share(alpha) for alpha in ((0.1, 1.0, 100.0) if kind != "dirichlet-client" else (1.0, 10.0, 1000.0))
    )
    assert low > middle + 0.2 > high + 0.3


def test_dirichlet_skews_sizes() -> None:
    sizes = np.bincount(dirichlet(np.repeat(np.arange(7), 150), 20, 0.3, generator(0)))
    assert sizes.max() > 3 * sizes.min()


def test_dirichlet_shares_have_the_mean_and_the_variance_of_the_distribution() -> None:
    """Of Dirichlet(alpha, ..., alpha) over M clients: mean 1/M, variance (M - 1) / (M^2 (M alpha + 1))."""
    clients, alpha = 4, 0.5
    labels = np.repeat(np.arange(3000), 100)
    owners = dirichlet(labels, clients, alpha, generator(3), 1)
    shares = np.bincount(labels * clients + owners).reshape(-1, clients) / 100
    assert shares.mean(axis=0) == pytest.approx([0.25] * 4, abs=0.02)
    assert shares.var() == pytest.approx((clients - 1) / (clients**2 * (clients * alpha + 1)), rel=0.05)


def test_clients_with_too_little_draw_again_and_the_rest_keep_their_distribution() -> None:
    """With a thousand clients some always get too little: whole redraws would never end, single ones do."""
    labels = np.repeat(np.arange(10), 2000)
    owners = dirichlet(labels, 1000, 0.3, generator(0), 4)
    counts = np.bincount(labels * 1000 + owners, minlength=10_000).reshape(10, 1000)
    assert counts.sum(axis=0).min() >= 4
    shares = counts / 2000
    expected = 999 / (1000**2 * (1000 * 0.3 + 1))
    assert shares.var() == pytest.approx(expected, rel=0.15)


def test_dirichlet_client_follows_a_class_as_often_as_the_class_occurs() -> None:
    """Hsu et al.: q ~ Dirichlet(alpha * prior); with a large alpha every client has the mixture of the whole."""
    labels = np.repeat(np.arange(3), [600, 300, 100])
    owners = dirichlet_client(labels, 10, 1e6, generator(0))
    counts = np.bincount(labels * 10 + owners, minlength=30).reshape(3, 10)
    assert counts.sum(axis=0).tolist() == [100] * 10
    np.testing.assert_allclose(counts.mean(axis=1), [60, 30, 10])
    assert counts[0].std() < 10


def test_shards_are_the_papers_cifar_setting() -> None:
    """100 clients x 5 classes: 80 that participate have 40 shards of each of 10 classes, 95 images a shard."""
    labels = np.repeat(np.arange(10), 3800)
    owners = shards(labels, 80, 5, generator(0))
    counts = np.bincount(labels * 80 + owners, minlength=800).reshape(10, 80)
    assert ((counts > 0).sum(axis=0) == 5).all()
    assert ((counts > 0).sum(axis=1) == 40).all()
    assert set(counts.ravel().tolist()) == {0, 95}
    together = {tuple(np.flatnonzero(column)) for column in counts.T}
    assert len(together) > 50, "the classes of a client must be chance, not a pattern"


def test_shards_of_unequal_classes_are_about_equal() -> None:
    labels = np.repeat(np.arange(4), [4000, 2000, 1000, 1000])
    counts = np.bincount(labels * 40 + shards(labels, 40, 2, generator(0)), minlength=160).reshape(4, 40)
    assert ((counts > 0).sum(axis=0) == 2).all()
    assert ((counts > 0).sum(axis=1) == [40, 20, 10, 10]).all()


def test_mixture_without_preference_is_dirichlet_and_a_small_domain_alpha_is_purer() -> None:
    labels, domains = np.tile(np.arange(5), 800), np.repeat(np.arange(4), 1000)

    def purity(domain_alpha: float) -> float:
        owners = mixture(labels, domains, 20, 1.0, domain_alpha, generator(0))
        counts = np.bincount(domains * 20 + owners, minlength=80).reshape(4, 20)
        return float((counts.max(axis=0) / counts.sum(axis=0)).mean())

    assert purity(0.05) > 0.85
    assert purity(0.05) > purity(1.0) > purity(1000.0)
    assert purity(1000.0) < 0.5


def test_too_few_images_say_what_to_change() -> None:
    with pytest.raises(InputError, match="need 12 images, got 10; ask for fewer clients"):
        dirichlet(np.zeros(10, dtype=np.int64), 6, 0.3, generator(0))
    with pytest.raises(InputError, match="larger alpha"):
        dirichlet(np.zeros(40, dtype=np.int64), 20, 0.001, generator(0))
    with pytest.raises(InputError, match="got 3 of 2; ask for a smaller classes_per_client"):
        shards(np.arange(100) % 2, 5, 3, generator(0))
    with pytest.raises(InputError, match="cover all 5, but 2 clients of 2 cover 4; ask for more clients"):
        shards(np.arange(50) % 5, 2, 2, generator(0))
    with pytest.raises(InputError, match="5 classes leave one with 0 of 10; ask for fewer clients"):
        shards(np.arange(10) % 5, 5, 5, generator(0))


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
