"""Whatever a benchmark folder or a dataset claims: nothing outside the given folders is read or written."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import pflbed
from pflbed import InputError, Spec, Table, build, load_manifest
from pflbed.bench_folder import located, write
from pflbed.cache import cache_dir
from pflbed.dataset import find
from pflbed.files import sha256_of
from pflbed.manifest import _self_digest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBASIS_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two domains with non-ASCII names, every picture another one."""
    rng = np.random.default_rng(0)
    for domain in ("café", "фото"):
        for label in ("猫", "dog & co"):
            folder = tmp_path / "data" / domain / label
            folder.mkdir(parents=True)
            for i in range(40):
                Image.fromarray(rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)).save(folder / f"bild {i} ü.png")
    return tmp_path / "data"


@pytest.fixture
def bench(root: Path, tmp_path: Path) -> Path:
    dataset = find(root)
    benchmark = build(dataset.table, Spec(clients_per_domain=3, new_clients_per_domain=2))
    write(benchmark, dataset, tmp_path / "bench")
    return tmp_path / "bench"


def forged(bench: Path, change: Callable[[dict[str, list[object]]], None]) -> None:
    """Edit the manifest and forge its digest in the card too, as an attacker would."""
    columns = parquet.read_table(bench / "manifest.parquet").to_pydict()
    change(columns)
    kinds = {name: pa.bool_() if name == "official_test" else pa.string() for name in columns}
    arrays = {name: pa.array(values, type=kinds[name]) for name, values in columns.items()}
    parquet.write_table(pa.table(arrays), bench / "manifest.parquet")
    card = json.loads((bench / "card.json").read_text(encoding="utf-8"))
    card["manifest_sha256"] = sha256_of(bench / "manifest.parquet")
    seal(bench, card)


def seal(bench: Path, card: dict[str, object]) -> None:
    """Write a card with a digest of itself that is right."""
    card = {**card, "card_sha256": _self_digest(card)}
    (bench / "card.json").write_text(json.dumps(card), encoding="utf-8")


def test_non_ascii_names_work_from_scan_to_pixels(bench: Path) -> None:
    clients = pflbed.load(bench, resolution=6)
    assert set(clients.benchmark.table.class_names) == {"猫", "dog & co"}
    client = clients["фото/n00"]
    assert client.domain == "фото"
    assert client.train.pixels.shape[1:] == (6, 6, 3)
    assert isinstance(clients.pixels, np.memmap)
    assert len(client.test) == len(client.test_weights) > 0
    assert client.label_distribution.sum() == pytest.approx(1)


