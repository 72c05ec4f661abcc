"""A benchmark follows PFLBed's rules on PACS's real counts, and changes only where its input does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pflbed import Benchmark, InputError, Spec, Table, build, load_manifest
from pflbed.benchmark import NEW, PARTICIPATING, SPLITS, UNUSED
from pflbed.plots import client_bubbles

PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
PACS: dict[str, tuple[int, ...]] = {
    "art_painting": (379, 255, 285, 184, 201, 295, 449),
    "cartoon": (389, 457, 346, 135, 324, 288, 405),
    "photo": (189, 202, 182, 186, 199, 280, 432),
    "sketch": (772, 740, 753, 608, 816, 80, 160),
}


def counted(counts: dict[str, tuple[int, ...]], classes: tuple[str, ...], per_group: int | None = None) -> Table:
    """A table with so many rows of every domain and class, in groups of so many rows of a class if asked."""
    rows = [
        (domain, label, i)
        for domain, sizes in sorted(counts.items())
        for label, size in enumerate(sizes)
        for i in range(size)
    ]
    names = tuple(sorted(counts))
    return Table(
        paths=tuple(f"{domain}/{classes[label]}/{i}.jpg" for domain, label, i in rows),
        labels=np.array([label for _, label, _ in rows], dtype=np.int64),
        domains=np.array([names.index(domain) for domain, _, _ in rows], dtype=np.int64),
        class_names=classes,
        domain_names=names,
        groups=None if per_group is None else tuple(f"{d}/{label}/{i // per_group}" for d, label, i in rows),
        digest="0" * 64,
    )


def pacs() -> Table:
    """PACS's real counts without its images."""
    return counted(PACS, PACS_CLASSES)


@pytest.fixture(scope="module")
def bench() -> Benchmark:
    return build(pacs(), Spec())


def places(benchmark: Benchmark, domain: str) -> dict[str, tuple[str, str, str]]:
    """Per path of a domain: split, client and size."""
    number = benchmark.table.domain_names.index(domain)
    rows = np.flatnonzero(benchmark.table.domains == number)
    ids = (*benchmark.client_ids, "")
    return {
        benchmark.table.paths[i]: (SPLITS[benchmark.split[i]], ids[benchmark.client[i]], str(benchmark.smallest[i]))
        for i in rows
    }


def test_pacs_has_every_row_in_one_place(bench: Benchmark) -> None:
    assert len(bench.table) == 9991
    assert len(bench.participating) == 80
    assert len(bench.new) == 40
    rows = [bench.rows(name) for name in bench.client_ids]
    rows += [bench.shared_rows(domain, split) for domain in bench.table.domain_names for split in ("val", "test")]
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(9991))
    assert UNUSED not in bench.split
    assert min(len(bench.rows(name)) for name in bench.client_ids) >= 2


