"""The tuning part and the tables part of a dataset: disjoint, complete, and decided by an image's pixels alone."""

import hashlib
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

import pflbed
from fedbasis.experiment import prepare
from fedbasis.experiment.config import parse
from pflbed import InputError, Spec, Table
from pflbed.benchmark import Benchmark
from pflbed.cli import app
from pflbed.dataset import find
from pflbed.parts import contents_of, part_rows, shared

PARTS = ("tuning", "tables")
PACS = {
    "art_painting": (379, 255, 285, 184, 201, 295, 449),
    "cartoon": (389, 457, 346, 135, 324, 288, 405),
    "photo": (189, 202, 182, 186, 199, 280, 432),
    "sketch": (772, 740, 753, 608, 816, 80, 160),
}
"""Images of every class of the four domains; sketch has 80 houses."""


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBASIS_CACHE", str(tmp_path / "cache"))


def pictures(count: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.Generator(np.random.PCG64(seed)).integers(0, 256, (count, 9, 12, 3), dtype=np.uint8)


def folder(root: Path, images: NDArray[np.uint8], ending: str = "png") -> Path:
    """Two domains of two classes with these images in turn."""
    for i, image in enumerate(images):
        path = root / ("art", "photo")[i % 2] / ("cat", "dog")[i // 2 % 2] / f"{i:04d}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return root


def table_of(contents: NDArray[np.uint64], labels: list[int]) -> Table:
    return Table(
        paths=tuple(map(str, range(len(contents)))), labels=np.array(labels), domains=np.zeros_like(labels),
        class_names=tuple(map(str, range(max(labels) + 1))), domain_names=("d",), digest="0" * 64,
        contents=contents,
    )  # fmt: skip


def pixels_of(folder: Path, paths: tuple[str, ...]) -> set[str]:
    """What a part holds, by an independent reading of the files."""
    found = set()
    for path in paths:
        with Image.open(folder / path) as image:
            found.add(hashlib.md5(np.asarray(image.convert("RGB")).tobytes()).hexdigest())
    return found


@pytest.mark.usefixtures("_own_cache")
def test_the_rule_is_that_of_the_documentation(tmp_path: Path) -> None:
    images = pictures(24)
    dataset = find(folder(tmp_path / "data", images)).checked()[0]
    tuning = set(dataset.part("tuning").table.paths)
    for path in dataset.table.paths:
        with Image.open(tmp_path / "data" / path) as image:
            head = hashlib.sha256(f"{image.width} {image.height} ".encode() + image.tobytes()).digest()[:8]
        assert (path in tuning) == (int.from_bytes(head, "big") % 4 == 0)


@pytest.mark.usefixtures("_own_cache")
def test_the_parts_are_disjoint_and_cover_everything_whatever_the_paths_order_and_format(tmp_path: Path) -> None:
    images = pictures(80)
    here = find(folder(tmp_path / "one", images)).checked()[0]
    parts = {part: here.part(part).table.paths for part in PARTS}
    assert not set(parts["tuning"]) & set(parts["tables"])
    assert set(parts["tuning"]) | set(parts["tables"]) == set(here.table.paths)
    assert here.part("all").table is here.table
    assert 8 <= len(parts["tuning"]) <= 32  # about a quarter
    # The same pictures under other names, in another order, in other folders, as other files, and among others.
    elsewhere = np.concatenate([pictures(7, seed=1), images[::-1]])
    there = find(folder(tmp_path / "two", elsewhere, "bmp")).checked()[0]
    for part in PARTS:
        mine = pixels_of(tmp_path / "one", parts[part])
        theirs = pixels_of(tmp_path / "two", there.part(part).table.paths)
        assert mine <= theirs
        assert len(theirs - mine) <= 7


def test_the_part_is_the_same_from_files_arrays_and_a_scaled_dataset() -> None:
    images, labels = pictures(160), [i % 2 for i in range(160)]
    same: dict[str, Any] = {"clients": 2, "new": 1, "part": "tuning"}
    rows = part_rows(table_of(contents_of(images), labels), "tuning")
    arrays = pflbed.from_arrays(images, labels, **same)
    scaled = pflbed.from_dataset(list(zip(images, labels, strict=True)), resolution=4, **same)
    gray = pflbed.from_dataset(list(zip(images, labels, strict=True)), channels=1, **same)
    assert len(arrays.benchmark.table) == len(scaled.benchmark.table) == len(gray.benchmark.table) == len(rows)
    assert {image.tobytes() for name in arrays for image in arrays[name].train.pixels} <= {
        image.tobytes() for image in images[rows]
    }
    alone = contents_of(images[:1, :, :, :1])
    assert alone == contents_of(np.repeat(images[:1, :, :, :1], 3, axis=3))  # gray is the RGB image that it shows


def test_copies_and_groups_are_in_one_part() -> None:
    contents = np.array([4, 5, 5, 9, 8, 3], dtype=np.uint64)
    plain = table_of(contents, [0] * 6)
    assert part_rows(plain, "tuning").tolist() == [0, 4]  # the two copies of 5 are together
    # a: 9 and 8, so 8 decides; b: 3 and 5; 5 has a copy in c with 4, so all three are decided by 3.
    grouped = table_of(shared(contents, ("c", "c", "b", "a", "a", "b")), [0] * 6)
    assert part_rows(grouped, "tuning").tolist() == [3, 4]
    assert part_rows(grouped, "tables").tolist() == [0, 1, 2, 5]


def test_groups_are_tuned_on_as_often_as_single_images() -> None:
    """The smallest of eight numbers is not small by its last bits."""
    contents = np.random.Generator(np.random.PCG64(0)).integers(0, 2**64, 8000, dtype=np.uint64)
    grouped = table_of(shared(contents, tuple(f"g{i // 8}" for i in range(8000))), [0] * 8000)
    assert 0.2 < len(part_rows(grouped, "tuning")) / 8000 < 0.3


def test_a_part_needs_the_pixels_and_images() -> None:
    table = replace(table_of(np.array([4, 8], dtype=np.uint64), [0, 1]), contents=None)
    assert part_rows(table, "all").tolist() == [0, 1]
    with pytest.raises(InputError, match="chosen by the pixels of its images, which must have been read"):
        part_rows(table, "tuning")
    with pytest.raises(InputError, match="part 'tables' must have images"):
        part_rows(table_of(np.array([4, 8], dtype=np.uint64), [0, 1]), "tables")
    with pytest.raises(InputError, match="part must be one of all, tuning, tables, got 'tunning' \\(did you mean"):
        Spec(part="tunning")
    with pytest.raises(InputError, match="one number per path"):
        replace(table, contents=np.array([1], dtype=np.uint64))


def pacs() -> Table:
    """A table with the classes of PACS and random contents."""
    labels = [label for counts in PACS.values() for label, count in enumerate(counts) for _ in range(count)]
    domains = [domain for domain, counts in enumerate(PACS.values()) for _ in range(sum(counts))]
    contents = np.random.Generator(np.random.PCG64(0)).integers(0, 2**64, len(labels), dtype=np.uint64)
    return Table(
        paths=tuple(map(str, range(len(labels)))), labels=np.array(labels), domains=np.array(domains),
        class_names=tuple("abcdefg"), domain_names=tuple(PACS), digest="0" * 64, contents=contents,
    )  # fmt: skip


def test_no_benchmark_of_one_part_has_an_image_of_the_other_for_any_seed() -> None:
    """At PACS' counts, with its rarest class of 80 images, about 20 of them in the tuning part."""
    table = pacs()
    benchmarks: dict[str, list[Benchmark]] = {part: [] for part in PARTS}
    for seed in range(4):
        benchmarks["tables"].append(pflbed.build(table, Spec(seed=seed, part="tables")))
        few = Spec(seed=1000 + seed, part="tuning", clients_per_domain=6, new_clients_per_domain=4)
        benchmarks["tuning"].append(pflbed.build(table, few))
    for one, other in itertools.product(*benchmarks.values()):
        assert not set(one.table.paths) & set(other.table.paths)
    for benchmark in benchmarks["tuning"]:
        for name in benchmark.client_ids:
            assert len(benchmark.rows(name)) >= 2
            assert benchmark.held_weights(name, "val").sum() > 0
            assert benchmark.held_weights(name, "test").sum() > 0
        for domain in range(4):  # the held-out sets stay balanced, whatever class is the rarest here
            name = f"{table.domain_names[domain]}/n00"
            for held in ("val", "test"):
                counts = np.bincount(benchmark.table.labels[benchmark.held_rows(name, held)], minlength=7)
                assert counts.min() == counts.max() > 0


def test_the_part_applies_to_the_official_test_set_and_to_users() -> None:
    generator = np.random.Generator(np.random.PCG64(0))
    contents = generator.integers(0, 2**64, 4000, dtype=np.uint64)
    base = table_of(contents, [i % 4 for i in range(4000)])
    official = replace(base, official_test=np.arange(4000) >= 3000)
    shards = Spec(partition="shards", classes_per_client=2, split=(76, 19, 5, 0), sizes={"M": 1.0})
    natural = Spec(partition="natural", split=(80, 0, 20, 0), sizes={"S": 0.1, "M": 0.4}, min_rows=1,
                   clients_per_domain=20, new_clients_per_domain=10)  # fmt: skip
    users = replace(base, users=np.arange(4000) % 30, user_names=tuple(f"u{i}" for i in range(30)))
    for table, spec in ((official, shards), (users, natural)):
        seen = {}
        for part in PARTS:
            benchmark = pflbed.build(table, replace(spec, part=part))
            held = [row for name in benchmark.new for row in benchmark.held_rows(name, "test")]
            assert held
            seen[part] = {benchmark.table.paths[row] for row in range(len(benchmark.table))}
            assert {benchmark.table.paths[row] for row in held} <= seen[part]
        assert not seen["tuning"] & seen["tables"]


def test_the_embedded_data_have_parts_and_keep_their_groups_together() -> None:
    both = {part: pflbed.digits4(clients=2, new=1, part=part).benchmark for part in PARTS}
    groups = {part: set(benchmark.table.groups or ()) for part, benchmark in both.items()}
    assert not groups["tuning"] & groups["tables"]
    assert sum(len(benchmark.table) for benchmark in both.values()) == len(find("digits4").table)
    assert pflbed.digits4(clients=2, new=1, part="tuning", seed=7).benchmark.table.digest == both["tuning"].table.digest
    # A sample of a part is of that part, even if the image of a group that decided is not in it.
    few = pflbed.digits4(clients=2, new=1, part="tables", limit=16).benchmark.table
    assert np.bincount(few.labels + 10 * few.domains).tolist() == [16] * 40


@pytest.mark.usefixtures("_own_cache")
def test_a_built_benchmark_says_its_part_and_an_experiment_takes_it(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", pictures(400))
    runner = CliRunner()
    given = ["build", str(data), "--clients", "2", "--new", "1", "--part", "tuning", "--out"]
    result = runner.invoke(app, [*given, str(tmp_path / "bench")])
    assert result.exit_code == 0, result.output
    benchmark = pflbed.load_manifest(tmp_path / "bench")
    assert benchmark.spec.part == "tuning"
    assert set(benchmark.table.paths) == set(find(data).checked()[0].part("tuning").table.paths)
    shown = runner.invoke(app, ["show", str(tmp_path / "bench")])
    assert "the part 'tuning'" in shown.output
    quick = runner.invoke(app, [*given, str(tmp_path / "other"), "--names-only"])
    assert isinstance(quick.exception, InputError)
    raw = {"data": {"source": str(tmp_path / "bench"), "resolution": 8}, "method": {"name": "fedavg"}}
    assert prepare(parse(raw)).experiment.data.part == "tuning"


@pytest.mark.usefixtures("_own_cache")
def test_an_experiment_trains_and_tests_on_its_part(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", pictures(400))
    raw: dict[str, Any] = {
        "data": {"source": str(data), "resolution": 8, "clients": 2, "new_clients": 1},
        "method": {"name": "fedavg"},
    }
    prepared = {
        part: prepare(parse({**raw, "data": {**raw["data"], "part": part}})) for part in ("all", *PARTS)
    }  # fmt: skip
    rows = {part: set(found.benchmark.table.paths) for part, found in prepared.items()}
    assert not rows["tuning"] & rows["tables"]
    assert rows["tuning"] | rows["tables"] == rows["all"]
    assert len({found.experiment.digest(found.identity) for found in prepared.values()}) == 3
    assert len({found.experiment.digest("the same") for found in prepared.values()}) == 3