def test_a_manifest_edited_by_hand_is_refused(bench: Path) -> None:
    content = bytearray((bench / "manifest.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (bench / "manifest.parquet").write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"must be the one its card\.json was written for"):
        load_manifest(bench)


@pytest.mark.parametrize(
    "path", ["../secret.png", "/etc/passwd", "a/../../b.png", "C:/x.png", "a\\..\\b.png", "", "a\0b"]
)
def test_a_forged_path_that_leaves_the_folder_is_refused(bench: Path, path: str) -> None:
    forged(bench, lambda columns: columns["path"].__setitem__(0, path))
    with pytest.raises(InputError, match="must be relative to the data folder"):
        load_manifest(bench)


def test_a_link_made_after_the_build_is_not_followed(bench: Path, root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    victim = next(iter(root.rglob("*.png")))
    secret.write_bytes(victim.read_bytes())
    victim.unlink()
    victim.symlink_to(secret)
    with pytest.raises(InputError, match=r"was built from .* but they differ"):
        pflbed.load(bench, resolution=6)


@pytest.mark.parametrize(
    ("column", "value"), [("class", "wolf"), ("domain", "clip"), ("split", "train"), ("client", "who"), ("size", "XXL")]
)
def test_names_that_the_card_does_not_list_are_refused(bench: Path, column: str, value: str) -> None:
    forged(bench, lambda columns: columns[column].__setitem__(0, value))
    with pytest.raises(InputError, match=f"column '{column}' .* got '{value}'"):
        load_manifest(bench)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("spec", {"alpha": 0.3}, "specification of a benchmark must have its fields"),
        ("spec", {"alpha": "x", "split": [60, 20, 5, 15], "sizes": [["S", 0.5]]}, "alpha must be a positive number"),
        ("class_names", "abc", "must be a list of names"),
        ("client_ids", [1, 2], "must be a list of names"),
        ("format", 1, "must have format 2, got 1"),
        ("data_digest", None, r"data_digest of .* must be text"),
    ],
)
def test_a_card_that_was_edited_is_refused(bench: Path, key: str, value: object, message: str) -> None:
    card = json.loads((bench / "card.json").read_text(encoding="utf-8"))
    (bench / "card.json").write_text(json.dumps(card | {key: value}), encoding="utf-8")
    with pytest.raises(InputError, match=r"was edited|must have format"):
        load_manifest(bench)
    seal(bench, card | {key: value})
    with pytest.raises(InputError, match=message):
        load_manifest(bench)


def test_a_client_without_training_rows_is_refused(bench: Path) -> None:
    def rob(columns: dict[str, list[object]]) -> None:
        first = columns["client"][next(i for i, name in enumerate(columns["client"]) if name)]
        columns["split"] = [
            "unused" if c == first else s for c, s in zip(columns["client"], columns["split"], strict=True)
        ]

    forged(bench, rob)
    with pytest.raises(InputError, match="must be named once and have training rows"):
        load_manifest(bench)


def test_other_images_than_those_of_the_build_are_refused(bench: Path, root: Path, tmp_path: Path) -> None:
    next(iter(root.rglob("*.png"))).unlink()
    with pytest.raises(InputError, match=r"must be those the benchmark .* but they differ"):
        located(bench)
    (memory,) = (cache_dir() / "benchmarks").iterdir()
    for forgotten in ("[]", "{", '{"data": 1}'):
        memory.write_text(forgotten)
        with pytest.raises(InputError, match="is not known here"):
            located(bench)
    memory.unlink()
    with pytest.raises(InputError, match="give their folder with --data"):
        located(bench)
    with pytest.raises(InputError, match="The data folder must exist"):
        located(bench, tmp_path / "elsewhere")


def test_images_may_move(bench: Path, root: Path, tmp_path: Path) -> None:
    root.rename(tmp_path / "moved")
    with pytest.raises(InputError, match="must exist"):
        located(bench)
    assert len(located(bench, tmp_path / "moved").table) == 160
    assert len(pflbed.load(bench, data=tmp_path / "moved", resolution=6)) == 10


def test_an_unreadable_image_is_said_when_the_build_did_not_look(bench: Path, root: Path) -> None:
    victim = next(iter(root.rglob("*.png")))
    victim.write_bytes(b"x" * victim.stat().st_size)
    with pytest.raises(InputError, match=r"Every image of the benchmark .* 1 are not, the first being"):
        pflbed.load(bench, resolution=6)


def test_a_million_classes_are_refused() -> None:
    count = 1_000_000
    with pytest.raises(InputError, match=r"at most 100,000 classes, got 1,000,000"):
        Table(
            paths=tuple(map(str, range(count))), labels=np.arange(count), domains=np.zeros(count, dtype=np.int64),
            class_names=tuple(map(str, range(count))), domain_names=("d",), digest="0",
        )  # fmt: skip


def test_a_benchmark_writes_into_its_own_folder_alone(root: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    dataset = find(root)
    write(build(dataset.table, Spec(clients_per_domain=3, new_clients_per_domain=2)), dataset, tmp_path / "new")
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if tmp_path / "new" not in path.parents}
    assert {path for path in after if path not in before} == {tmp_path / "new"}  # the cache is elsewhere
    assert all(after[path] == stamp for path, stamp in before.items())
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["card.json", "clients.png", "manifest.parquet"]
    assert str(tmp_path) not in (tmp_path / "new" / "card.json").read_text(encoding="utf-8")
    assert os.fsencode(str(tmp_path)) not in (tmp_path / "new" / "manifest.parquet").read_bytes()


def test_a_benchmark_from_elsewhere_cannot_point_at_anything_here(bench: Path, tmp_path: Path) -> None:
    (bench / "location.json").write_text(json.dumps({"data": "/", "images": str(tmp_path)}))
    for memory in (cache_dir() / "benchmarks").iterdir():
        memory.unlink()
    with pytest.raises(InputError, match="is not known here"):
        pflbed.load(bench)


@pytest.mark.parametrize("name", ["C: clipart", "back\\slash", "new\nline"])
def test_names_that_no_manifest_could_hold_are_left_out_and_listed(root: Path, name: str) -> None:
    (root / "café").rename(root / name)
    dataset = find(root)
    assert dataset.table.domain_names == ("фото",)
    (problem,) = dataset.every_problem()
    assert (problem.kind, problem.paths) == ("skipped", (name,))


def test_a_bottomless_card_is_refused(bench: Path) -> None:
    (bench / "card.json").write_text("[" * 200_000)
    with pytest.raises(InputError, match="nested at most 64 deep"):
        load_manifest(bench)