@pytest.mark.parametrize("domain", PACS)
def test_pacs_holdouts_follow_the_rule(bench: Benchmark, domain: str) -> None:
    total, rarest = sum(PACS[domain]), min(PACS[domain])
    for split, share, cap in (("test", 0.15, 2), ("val", 0.05, 6)):
        expected = min(round(share * total / 7), rarest // cap)
        labels = bench.table.labels[bench.shared_rows(domain, split)]
        assert np.bincount(labels, minlength=7).tolist() == [expected] * 7
    if domain == "sketch":
        assert len(bench.shared_rows(domain, "test")) == 40 * 7


def test_pacs_pools_are_three_to_one(bench: Benchmark) -> None:
    pool = (bench.split == PARTICIPATING).sum() + (bench.split == NEW).sum()
    assert (bench.split == NEW).sum() / pool == pytest.approx(0.25, abs=0.002)


def test_sizes_are_nested_and_distributions_are_of_the_full_set(bench: Benchmark) -> None:
    for name in bench.new:
        small, full = bench.rows(name, "S"), bench.rows(name, "M")
        assert 1 <= len(small) <= len(full)
        assert np.isin(small, full).all()
        assert np.array_equal(full, bench.rows(name))
        shares = np.bincount(bench.table.labels[full], minlength=7) / len(full)
        np.testing.assert_allclose(bench.label_distribution(name), shares)
    assert np.array_equal(bench.rows(bench.participating[0], "M"), bench.rows(bench.participating[0]))


def test_sizes_below_one_leave_the_rest_to_the_distribution() -> None:
    bench = build(pacs(), Spec(sizes={"S": 0.1, "M": 0.2, "L": 0.4}))
    for name in bench.new:
        counts = [len(bench.rows(name, size)) for size in ("S", "M", "L")]
        assert counts == sorted(counts)
        assert counts[2] <= len(bench.rows(name))


def test_a_size_is_the_same_whether_others_are_asked_for_or_not(bench: Benchmark) -> None:
    for size in ("S", "M"):
        alone = build(pacs(), Spec(sizes={size: bench.spec.sizes[size]}))
        assert alone.new == bench.new
        for name in bench.new:
            assert np.array_equal(alone.rows(name, size), bench.rows(name, size))
            np.testing.assert_array_equal(alone.label_distribution(name), bench.label_distribution(name))


def test_the_same_seed_gives_the_same_benchmark_and_another_another(bench: Benchmark) -> None:
    again, other = build(pacs(), Spec()), build(pacs(), Spec(seed=1))
    assert places(again, "sketch") == places(bench, "sketch")
    assert places(other, "sketch") != places(bench, "sketch")


def test_a_further_domain_leaves_the_others_unchanged(bench: Benchmark) -> None:
    fewer = build(counted({k: v for k, v in PACS.items() if k != "art_painting"}, PACS_CLASSES), Spec())
    for domain in ("cartoon", "photo", "sketch"):
        assert places(fewer, domain) == places(bench, domain)


def test_new_clients_do_not_depend_on_participating_ones(bench: Benchmark) -> None:
    other = build(pacs(), Spec(clients_per_domain=5))
    for domain in PACS:
        mine, theirs = places(bench, domain), places(other, domain)
        assert all(theirs[path] == place for path, place in mine.items() if place[0] != "participating")


@pytest.mark.parametrize("per_group", [3, 8])
def test_groups_never_stand_in_two_splits(per_group: int) -> None:
    table = counted({"a": (200, 160), "b": (96, 320)}, ("x", "y"), per_group)
    bench = build(table, Spec(clients_per_domain=4, new_clients_per_domain=2))
    assert table.groups is not None
    seen: dict[str, set[str]] = {}
    for group, split in zip(table.groups, bench.split, strict=True):
        seen.setdefault(group, set()).add(SPLITS[split])
    assert all(len(splits - {"unused"}) <= 1 for splits in seen.values())
    assert any("unused" in splits for splits in seen.values())
    assert (bench.split == UNUSED).sum() < 4 * 2 * per_group
    for domain in ("a", "b"):
        counts = np.bincount(table.labels[bench.shared_rows(domain, "test")])
        assert counts[0] == counts[1] > 0


def test_a_class_missing_from_a_domain_is_not_counted_there() -> None:
    bench = build(
        counted({"a": (100, 100, 0), "b": (100, 100, 100)}, ("x", "y", "z")),
        Spec(clients_per_domain=3, new_clients_per_domain=2),
    )
    labels = bench.table.labels[bench.shared_rows("a", "test")]
    assert np.bincount(labels, minlength=3).tolist() == [15, 15, 0]


def test_a_group_in_two_domains_is_refused() -> None:
    table = counted({"a": (100, 100), "b": (100, 100)}, ("x", "y"))
    shared = replace(table, groups=("who", *(f"g{i}" for i in range(398)), "who"))
    with pytest.raises(InputError, match="'who' is in two"):
        build(shared, Spec())


def test_too_few_images_are_said_with_their_domain() -> None:
    with pytest.raises(InputError, match=r"val set must hold an image of every class.*domain a"):
        build(counted({"a": (5, 50)}, ("x", "y")), Spec())
    with pytest.raises(InputError, match=r"fewer clients.*domain a, participating clients"):
        build(counted({"a": (25, 25)}, ("x", "y")), Spec())


def test_wrong_questions_are_refused(bench: Benchmark) -> None:
    with pytest.raises(InputError, match="Client must be one of the 120"):
        bench.rows("nobody")
    with pytest.raises(InputError, match="size must be one of S, M, got 'XL'"):
        bench.rows(bench.new[0], "XL")
    with pytest.raises(InputError, match="Only new clients have sizes"):
        bench.rows(bench.participating[0], "S")
    with pytest.raises(InputError, match="domain must be one of the table's"):
        bench.shared_rows("clipart", "test")


def test_a_manifest_is_the_same_bytes_and_reads_back(bench: Benchmark, tmp_path: Path) -> None:
    bench.save(tmp_path / "one")
    build(pacs(), Spec()).save(tmp_path / "two")
    for name in ("manifest.parquet", "card.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["card.json", "manifest.parquet"]
    back = load_manifest(tmp_path / "one")
    assert back.spec == bench.spec
    assert list(back.spec.sizes) == ["S", "M"]
    assert back.table.paths == bench.table.paths
    assert back.table.groups is None
    assert back.client_ids == bench.client_ids
    for one, other in ((back.split, bench.split), (back.client, bench.client), (back.smallest, bench.smallest)):
        assert np.array_equal(one, other)


def test_a_changed_manifest_is_refused(bench: Benchmark, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must hold card\.json"):
        load_manifest(tmp_path)
    bench.save(tmp_path)
    with (tmp_path / "manifest.parquet").open("ab") as file:
        file.write(b"x")
    with pytest.raises(InputError, match="but it differs"):
        load_manifest(tmp_path)
    (tmp_path / "card.json").write_text('{"format": 99}')
    with pytest.raises(InputError, match="must have format 2, got 99"):
        load_manifest(tmp_path)


@pytest.mark.parametrize("participating", [True, False])
def test_bubbles_are_drawn_for_every_client_and_class(bench: Benchmark, participating: bool, tmp_path: Path) -> None:
    figure = client_bubbles(bench, participating)
    drawn = sum(len(np.asarray(collection.get_offsets())) for collection in figure.axes[0].collections)
    names = bench.participating if participating else bench.new
    assert drawn == sum(int((bench.counts(name) > 0).sum()) for name in names)
    figure.savefig(tmp_path / "bubbles.png")
