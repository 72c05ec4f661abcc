"""Whatever the partition, a benchmark gives every row one place, is fair to its clients, and survives the disk."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from pflbed import Benchmark, InputError, Spec, Table, build, label_mismatch, load_manifest
from pflbed.benchmark import NEW, PARTICIPATING, SPLITS, TEST, UNUSED, VAL
from pflbed.mismatch import mismatch
from pflbed.partition import mixture
from pflbed.seeding import generator
from pflbed.spec import NATURAL, PARTITIONS


def table_of(domains: int, classes: int, rows: int, seed: int, users: int | None = None, test_rows: int = 0) -> Table:
    """Some hundred rows of skewed classes, optionally with people behind them and an official test set."""
    rng = np.random.default_rng(seed)
    count = domains * rows
    labels = rng.integers(0, classes, count)
    labels[: domains * classes * 8] = np.tile(np.arange(classes), domains * 8)
    domain = np.arange(count) % domains
    held = None
    if test_rows:
        held = np.zeros(count, dtype=np.bool_)
        held[rng.permutation(count)[:test_rows]] = True
    return Table(
        paths=tuple(f"{i:05d}.png" for i in range(count)),
        labels=labels,
        domains=domain,
        class_names=tuple(f"c{i}" for i in range(classes)),
        domain_names=tuple(f"d{i}" for i in range(domains)),
        digest=f"{seed:064d}",
        users=None if users is None else rng.integers(0, users, count) * 1,
        user_names=() if users is None else tuple(f"user {i}" for i in range(users)),
        official_test=held,
    )


def spec_of(partition: str, seed: int, **change: object) -> Spec:
    base = NATURAL if partition == "natural" else Spec(split=(55, 20, 10, 15))
    given = {"clients_per_domain": 3, "new_clients_per_domain": 2, "partition": partition, "classes_per_client": 2}
    return base.changed({**given, **change}, seed)


@pytest.mark.parametrize("partition", PARTITIONS)
@given(st.integers(1, 3), st.integers(2, 4), st.integers(120, 200), st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_a_benchmark_is_disjoint_complete_deterministic_nested_and_large_enough(
    partition: str, domains: int, classes: int, rows: int, seed: int, min_rows: int
) -> None:
    table = table_of(domains, classes, rows, seed, users=8)
    spec = spec_of(partition, seed % 7, min_rows=min_rows)
    try:
        bench = build(table, spec)
    except InputError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        event("refused")
        assert "ask for" in refusal
        return
    event("built")
    assert len(bench.participating) == 3 * domains
    assert len(bench.new) == 2 * domains
    assert set(bench.participating).isdisjoint(bench.new)
    trained = [bench.rows(name) for name in bench.client_ids]
    assert min(map(len, trained)) >= min_rows
    everywhere = np.concatenate(trained)
    assert len(np.unique(everywhere)) == len(everywhere)
    held = {int(row) for name in bench.client_ids for split in ("val", "test") for row in bench.held_rows(name, split)}
    unused = set(np.flatnonzero(bench.split == UNUSED).tolist())
    assert held.isdisjoint(everywhere.tolist())
    assert held | set(everywhere.tolist()) | unused == set(range(len(table)))
    if partition != "natural":
        assert not unused
    for name in bench.new:
        sizes = [bench.rows(name, size) for size in spec.sizes]
        assert all(np.isin(a, b).all() for a, b in pairwise(sizes))
        assert np.array_equal(sizes[-1], bench.rows(name))
        assert len(bench.held_rows(name, "test")) > 0
    for name in bench.client_ids:
        assert bench.label_distribution(name).sum() == pytest.approx(1)
    again = build(table, spec)
    for one, other in ((again.split, bench.split), (again.client, bench.client), (again.smallest, bench.smallest)):
        assert np.array_equal(one, other)
    assert again.client_ids == bench.client_ids


@pytest.mark.parametrize("partition", [name for name in PARTITIONS if name != "natural"])
def test_the_weighted_test_set_has_every_clients_mixture(partition: str) -> None:
    bench = build(table_of(3, 4, 300, 1), spec_of(partition, 0))
    measured = mismatch(bench)
    assert measured is not None
    assert measured.here == pytest.approx(0, abs=1e-12)
    assert measured.conventional > 0.05


def test_clients_that_mix_domains_are_weighted_by_class_and_domain() -> None:
    table = table_of(3, 4, 300, 1)
    bench = build(table, spec_of("mixture", 0))
    name = bench.new[0]
    assert bench.domain_of(name) == "mixed"
    rows, weights = bench.held_rows(name, "test"), bench.held_weights(name, "test")
    assert set(table.domains[rows].tolist()) == {0, 1, 2}
    mine = bench.rows(name)
    for domain in range(3):
        for label in range(4):
            trained = ((table.domains[mine] == domain) & (table.labels[mine] == label)).mean()
            tested = weights[(table.domains[rows] == domain) & (table.labels[rows] == label)].sum() / weights.sum()
            assert tested == pytest.approx(trained)


def test_weights_on_a_balanced_test_set_are_the_papers_to_the_bit() -> None:
    bench = build(table_of(2, 3, 200, 0), spec_of("dirichlet", 0))
    for name in bench.client_ids:
        labels = bench.table.labels[bench.held_rows(name, "test")]
        assert np.array_equal(bench.held_weights(name, "test"), bench.label_distribution(name)[labels])


def test_an_official_test_set_is_the_test_set_and_is_weighted_whatever_its_classes() -> None:
    table = table_of(1, 3, 400, 2, test_rows=101)
    spec = spec_of("shards", 0, split=(72, 18, 10, 0))
    bench = build(table, spec)
    assert table.official_test is not None
    assert np.array_equal(bench.split == TEST, table.official_test)
    measured = mismatch(bench)
    assert measured is not None
    assert measured.here == pytest.approx(0, abs=1e-12)
    with pytest.raises(
        InputError, match="official test set of 101 images, so the test share of split must be 0, got 15"
    ):
        build(table, spec_of("shards", 0))
    with pytest.raises(InputError, match="something to test on, got a test share of 0"):
        build(replace(table, official_test=None), spec)


def test_natural_clients_are_the_users_with_images_of_their_own() -> None:
    table = table_of(1, 4, 900, 0, users=30)
    bench = build(table, NATURAL.changed({"clients_per_domain": 12, "new_clients_per_domain": 11}, 0))
    assert table.users is not None
    used = set()
    for name in bench.client_ids:
        user = table.user_names.index(name.removeprefix("d0/"))
        own = np.flatnonzero(table.users == user)
        parts = [bench.rows(name), bench.held_rows(name, "val"), bench.held_rows(name, "test")]
        assert np.array_equal(np.sort(np.concatenate(parts)), own)
        used.add(user)
        shares = [len(part) / len(own) for part in parts]
        expected = (0.8, 0.2, 0.0) if bench.role_of(name) == "participating" else (0.4, 0.2, 0.4)
        assert shares == pytest.approx(expected, abs=1 / len(own) + 1e-9)
        if bench.role_of(name) == "new":
            sizes = [len(bench.rows(name, size)) / len(own) for size in ("S", "M", "L")]
            assert sizes == pytest.approx([0.1, 0.2, 0.4], abs=0.5 / len(own) + 1e-9)
            assert (bench.held_weights(name, "test") == 1).all()
            trained, tested = bench.label_distribution(name), bench.held_distribution(name)
            assert label_mismatch(trained, tested) < 0.5
    assert len(used) == 23
    assert (bench.split[~np.isin(table.users, list(used))] == UNUSED).all()


def test_who_is_new_does_not_depend_on_other_users() -> None:
    table = table_of(1, 4, 900, 0, users=30)
    spec = NATURAL.changed({"clients_per_domain": 15, "new_clients_per_domain": 15}, 0)
    assert table.users is not None
    without = table.take(np.flatnonzero(table.users != 7))
    fewer = build(without, spec.changed({"clients_per_domain": 14}, 0))
    roles = {name: build(table, spec).role_of(name) for name in fewer.client_ids}
    changed = [name for name, role in roles.items() if fewer.role_of(name) != role]
    assert len(changed) <= 1


def test_a_natural_partition_needs_users_with_enough_images() -> None:
    with pytest.raises(InputError, match="names no users; choose another partition"):
        build(table_of(1, 3, 200, 0), spec_of("natural", 0))
    with pytest.raises(InputError, match=r"12 natural clients need .* got 8 of 8 users; ask for fewer clients"):
        build(table_of(1, 3, 400, 0, users=8), spec_of("natural", 0, clients_per_domain=10))


@pytest.mark.parametrize("partition", PARTITIONS)
def test_every_partition_survives_the_disk(partition: str, tmp_path: Path) -> None:
    bench = build(table_of(2, 3, 200, 4, users=9), spec_of(partition, 3))
    bench.save(tmp_path / "one")
    back = load_manifest(tmp_path / "one")
    assert same(bench, back)
    back.save(tmp_path / "two")
    for name in ("manifest.parquet", "card.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def same(one: Benchmark, other: Benchmark) -> bool:
    fields = ("split", "client", "smallest")
    assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in fields)
    assert one.table.users is not None
    assert other.table.users is not None
    assert np.array_equal(one.table.users, other.table.users)
    assert (one.table.paths, one.table.user_names, one.spec) == (other.table.paths, other.table.user_names, other.spec)
    return one.client_ids == other.client_ids


def test_splits_are_named_in_the_order_of_their_numbers() -> None:
    assert [SPLITS[i] for i in (PARTICIPATING, NEW, VAL, TEST, UNUSED)] == [
        "participating", "new", "val", "test", "unused",
    ]  # fmt: skip


def copies(table: Table, pairs: int) -> Table:
    """Give the first rows a copy each: the row as far from the end as the first is from the beginning."""
    groups = [f"row {i:06d}" for i in range(len(table))]
    for i in range(pairs):
        j = next(j for j in range(len(table) - 1 - i, 0, -1) if table.domains[j] == table.domains[i])
        groups[j] = groups[i]
    return replace(table, groups=tuple(groups))


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("official", [False, True])
def test_copies_never_stand_on_two_sides(partition: str, official: bool) -> None:
    natural = partition == "natural"
    if natural and official:
        table = table_of(1, 3, 600, 2, users=8, test_rows=50)
        with pytest.raises(InputError, match="marks an official test set of 50 images"):
            build(table, spec_of(partition, 0))
        return
    table = copies(table_of(1, 3, 600, 2, users=8, test_rows=100 if official else 0), 150)
    change = {"split": (72, 18, 10, 0)} if official else {}
    bench = build(table, spec_of(partition, 0, **change))
    assert table.groups is not None
    sides: dict[str, set[str]] = {}
    for group, split in zip(table.groups, bench.split, strict=True):
        sides.setdefault(group, set()).add(SPLITS[split])
    for side in sides.values():
        held = side - {"unused"}
        assert len(held) <= 1 or (natural and held == {"participating", "new"})


def test_a_copy_in_another_domain_changes_nothing_here() -> None:
    table = table_of(2, 3, 300, 5)
    grouped = copies(table, 0)
    assert table.groups is None
    other = np.flatnonzero(table.domains == 1)[:2]
    names = list(grouped.groups or ())
    names[other[1]] = names[other[0]]
    one, two = (
        build(table, spec_of("dirichlet", 0)),
        build(replace(table, groups=tuple(names)), spec_of("dirichlet", 0)),
    )
    here = table.domains == 0
    assert np.array_equal(one.split[here], two.split[here])
    assert np.array_equal(one.client[here], two.client[here])


def test_only_some_domains_may_have_an_official_test_set() -> None:
    table = table_of(2, 3, 300, 6, test_rows=80)
    assert table.official_test is not None
    held = table.official_test & (table.domains == 0)
    bench = build(replace(table, official_test=held), spec_of("dirichlet", 0))
    tested = bench.split == TEST
    assert np.array_equal(tested & (table.domains == 0), held)
    assert (tested & (table.domains == 1)).any()


def test_clients_that_drew_again_are_as_large_as_the_others_also_when_they_mix_domains() -> None:
    """Clients below the minimum draw again; over many seeds the means of all clients stay equal."""
    labels, domains = np.tile(np.arange(4), 400), np.repeat(np.arange(8), 200)
    first, later = [], []
    for seed in range(60):
        loose = np.bincount(mixture(labels, domains, 100, 0.3, 0.3, generator(seed), 1), minlength=100)
        strict = np.bincount(mixture(labels, domains, 100, 0.3, 0.3, generator(seed), 6), minlength=100)
        first += strict[loose >= 6].tolist()
        later += strict[loose < 6].tolist()
    assert len(later) > 100
    assert np.mean(later) == pytest.approx(np.mean(first), rel=0.25)
