"""An export holds every image where its client, class and split say, other tools read it, and nothing else changes."""

import csv
import errno
import io
import json
import os
import socket
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pflbed import Benchmark, InputError, Spec, Table, build, load_manifest, scan_client
from pflbed.benchmark import NEW, TEST, VAL
from pflbed.dataset import Dataset, find
from pflbed.export import EXPORTS, export
from pflbed.export import hf as hf_module
from pflbed.export.names import LONGEST, safe_name
from pflbed.images import open_file
from pflbed.predictions import score_file
from pflbed.sources.base import Source
from shapes import CLASSES

SMALL = Spec(clients_per_domain=3, new_clients_per_domain=2)
NATURAL = Spec(
    partition="natural",
    clients_per_domain=3,
    new_clients_per_domain=2,
    split=(60, 0, 20, 20),
    sizes={"S": 0.2, "M": 0.5},
)
Pair = tuple[Benchmark, Dataset]


@pytest.fixture(scope="module")
def shapes(dataset: Path) -> Pair:
    found = find(dataset)
    return build(found.table, SMALL), found


@pytest.fixture(scope="module")
def people(dataset: Path) -> Pair:
    """The same images, five people in each domain."""
    found = find(dataset)
    users = np.arange(len(found.table)) % 5 + 5 * found.table.domains
    table = replace(found.table, users=users, user_names=tuple(f"person {i}" for i in range(10)))
    return build(table, NATURAL), replace(found, table=table)


@pytest.fixture(scope="module")
def mixture(dataset: Path) -> Pair:
    found = find(dataset)
    return build(found.table, replace(SMALL, partition="mixture")), found


def source_of(open_image: Any) -> Source:
    return Source(name="test", title="Test", home="here", layout="there", scan=lambda _: table_of(["a"], ["b"], ["c"]),
                  open_image=open_image, counts={}, spec=Spec())  # fmt: skip


def table_of(paths: list[str], classes: list[str], domains: list[str]) -> Table:
    """Labels and domains take turns."""
    rows = np.arange(len(paths))
    return Table(paths=tuple(paths), labels=rows % len(classes), domains=rows // len(classes) % len(domains),
                 class_names=tuple(classes), domain_names=tuple(domains), digest="0" * 64)  # fmt: skip


def by_hand(table: Table, split: list[int], client: list[int], ids: tuple[str, ...]) -> Benchmark:
    smallest = np.where(np.array(split) == NEW, 0, -1).astype(np.int8)
    return Benchmark(table, SMALL, np.array(split, dtype=np.int8), np.array(client, dtype=np.int64), ids, smallest)


def files_below(folder: Path) -> dict[str, int]:
    """Every file's inode."""
    return {str(path.relative_to(folder)): path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


def listing(out: Path) -> list[dict[str, str]]:
    with (out / "images.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def clients_in(out: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    found = [
        (path.parent, json.loads(path.read_text(encoding="utf-8"))) for path in out.glob("clients/*/*/client.json")
    ]
    return {about["id"]: (folder, about) for folder, about in found}


def test_folders_are_hard_links_with_every_row_in_its_place(shapes: Pair, tmp_path: Path) -> None:
    bench, data = shapes
    out, told = tmp_path / "out", []
    lines = export(bench, data, "folders", out, lambda done, total: told.append((done, total)))
    assert "240 linked" in lines[0]
    assert told[-1] == (240, 240)
    assert [done for done, _ in told] == list(range(1, 241))

    rows = listing(out)
    assert sorted(int(line["row"]) for line in rows) == list(range(240))
    for line in rows:
        original = data.root / bench.table.paths[int(line["row"])]
        assert (out / line["file"]).stat().st_ino == original.stat().st_ino
        assert Path(line["file"]).parent.name == line["class"] == original.parent.name
    images = {name for name in files_below(out) if name.endswith(".png")}
    assert images == {line["file"] for line in rows}

    clients = clients_in(out)
    assert set(clients) == set(bench.client_ids)
    for name, (folder, about) in clients.items():
        assert folder == out / "clients" / bench.role_of(name) / name.replace("/", "__")
        assert about["role"] == bench.role_of(name)
        assert about["domain"] == bench.domain_of(name)
        shares = [about["label_distribution"].get(label, 0.0) for label in CLASSES]
        np.testing.assert_allclose(shares, bench.label_distribution(name))
        mine = {line["file"]: int(line["row"]) for line in rows if line["client"] == name}
        assert sorted(mine.values()) == bench.rows(name).tolist()
        assert len(scan_client(folder / "train")) == len(mine)
        assert list(about["sizes"]) == (["S", "M"] if about["role"] == "new" else [])
        for size, paths in about["sizes"].items():
            places = [(folder / path).relative_to(out).as_posix() for path in paths]
            assert [mine[place] for place in places] == bench.rows(name, size).tolist()
        for split in ("val", "test"):
            assert about[split] == [f"../../../shared/{about['domain']}/{split}"]
            assert len(scan_client(folder / about[split][0])) == len(bench.held_rows(name, split))


def test_original_files_stay_as_they_were(dataset: Path, shapes: Pair, tmp_path: Path) -> None:
    bench, data = shapes
    one = dataset / bench.table.paths[0]
    one.chmod(0o444)
    before = one.read_bytes(), stat.S_IMODE(one.stat().st_mode), one.stat().st_mtime_ns, files_below(dataset)
    for kind in EXPORTS:
        export(bench, data, kind, tmp_path / kind)
    assert before == (one.read_bytes(), 0o444, one.stat().st_mtime_ns, files_below(dataset))
    one.chmod(0o644)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM])
def test_where_links_are_refused_images_are_copied(
    number: int, shapes: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, data = shapes

    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    lines = export(bench, data, "folders", tmp_path / "out")
    assert "240 copied" in lines[0]
    assert not any("editing" in line for line in lines)
    line = listing(tmp_path / "out")[0]
    copy, original = tmp_path / "out" / line["file"], data.root / bench.table.paths[int(line["row"])]
    assert copy.stat().st_ino != original.stat().st_ino
    assert copy.read_bytes() == original.read_bytes()


def test_people_have_their_own_held_out_images(people: Pair, tmp_path: Path) -> None:
    bench, data = people
    export(bench, data, "folders", tmp_path / "out")
    assert not (tmp_path / "out" / "shared").exists()
    for name, (folder, about) in clients_in(tmp_path / "out").items():
        for split in ("val", "test"):
            assert about[split] == [split]
            assert len(scan_client(folder / split)) == len(bench.held_rows(name, split))
    held = Counter(line["split"] for line in listing(tmp_path / "out"))
    assert held["test"] == (bench.split == TEST).sum()
    assert held["val"] == (bench.split == VAL).sum()


def test_clients_that_mix_domains_say_where_they_are_tested(mixture: Pair, tmp_path: Path) -> None:
    bench, data = mixture
    export(bench, data, "folders", tmp_path / "out")
    for folder, about in clients_in(tmp_path / "out").values():
        assert about["domain"] == "mixed"
        assert sum(about["domain_distribution"].values()) == pytest.approx(1)
        assert about["test"] == ["../../../shared/chalk/test", "../../../shared/paint/test"]
        assert sum(len(scan_client(folder / place)) for place in about["test"]) == (bench.split == TEST).sum()


ORDINARY = ["dog", "Grüße an Zoë", "犬", "art_painting", "back-pack v1.2", "001.png", "a~b", "collie (blue) & co"]
HOSTILE = [
    "", ".", "..", "../../etc", "/etc/passwd", "a/b", "a\\b", "C:", "CON", "con.png", "Lpt1 .txt", "nul", ".hidden",
    " x", "x ", "x.", "x" * 300, "é" * 300 + ".JPG", "line\nbreak", "nul\0", "a\x9b", "\u202egpj.exe", "\ud800", "<|>",
    "a?*", "a~0123456789",
]  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_name_stays(name: str) -> None:
    assert safe_name(name) == name


def is_safe(name: str) -> bool:
    return (
        0 < len(name.encode()) <= LONGEST
        and name.isprintable()
        and not set(name) & set('<>:"/\\|?*')
        and not name.startswith((".", " "))
        and not name.endswith((".", " "))
        and name.partition(".")[0].strip().lower() not in {"con", "prn", "aux", "nul", "com1", "lpt1"}
    )


def test_hostile_names_become_safe_and_stay_different() -> None:
    names = [safe_name(name) for name in HOSTILE]
    assert all(map(is_safe, names))
    assert len({name.casefold() for name in names}) == len(HOSTILE)
    assert safe_name("é" * 300 + ".JPG").endswith(".JPG")
    assert safe_name("a/b").startswith("a_b~")


@given(st.lists(st.text(max_size=150) | st.sampled_from(ORDINARY + HOSTILE), unique=True, max_size=8))
def test_any_names_become_safe_and_different(names: list[str]) -> None:
    taken: set[str] = set()
    made = [safe_name(name, taken) for name in names]
    assert all(map(is_safe, made))
    assert len({name.casefold() for name in made}) == len(names)


def test_names_that_some_system_takes_for_the_same_stay_different() -> None:
    taken: set[str] = set()
    made = [safe_name(name, taken) for name in ("Dog", "dog", "Zoë", "Zoe\u0308")]
    assert made[0] == "Dog"
    assert made[1].startswith("dog~")
    assert made[2] == "Zoë"
    assert made[3].startswith("Zoe\u0308~")


def test_a_digest_in_use_is_made_longer() -> None:
    first = safe_name("a/b")
    taken = {first}
    second = safe_name("a/b", taken)
    assert second != first
    assert second.startswith(first)
    assert safe_name(second) != second


def hostile(root: Path) -> Pair:
    """Files in folders with awkward names, two of one class with the same name, for classes named worse still."""
    (root / "inner").mkdir(parents=True)
    paths = []
    for i in range(16):
        folder = root / "inner" / ("deep" * (i % 3)) / f"[{i}] *?"
        folder.mkdir(parents=True)
        path = folder / ("same name.png" if i % 4 else "CON.png")
        Image.new("RGB", (3, 3), (i * 15, 0, 0)).save(path)
        paths.append(path.relative_to(root).as_posix())
    table = table_of(paths, ["../../../../up", "/abs"], ["..", "a/../../b"])
    client = [0, 1, 2, 3] * 3 + [-1] * 4
    split = [0, 0, 1, 1] * 3 + [2, 2, 3, 3]
    ids = ("../../../..", "a/b__c", "a__b/c", "x" * 300)
    return by_hand(table, split, client, ids), Dataset(source_of(open_file), root, table, {})


@pytest.mark.parametrize("kind", EXPORTS)
def test_nothing_is_written_outside_whatever_the_names(kind: str, tmp_path: Path) -> None:
    bench, data = hostile(tmp_path / "data")
    before = set(tmp_path.rglob("*"))
    export(bench, data, kind, tmp_path / "out")
    made = set(tmp_path.rglob("*")) - before
    assert all(path.resolve().is_relative_to((tmp_path / "out").resolve()) for path in made)
    assert not any(path.is_symlink() for path in made)
    if kind == "folders":
        rows = listing(tmp_path / "out")
        assert len({line["file"] for line in rows}) == len(rows) == 16
        for line in rows:
            assert all(map(is_safe, Path(line["file"]).parts))
            original = data.root / bench.table.paths[int(line["row"])]
            assert (tmp_path / "out" / line["file"]).stat().st_ino == original.stat().st_ino
        assert set(clients_in(tmp_path / "out")) == set(bench.client_ids)


@pytest.mark.parametrize("kind", ["folders", "hf"])
@pytest.mark.parametrize("path", ["../secret.png", "link.png"])
def test_an_image_outside_the_data_folder_is_refused(kind: str, path: str, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    Image.new("RGB", (3, 3)).save(tmp_path / "secret.png")
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    table = table_of([path], ["a"], ["d"])
    for open_image in (open_file, lambda folder, name: Image.open(folder / name)):
        data = Dataset(source_of(open_image), root, table, {})
        with pytest.raises(InputError, match="must stay inside the data folder"):
            export(by_hand(table, [0], [0], ("d/p00",)), data, kind, tmp_path / "out")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data", "secret.png"]


def record(_: Path, path: str) -> Image.Image:
    """A record of a file of many: an image without a file of its own."""
    return Image.fromarray(pixels_of(path))


def pixels_of(path: str) -> np.ndarray:
    return np.random.default_rng(int(path[-1])).integers(0, 256, (4, 4, 3), dtype=np.uint8)


def records(root: Path) -> Pair:
    table = table_of([f"batch_1/0000{i}" for i in range(4)], ["a", "b"], ["d"])
    return by_hand(table, [0, 1, 2, 3], [0, 1, -1, -1], ("d/p00", "d/n00")), Dataset(source_of(record), root, table, {})


def test_records_without_files_are_written_as_png(tmp_path: Path) -> None:
    (tmp_path / "data" / "batch_1").mkdir(parents=True)
    (tmp_path / "data" / "batch_1" / "00000").write_text("not the record")
    bench, data = records(tmp_path / "data")
    lines = export(bench, data, "folders", tmp_path / "out")
    assert "4 written as PNG" in lines[0]
    rows = listing(tmp_path / "out")
    assert rows[0]["file"] == "clients/participating/d__p00/train/a/batch_1__00000.png"
    for line in rows:
        with Image.open(tmp_path / "out" / line["file"]) as image:
            assert np.array_equal(np.asarray(image), pixels_of(bench.table.paths[int(line["row"])]))


def test_a_link_gets_the_suffix_that_its_file_lacks(tmp_path: Path) -> None:
    Image.new("RGB", (3, 3)).save(tmp_path / "bare", "jpeg")
    table = table_of(["bare"], ["a"], ["d"])
    data = Dataset(source_of(open_file), tmp_path, table, {})
    export(by_hand(table, [0], [0], ("d/p00",)), data, "folders", tmp_path / "out")
    assert listing(tmp_path / "out")[0]["file"].endswith("/train/a/bare.jpg")


@pytest.mark.parametrize("kind", ["folders", "hf", "flower", "blank"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(errno.ENOSPC, "no space")])
def test_an_interrupted_export_leaves_nothing(kind: str, failure: Any, shapes: Pair, tmp_path: Path) -> None:
    bench, data = shapes

    def stop(done: int, _: int) -> None:
        if done > 100:
            raise failure

    (tmp_path / "out").mkdir()
    with pytest.raises((KeyboardInterrupt, OSError)):
        export(bench, data, kind, tmp_path / "out", stop)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert not list((tmp_path / "out").iterdir())


def test_what_is_there_already_is_neither_replaced_nor_mixed_in(shapes: Pair, tmp_path: Path) -> None:
    bench, data = shapes
    full, file, empty = tmp_path / "full", tmp_path / "file", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "mine").touch()
    file.write_text("mine")
    for place in (full, file):
        with pytest.raises(InputError, match=r"needs a new or empty folder, but .* exists already"):
            export(bench, data, "blank", place)
    assert file.read_text() == "mine"
    (tmp_path / "link").symlink_to(empty)
    export(bench, data, "blank", tmp_path / "link")
    assert (empty / "predictions.csv").is_file()
    with pytest.raises(
        InputError, match=r"An export must have a known kind, got 'zip' \(valid: folders, hf, flower, blank\)"
    ):
        export(bench, data, "zip", tmp_path / "other")

    def meanwhile(*_: int) -> None:
        (tmp_path / "late").mkdir(exist_ok=True)
        (tmp_path / "late" / "theirs").touch()

    with pytest.raises(InputError, match="exists already"):
        export(bench, data, "blank", tmp_path / "late", meanwhile)
    assert [entry.name for entry in (tmp_path / "late").iterdir()] == ["theirs"]


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_an_export_can_be_read_by_whom_other_folders_can(shapes: Pair, tmp_path: Path) -> None:
    bench, data = shapes
    export(bench, data, "blank", tmp_path / "out")
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("kind", ["folders", "hf"])
def test_an_unreadable_image_is_named(kind: str, shapes: Pair, tmp_path: Path) -> None:
    bench, data = shapes
    with pytest.raises(InputError, match=r"must be readable, but 'chalk/.*png' in .*elsewhere is not \(.*No such file"):
        export(bench, replace(data, root=tmp_path / "elsewhere"), kind, tmp_path / "out")


@pytest.mark.parametrize("name", ["shapes", "people", "mixture"])
def test_a_blank_that_is_filled_in_can_be_scored(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    bench, data = request.getfixturevalue(name)
    export(bench, data, "blank", tmp_path / "out")
    blank = tmp_path / "out" / "predictions.csv"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["predictions.csv"]
    with blank.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["client", "row", "path", "predicted"]
    assert not any(line["predicted"] for line in rows)
    assert len(rows) == sum(len(bench.held_rows(client, "test")) for client in bench.client_ids)
    with pytest.raises(InputError, match=r"'predicted' .* must be full"):
        score_file(bench, blank)
    for line in rows:
        line["predicted"] = bench.table.class_names[bench.table.labels[int(line["row"])]]
        assert line["path"] == bench.table.paths[int(line["row"])]
    with blank.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    scores = score_file(bench, blank)
    assert set(scores.personalized) == set(bench.client_ids)
    assert set(scores.personalized.values()) == {1.0}


def test_a_blank_needs_test_images(tmp_path: Path) -> None:
    table = table_of(["a"], ["a"], ["d"])
    bench = by_hand(table, [0], [0], ("d/p00",))
    with pytest.raises(InputError, match="must have test images"):
        export(bench, Dataset(source_of(record), tmp_path, table, {}), "blank", tmp_path / "out")


# What follows reads exports back with the libraries they are for.


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Hugging Face's datasets and flwr-datasets, with a cache of their own, without telemetry and without a network."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("HF_HUB_OFFLINE", "1"), ("HF_DATASETS_OFFLINE", "1"), ("HF_UPDATE_DOWNLOAD_COUNTS", "0"),
                            ("FLWR_TELEMETRY_ENABLED", "0"), ("HF_HUB_DISABLE_TELEMETRY", "1")):  # fmt: skip
            patch.setenv(name, value)
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        import datasets  # type: ignore[import-untyped]
        import flwr_datasets.federated_dataset  # type: ignore[import-untyped]

        def refuse(*_: Any) -> None:
            raise AssertionError("an export is read without a network")

        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(flwr_datasets.federated_dataset, "event", lambda *_: None)  # it would write to the home folder
        datasets.disable_progress_bars()
        yield datasets


def read(libraries: Any, out: Path, tmp_path: Path) -> Any:
    return libraries.load_dataset(str(out), cache_dir=str(tmp_path / "hf-cache"))


@pytest.mark.parametrize("name", ["shapes", "people"])
def test_hugging_face_reads_every_image_and_column(
    name: str, libraries: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bench, data = request.getfixturevalue(name)
    export(bench, data, "hf", tmp_path / "out")
    loaded = read(libraries, tmp_path / "out", tmp_path)
    assert list(loaded) == ["participating", "new", "validation", "test"]
    seen: list[int] = []
    for number, split in enumerate(loaded.values()):
        assert isinstance(split.features["image"], libraries.Image)
        assert split.features["label"].names == list(CLASSES)
        assert split.num_rows == (bench.split == number).sum()
        for item in split:
            row = item["row"]
            seen.append(row)
            with Image.open(data.root / bench.table.paths[row]) as image:
                assert np.array_equal(np.asarray(item["image"]), np.asarray(image))
            assert item["label"] == bench.table.labels[row]
            assert item["domain"] == bench.table.domain_names[bench.table.domains[row]]
            assert item["client"] == (bench.client_ids[bench.client[row]] if bench.client[row] >= 0 else None)
            assert item["size"] == (list(bench.spec.sizes)[bench.smallest[row]] if bench.smallest[row] >= 0 else None)
    assert sorted(seen) == np.flatnonzero(bench.split <= TEST).tolist()
    if name == "shapes":
        raw = loaded["test"].cast_column("image", libraries.Image(decode=False))[0]
        assert raw["image"]["bytes"] == (data.root / bench.table.paths[raw["row"]]).read_bytes()
        assert raw["image"]["path"] == bench.table.paths[raw["row"]]


def test_the_code_that_is_told_runs(libraries: Any, shapes: Pair, tmp_path: Path) -> None:
    bench, data = shapes
    for kind in ("hf", "flower"):
        lines = export(bench, data, kind, tmp_path / kind)
        scope: dict[str, Any] = {}
        exec("\n".join(lines[lines.index("Use it:") + 1 :]), scope)
        assert sorted(scope["one"]["row"]) == bench.rows(bench.participating[0]).tolist()
        readme = (tmp_path / kind / "README.md").read_text(encoding="utf-8")
        assert str(tmp_path) not in readme
        assert ("ManifestPartitioner" in readme) == (kind == "flower")


def test_a_path_that_hugging_face_would_take_for_a_pattern_is_pointed_out(shapes: Pair, tmp_path: Path) -> None:
    bench, data = shapes
    assert any("as a pattern" in line for line in export(bench, data, "hf", tmp_path / "out [1]"))
    assert not any("as a pattern" in line for line in export(bench, data, "hf", tmp_path / "out 1"))


def test_parquet_alone_says_what_its_columns_are(
    libraries: Any, shapes: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, data = shapes
    monkeypatch.setattr(hf_module, "GROUP_ROWS", 7)
    monkeypatch.setattr(hf_module, "SHARD_BYTES", 10_000)
    export(bench, data, "hf", tmp_path / "out")
    shards = sorted((tmp_path / "out" / "data").glob("participating-*.parquet"))
    assert len(shards) > 2
    assert [shard.name for shard in shards] == [
        f"participating-{i:05d}-of-{len(shards):05d}.parquet" for i in range(len(shards))
    ]
    files = [str(shard) for shard in shards]
    loaded = libraries.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "hf-cache"), split="train")
    assert loaded.features == read(libraries, tmp_path / "out", tmp_path)["participating"].features
    assert sorted(loaded["row"]) == np.flatnonzero(bench.split == 0).tolist()
    assert loaded["client"] == sorted(loaded["client"])


def test_hostile_names_reach_hugging_face_as_they_are(libraries: Any, tmp_path: Path) -> None:
    bench, data = hostile(tmp_path / "data")
    classes = ('"quoted": \\ # no', "yes", "- 1\n---\n# x", "\u2028\x85\ufeff🐕")
    table = replace(bench.table, class_names=classes, labels=np.arange(16) % 4)
    export(replace(bench, table=table), data, "hf", tmp_path / "out")
    loaded = read(libraries, tmp_path / "out", tmp_path)
    assert loaded["test"].features["label"].names == list(classes)
    assert set(loaded["participating"]["client"]) == {"../../../..", "a/b__c"}
    assert set(loaded["test"]["domain"]) == {"..", "a/../../b"} - {".."}


def test_records_reach_hugging_face_as_png_and_empty_splits_are_left_out(libraries: Any, tmp_path: Path) -> None:
    bench, data = records(tmp_path)
    without = replace(bench, split=np.array([0, 0, 3, 3], dtype=np.int8), client=np.array([0, -1, -1, -1]),
                      client_ids=("d/p00",), smallest=np.full(4, -1, dtype=np.int8))  # fmt: skip
    export(without, data, "hf", tmp_path / "out")
    loaded = read(libraries, tmp_path / "out", tmp_path)
    assert {name: split["row"][:] for name, split in loaded.items()} == {"participating": [0], "test": [2, 3]}
    for item in loaded["test"]:
        assert item["image"].format == "PNG"
        assert np.array_equal(np.asarray(item["image"]), pixels_of(bench.table.paths[item["row"]]))


@pytest.mark.parametrize("shuffle", [True, False])
def test_flower_deals_as_the_manifest_does(libraries: Any, shuffle: bool, shapes: Pair, tmp_path: Path) -> None:
    from flwr_datasets import FederatedDataset

    from pflbed.flower import ManifestPartitioner

    bench, data = shapes
    export(bench, data, "flower", tmp_path / "out")
    kept = load_manifest(tmp_path / "out" / "benchmark")
    partitioners = {
        "participating": ManifestPartitioner(kept),
        "new": ManifestPartitioner(kept, "new", size="S"),
        "test": ManifestPartitioner(kept, "new", "test"),
    }
    federated = FederatedDataset(
        dataset=str(tmp_path / "out"), partitioners=partitioners, shuffle=shuffle, cache_dir=str(tmp_path / "hf-cache")
    )
    assert federated.partitioners["participating"].num_partitions == len(bench.participating) == 6
    assert partitioners["new"].client_ids == bench.new
    rows_of: dict[str, Any] = {
        "participating": bench.rows,
        "new": lambda name: bench.rows(name, "S"),
        "test": lambda name: bench.held_rows(name, "test"),
    }
    for split, partitioner in partitioners.items():
        for i, name in enumerate(partitioner.client_ids):
            mine = federated.load_partition(i, split)
            expected = rows_of[split](name)
            assert list(mine["row"]) == expected.tolist()
            assert list(mine["label"]) == bench.table.labels[expected].tolist()
    assert federated.load_split("test").num_rows == (bench.split == TEST).sum()


def plain(libraries: Any, bench: Benchmark, **more: Any) -> Any:
    """A dataset in the manifest's order, with its labels."""
    features = libraries.Features({"label": libraries.ClassLabel(names=list(bench.table.class_names))})
    made = libraries.Dataset.from_dict({"label": bench.table.labels.tolist()}, features=features)
    for name, values in more.items():
        made = made.add_column(name, values)
    return made


def dealt(libraries: Any, bench: Benchmark, dataset: Any, client: int = 0) -> Any:
    from pflbed.flower import ManifestPartitioner

    partitioner = ManifestPartitioner(bench)
    partitioner.dataset = dataset
    return partitioner.load_partition(client)


def test_any_dataset_in_the_manifests_order_is_dealt(libraries: Any, shapes: Pair) -> None:
    bench, _ = shapes
    dataset = plain(libraries, bench, number=list(range(240)))
    for i, name in enumerate(bench.participating):
        assert list(dealt(libraries, bench, dataset, i)["number"]) == bench.rows(name).tolist()


def test_a_dataset_that_does_not_fit_is_refused(libraries: Any, shapes: Pair) -> None:
    from pflbed.flower import ManifestPartitioner

    bench, _ = shapes
    whole = plain(libraries, bench)
    rows = list(range(240))
    refused = {
        "must have the manifest's 240 rows in their order, got 100": plain(libraries, bench).select(range(100)),
        "it was shuffled or selected from; give FederatedDataset shuffle=False": whole.shuffle(seed=0),
        "labels must be the manifest's, but row": whole.shuffle(seed=0).flatten_indices(),
        "must hold rows of the manifest, 0 to 239, but does not": plain(libraries, bench, row=[*rows[1:], 240]),
        "must hold rows of the manifest": plain(libraries, bench, row=[str(i) for i in rows]),
        "must name a row once": plain(libraries, bench, row=[0, *rows[:-1]]),
        r"must hold all .* rows of the clients, but lacks .* the first being row": plain(
            libraries, bench, row=rows
        ).select(np.flatnonzero(bench.split == NEW)),
    }
    for message, dataset in refused.items():
        with pytest.raises(InputError, match=message):
            dealt(libraries, bench, dataset)
    for client in (-1, 6):
        with pytest.raises(InputError, match=f"A partition must be one of 0 to 5, got {client}"):
            dealt(libraries, bench, whole, client)
    with pytest.raises(InputError, match="role must be"):
        ManifestPartitioner(bench, "test")
    with pytest.raises(InputError, match="split must be"):
        ManifestPartitioner(bench, "new", "validation")
    with pytest.raises(InputError, match="Only new clients have sizes"):
        ManifestPartitioner(bench, size="S")
    alone, _ = records(Path())
    with pytest.raises(InputError, match="must have new clients, got none"):
        ManifestPartitioner(replace(alone, split=np.array([0, 0, 2, 3], dtype=np.int8)), "new")


def test_without_flwr_datasets_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pflbed.flower", raising=False)
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with pytest.raises(InputError, match=r"pip install 'fedbasis\[flower-datasets\]'"):
        __import__("pflbed.flower")


def test_a_png_of_a_record_is_what_pflbed_sees() -> None:
    """Grey and transparent images come out as RGB on white."""
    from pflbed.export.picture import picture

    table = table_of(["a"], ["a"], ["d"])
    clear = Dataset(source_of(lambda *_: Image.new("LA", (2, 2), (0, 0))), Path(), table, {})
    with Image.open(io.BytesIO(picture(clear, "a").png)) as image:
        assert image.mode == "RGB"
        assert np.asarray(image).min() == 255
