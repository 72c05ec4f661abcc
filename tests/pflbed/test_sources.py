"""Every dataset is read in its makers' layout; what is missing, wrong or hostile is refused in a sentence."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from numpy.typing import NDArray
from PIL import Image

from pflbed.errors import InputError
from pflbed.safe_paths import FEW, check_relative, inside
from pflbed.sources import SOURCES
from pflbed.table import in_order
from pflbed.table_file import read_table

HOSTILE = ["/etc/passwd", "../a.png", "a/../b.png", "a/..", "..", "a\\b.png", "C:a.png", "c:/a.png", "a\0.png",
           "a\nb.png", "a\x7f.png", "a\x85.png", ""]  # fmt: skip
HARMLESS = ["a.png", "a..b/c...png", ".hidden/..a", "Größe/画像 1.jpg", "1:b/img:c.png", "a,b;c.png", "~/a"]


def write_image(path: Path, color: tuple[int, int, int] = (200, 10, 10)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), color).save(path)


def write_domains(root: Path, names: Sequence[str], classes: Sequence[str] = ("dog", "house")) -> Path:
    for domain in names:
        for label in classes:
            write_image(root / domain / label / "pic 1.jpg")
    return root


def pixels(source: str, root: Path, path: str) -> NDArray[np.uint8]:
    with SOURCES[source].open_image(SOURCES[source].folder(root), path) as image:
        assert image.mode == "RGB"
        return np.asarray(image)


# Paths


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
def test_paths_that_leave_the_folder_are_refused(many: bool) -> None:
    filler = ["images/a.png"] * (FEW if many else 3)
    check_relative(filler + HARMLESS)
    for path in [*HOSTILE, "\udcff.png"]:
        with pytest.raises(InputError, match=rf"relative to the data folder.*in row {len(filler) + 1};"):
            check_relative([*filler, path, "b.png"])


def test_inside_follows_links_and_stays(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_image(root / "a" / "in.png")
    write_image(tmp_path / "out.png")
    (root / "a" / "near.png").symlink_to(root / "a" / "in.png")
    (root / "far.png").symlink_to(tmp_path / "out.png")
    (root / "loop.png").symlink_to(root / "loop.png")
    (root / "up").symlink_to(tmp_path)
    (tmp_path / "door").symlink_to(root)
    assert inside(root, "a/near.png") == (root / "a" / "in.png").resolve()
    assert inside(tmp_path / "door", "a/in.png") == (root / "a" / "in.png").resolve()
    for path in ("far.png", "up/out.png", "../out.png", str(tmp_path / "out.png"), "a/../..", ".", ""):
        with pytest.raises(InputError, match="must stay inside the data folder"):
            inside(root, path)
    for path in ("a\0b", "loop.png/x"):
        with pytest.raises(InputError, match="must"):
            inside(root, path)


# Folders of images: any folder, PACS, Office-Home


def test_any_folder_is_a_source(tmp_path: Path) -> None:
    root = write_domains(tmp_path / "data", ["night", "day"])
    write_image(root / "day" / "dog" / "green.png", (0, 255, 0))
    table = SOURCES["folder"].scan(root)
    assert table.domain_names == ("day", "night")
    assert SOURCES["folder"].problems(table) == []
    assert pixels("folder", root, "day/dog/green.png")[0, 0].tolist() == [0, 255, 0]
    (root / "day" / "dog" / "green.png").unlink()
    write_image(tmp_path / "elsewhere.png")
    (root / "day" / "dog" / "green.png").symlink_to(tmp_path / "elsewhere.png")  # after the scan
    with pytest.raises(InputError, match="must stay inside"):
        pixels("folder", root, "day/dog/green.png")


@pytest.mark.parametrize("below", ["", "PACS", "pacs_data"])
def test_pacs_is_found_in_its_folder_and_beside_other_things(tmp_path: Path, below: str) -> None:
    pacs = SOURCES["pacs"]
    base = write_domains(tmp_path / "data" / below, list(pacs.counts))
    for stray in ("Train val splits", "splits/pacs_label"):
        (base / stray).mkdir(parents=True)
        (base / stray / "photo_train_kfold.txt").write_text("photo/dog/056_0001.jpg 1\n")
    (tmp_path / "data" / "photo").mkdir(exist_ok=True)  # less of PACS than its own folder has
    table = pacs.scan(tmp_path / "data")
    assert table.domain_names == ("art_painting", "cartoon", "photo", "sketch")
    assert table.class_names == ("dog", "house")
    assert table.paths[0] == "art_painting/dog/pic 1.jpg"
    assert table.digest == pacs.scan(base).digest
    assert pacs.folder(tmp_path / "data") == base
    assert pixels("pacs", tmp_path / "data", table.paths[0]).shape == (4, 4, 3)
    with pytest.raises(InputError, match="must stay inside"):
        pixels("pacs", tmp_path / "data", "../secret.png")


def test_an_incomplete_dataset_is_said_to_be_so(tmp_path: Path) -> None:
    pacs = SOURCES["pacs"]
    assert sum(pacs.counts.values()) == 9991
    assert sum(SOURCES["office-home"].counts.values()) == 15588
    table = pacs.scan(write_domains(tmp_path / "data", ["cartoon", "photo", "sketch", "thumbnails"]))
    (problem,) = pacs.problems(table)
    assert "this is not the whole PACS: art_painting must have 2,048 images, got 0; cartoon must have" in problem
    assert "thumbnails is no part of PACS" in problem
    assert "Get the PACS folder linked from" in problem
    fitting = replace(pacs, counts={"cartoon": 2, "photo": 2, "sketch": 2, "thumbnails": 2})
    assert fitting.problems(table) == []
    assert replace(pacs, counts={}).problems(table) == []


@pytest.mark.parametrize("below", ["", "OfficeHomeDataset_10072016"])
@pytest.mark.parametrize("real", ["Real World", "RealWorld", "Real_World"])
def test_office_home_under_each_name_of_real_world(tmp_path: Path, real: str, below: str) -> None:
    office = SOURCES["office-home"]
    base = write_domains(tmp_path / "data" / below, ["Art", "Clipart", "Product", real])
    (base / "ImageInfo.csv").write_text("unusedId,...\n")
    (base / "imagelist.txt").write_text("Art/Alarm_Clock/00001.jpg\n")
    write_image(base / real / "dog" / "green.png", (0, 255, 0))
    table = office.scan(tmp_path / "data")
    assert table.domain_names == ("Art", "Clipart", "Product", "Real World")
    assert f"{real}/dog/green.png" in table.paths
    assert pixels("office-home", tmp_path / "data", f"{real}/dog/green.png")[0, 0].tolist() == [0, 255, 0]
    fitting = replace(office, counts={"Art": 2, "Clipart": 2, "Product": 2, "Real World": 3})
    assert fitting.problems(table) == []
    write_domains(base, ["Real-World", "RealWorld", "Real World"])
    with pytest.raises(InputError, match="one folder for Real World, got"):
        office.scan(tmp_path / "data")


@pytest.mark.parametrize("name", [name for name in SOURCES if name not in ("folder", "arrays")])
def test_a_missing_dataset_says_what_to_get_and_where_to_put_it(tmp_path: Path, name: str) -> None:
    source = SOURCES[name]
    (tmp_path / "void").mkdir()
    (tmp_path / "file").write_text("")
    for root in ("void", "nowhere", "file"):
        with pytest.raises(InputError, match=rf"{source.title} needs the .*, which .*{root} lacks; get .*, and put "):
            source.scan(tmp_path / root)
    assert "https://" in source.home


# GLD23k

GLD: dict[str, list[Any]] = {
    "user_id": [10, 9, 10, 9],
    "image_id": ["00a1ff", "0b2c3d", "ffe012", "f00ba4"],
    "class": [2, 10, 2, 0],
}


@pytest.mark.parametrize(
    "place", ["data_user_dict/gld23k_user_dict_train.csv", "datasets/mini_gld_train_split.csv",
              "mini_gld_train_split.csv"],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["images/{id}.jpg", "train/{id[0]}/{id[1]}/{id[2]}/{id}.jpg"])
def test_gld23k_in_both_layouts(tmp_path: Path, place: str, layout: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    lines = zip(*GLD.values(), strict=True)
    (tmp_path / place).write_text("\n".join([",".join(GLD), *(",".join(map(str, line)) for line in lines)]) + "\n")
    write_image(tmp_path / layout.format(id="ffe012"), (0, 255, 0))
    table = SOURCES["gld23k"].scan(tmp_path)
    assert table.paths == tuple(layout.format(id=name) for name in GLD["image_id"])
    assert table.class_names == ("0", "2", "10")
    assert table.labels.tolist() == [1, 2, 1, 0]
    assert table.user_names == ("9", "10")
    assert table.users is not None
    assert table.users.tolist() == [1, 0, 1, 0]
    assert table.domain_names == ("gld23k",)
    assert table.official_test is None
    assert pixels("gld23k", tmp_path, table.paths[2])[0, 0, 1] > 200
    assert "gld23k must have 23,080 images, got 4" in SOURCES["gld23k"].problems(table)[0]


def test_gld23k_refuses_what_is_no_list(tmp_path: Path) -> None:
    file = tmp_path / "mini_gld_train_split.csv"
    file.write_text("user_id,image_id,class\n1,00a1ff,3\n")
    with pytest.raises(InputError, match="GLD23k needs the folder images"):
        SOURCES["gld23k"].scan(tmp_path)
    (tmp_path / "images").mkdir()
    assert len(SOURCES["gld23k"].scan(tmp_path)) == 1
    for ids in ("../../x", "a/b/c", "ab", "/etc/passwd"):
        file.write_text(f"user_id,image_id,class\n1,00a1ff,3\n1,{ids},3\n")
        with pytest.raises(InputError, match=r"image_id must be letters and digits.*row 2"):
            SOURCES["gld23k"].scan(tmp_path)
    file.write_text("image_id,class\n00a1ff,3\n")
    with pytest.raises(InputError, match="must have a column user_id, got 'image_id', 'class'"):
        SOURCES["gld23k"].scan(tmp_path)
    file.write_text("user_id,image_id,class\n1,00a1ff,3\n2,00a1ff,3\n")
    with pytest.raises(InputError, match=r"paths must be unique, got 'images/00a1ff.jpg' twice"):
        SOURCES["gld23k"].scan(tmp_path)


# CIFAR


def records(labels: Sequence[Sequence[int]], seed: int) -> NDArray[np.uint8]:
    """Images as [N, 3, 32, 32], written behind their label bytes by ``write_records``."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return rng.integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8)


def write_records(file: Path, labels: Sequence[Sequence[int]], seed: int) -> NDArray[np.uint8]:
    planes = records(labels, seed)
    content = [bytes(label) + planes[i].tobytes() for i, label in enumerate(labels)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"".join(content))
    return planes


def write_cifar10(base: Path) -> dict[str, NDArray[np.uint8]]:
    stems = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    made = {stem: write_records(base / f"{stem}.bin", [[i], [9 - i], [3]], i) for i, stem in enumerate(stems)}
    (base / "batches.meta.txt").write_text("\n".join(f"class{i}" for i in range(10)) + "\n\n")
    return made


def write_cifar100(base: Path) -> dict[str, NDArray[np.uint8]]:
    made = {
        "train": write_records(base / "train.bin", [[0, 99], [19, 0], [7, 42]], 1),
        "test": write_records(base / "test.bin", [[5, 50]], 2),
    }
    (base / "fine_label_names.txt").write_text("\n".join(f"fine_{i}" for i in range(100)) + "\n")
    (base / "coarse_label_names.txt").write_text("\n".join(f"coarse_{i}" for i in range(20)) + "\n")
    return made


@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin"])
def test_cifar10_label_by_label_and_plane_by_plane(tmp_path: Path, below: str) -> None:
    made = write_cifar10(tmp_path / below)
    table = SOURCES["cifar10"].scan(tmp_path)
    assert table.class_names == tuple(f"class{i}" for i in range(10))
    assert table.domain_names == ("cifar10",)
    assert table.paths[:4] == ("data_batch_1/00000", "data_batch_1/00001", "data_batch_1/00002", "data_batch_2/00000")
    assert table.labels.tolist() == [0, 9, 3, 1, 8, 3, 2, 7, 3, 3, 6, 3, 4, 5, 3, 5, 4, 3]
    assert table.official_test is not None
    assert np.flatnonzero(table.official_test).tolist() == [15, 16, 17]
    for path in table.paths:
        stem, number = path.split("/")
        image = pixels("cifar10", tmp_path, path)
        for plane in range(3):
            assert np.array_equal(image[:, :, plane], made[stem][int(number), plane])
    assert "cifar10 must have 60,000 images, got 18" in SOURCES["cifar10"].problems(table)[0]
    assert replace(SOURCES["cifar10"], counts={"cifar10": 18}).problems(table) == []


def test_cifar100_has_fine_and_coarse_labels_for_the_same_pixels(tmp_path: Path) -> None:
    made = write_cifar100(tmp_path / "cifar-100-binary")
    fine, coarse = (SOURCES[name].scan(tmp_path) for name in ("cifar100", "cifar100-coarse"))
    assert fine.labels.tolist() == [99, 0, 42, 50]
    assert coarse.labels.tolist() == [0, 19, 7, 5]
    assert fine.class_names[99] == "fine_99"
    assert coarse.class_names[19] == "coarse_19"
    assert fine.paths == coarse.paths == ("train/00000", "train/00001", "train/00002", "test/00000")
    assert fine.domain_names == coarse.domain_names == ("cifar100",)
    assert fine.digest != coarse.digest
    for name in ("cifar100", "cifar100-coarse"):
        assert np.array_equal(pixels(name, tmp_path, "train/00002"), made["train"][2].transpose(1, 2, 0))
        assert np.array_equal(pixels(name, tmp_path, "test/00000"), made["test"][0].transpose(1, 2, 0))


def test_cifar_digest_is_of_the_content(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "one")
    write_cifar10(tmp_path / "two" / "cifar-10-batches-bin")
    scan = SOURCES["cifar10"].scan
    before = scan(tmp_path / "one").digest
    assert before == scan(tmp_path / "two").digest
    file = tmp_path / "one" / "test_batch.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 255]))
    assert scan(tmp_path / "one").digest != before


def test_cifar_refuses_wrong_files_and_rows(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    source = SOURCES["cifar10"]
    for path in ("data_batch_6/00000", "../data_batch_1/00000", "data_batch_1/0", "data_batch_1/-0001", "x", "/", ""):
        with pytest.raises(InputError, match="named like data_batch_1/00042"):
            source.open_image(tmp_path, path)
    with pytest.raises(InputError, match=r"data_batch_1.bin in .* must hold record 00003, got only 3"):
        source.open_image(tmp_path, "data_batch_1/00003")
    write_records(tmp_path / "data_batch_2.bin", [[1], [10]], 0)
    with pytest.raises(InputError, match=r"label must lie in 0..9, got 10 in record 1 of data_batch_2.bin"):
        source.scan(tmp_path)
    for content in (b"", b"\0" * 3074):
        (tmp_path / "data_batch_2.bin").write_bytes(content)
        with pytest.raises(
            InputError, match=r"data_batch_2.bin must be whole records of 3,073 bytes, got [03],?\d* byt"
        ):
            source.scan(tmp_path)
    (tmp_path / "data_batch_2.bin").unlink()
    with pytest.raises(InputError, match=r"CIFAR-10 needs the file data_batch_2.bin"):
        source.scan(tmp_path)
    (tmp_path / "batches.meta.txt").write_text("cat\ndog\ncat\n")
    with pytest.raises(InputError, match=r"batches.meta.txt must name 10 classes, one a line, got 2"):
        source.scan(tmp_path)
    (tmp_path / "batches.meta.txt").unlink()
    with pytest.raises(InputError, match=r"CIFAR-10 needs the file batches.meta.txt"):
        source.scan(tmp_path)
    write_cifar100(tmp_path)
    write_records(tmp_path / "test.bin", [[20, 5]], 0)
    assert len(SOURCES["cifar100"].scan(tmp_path)) == 4
    with pytest.raises(InputError, match=r"label must lie in 0..19, got 20"):
        SOURCES["cifar100-coarse"].scan(tmp_path)


def test_a_file_that_is_a_link_out_of_the_folder_is_not_opened(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "data")
    (tmp_path / "data" / "test_batch.bin").rename(tmp_path / "test_batch.bin")
    (tmp_path / "data" / "test_batch.bin").symlink_to(tmp_path / "test_batch.bin")
    with pytest.raises(InputError, match="must stay inside"):
        SOURCES["cifar10"].scan(tmp_path / "data")


# FEMNIST


def leaf(**users: Sequence[int]) -> dict[str, Any]:
    """What LEAF writes: a writer's image number i has grey 10 * label + i everywhere, and white in its first pixel."""
    data = {
        user: {"x": [[1.0] + [(10 * y % 200 + i) / 255] * 783 for i, y in enumerate(labels)], "y": list(labels)}
        for user, labels in users.items()
    }
    return {"users": list(users), "num_samples": [len(own) for own in users.values()], "user_data": data}


def write_json(file: Path, content: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("below", ["", "data"])
def test_femnist_joins_what_leaf_split(tmp_path: Path, below: str) -> None:
    base = tmp_path / below
    train = leaf(f0001_41=[0, 61], f0000_14=[10])
    train["user_data"]["f0009_01"] = {"x": [], "y": []}  # LEAF leaves writers it removed in the data, not in the list
    write_json(base / "train" / "all_data_0_niid_0_keep_0_train_9.json", train)
    write_json(base / "test" / "all_data_0_niid_0_keep_0_test_9.json", leaf(f0001_41=[35, 36], f0000_14=[]))
    write_json(base / "all_data" / "all_data_0.json", leaf(f0001_41=[1]))  # an earlier step, of which this is a sample
    source = SOURCES["femnist"]
    table = source.scan(tmp_path)
    stem = "all_data_0_niid_0_keep_0"
    assert table.paths == (
        f"{stem}_test_9/f0001_41/0", f"{stem}_test_9/f0001_41/1",
        f"{stem}_train_9/f0001_41/0", f"{stem}_train_9/f0001_41/1", f"{stem}_train_9/f0000_14/0",
    )  # fmt: skip
    assert [table.class_names[label] for label in table.labels] == ["Z", "a", "0", "z", "A"]
    assert len(table.class_names) == 62
    assert table.user_names == ("f0000_14", "f0001_41")
    assert table.users is not None
    assert table.users.tolist() == [1, 1, 1, 1, 0]
    assert table.official_test is None
    assert source.problems(table) == []
    image = pixels("femnist", tmp_path, f"{stem}_train_9/f0001_41/1")
    assert image.shape == (28, 28, 3)
    assert image[0, 0].tolist() == [255, 255, 255]
    assert image[27, 27].tolist() == [11, 11, 11]
    for path in (f"{stem}_train_9/f0001_41/2", f"{stem}_train_9/f0001_41/-1", f"{stem}_train_9/f0001_41/x",
                 f"{stem}_train_9/nobody/0", "other/f0001_41/0", "", "../x/f0001_41/0"):  # fmt: skip
        with pytest.raises(InputError, match=r"must name a file, a writer and an image|must stay inside"):
            source.open_image(tmp_path, path)


def test_femnist_reads_all_data_and_notices_changes(tmp_path: Path) -> None:
    for i in (0, 1):
        write_json(tmp_path / "all_data" / f"all_data_{i}.json", leaf(**{f"w{i}": [i, 2]}))
    before = SOURCES["femnist"].scan(tmp_path)
    assert before.paths == ("all_data_0/w0/0", "all_data_0/w0/1", "all_data_1/w1/0", "all_data_1/w1/1")
    write_json(tmp_path / "all_data" / "all_data_1.json", leaf(w1=[1, 2, 3]))
    assert len(SOURCES["femnist"].scan(tmp_path)) == 5
    assert SOURCES["femnist"].scan(tmp_path).digest != before.digest


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda d: d["num_samples"].__setitem__(0, 3), "as many x and y as num_samples says, got 2 x, 2 y and num_sam"),
        (lambda d: d["user_data"]["a"]["y"].pop(), "as many x and y as num_samples says, got 2 x, 1 y"),
        (lambda d: d["num_samples"].pop(), "hold users, num_samples and user_data"),
        (lambda d: d.pop("users"), "hold users, num_samples and user_data"),
        (lambda d: d["user_data"].pop("a"), "hold users, num_samples and user_data"),
        (lambda d: d["users"].__setitem__(0, ["a"]), "hold users, num_samples and user_data"),
        (lambda d: (d["users"].append("a"), d["num_samples"].append(2)), "name every user once"),
        (lambda d: d["user_data"]["a"].update(x="ab"), "give x and y as lists"),
        (lambda d: d["user_data"]["a"]["x"][0].pop(), "every image as 784 numbers"),
        (lambda d: [image.pop() for image in d["user_data"]["a"]["x"]], "every image as 784 numbers"),
        (lambda d: d["user_data"]["a"]["x"][1].__setitem__(5, "0.5"), "every image as 784 numbers"),
        (lambda d: d["user_data"]["a"]["x"][1].__setitem__(5, 1.01), r"pixels from 0 to 1, got .*1.01"),
        (lambda d: d["user_data"]["a"]["x"][1].__setitem__(5, -0.01), "pixels from 0 to 1"),
        (lambda d: d["user_data"]["a"]["y"].__setitem__(0, 62), "labels from 0 to 61"),
        (lambda d: d["user_data"]["a"]["y"].__setitem__(0, -1), "labels from 0 to 61"),
        (lambda d: d["user_data"]["a"]["y"].__setitem__(0, 1.5), "labels from 0 to 61"),
        (lambda d: d["user_data"]["a"]["y"].__setitem__(0, 10**18), "labels from 0 to 61"),
    ],
)  # fmt: skip
def test_femnist_refuses_damaged_files(tmp_path: Path, damage: Callable[[Any], object], sentence: str) -> None:
    content = leaf(a=[1, 2])
    damage(content)
    write_json(tmp_path / "all_data" / "all_data_0.json", content)
    with pytest.raises(InputError, match=rf"must .*{sentence}.*all_data_0.json; run LEAF's preprocess.sh again"):
        SOURCES["femnist"].scan(tmp_path)


def test_femnist_refuses_what_leaf_does_not_write(tmp_path: Path) -> None:
    scan = SOURCES["femnist"].scan
    (tmp_path / "train").mkdir()
    with pytest.raises(InputError, match="FEMNIST needs json files in train"):
        scan(tmp_path)
    write_json(tmp_path / "train" / "a.json", leaf(w=[1]))
    with pytest.raises(InputError, match="FEMNIST needs json files in test"):
        scan(tmp_path)
    write_json(tmp_path / "test" / "a.json", leaf(w=[1]))
    with pytest.raises(InputError, match=r"different names, got a.json twice"):
        scan(tmp_path)
    (tmp_path / "test" / "a.json").rename(tmp_path / "test" / "b.json")
    assert len(scan(tmp_path)) == 2
    for user in ("../../x", "a/b", ""):
        write_json(tmp_path / "test" / "b.json", leaf(**{user: [1]}))
        with pytest.raises(InputError, match="name every user once, without a slash"):
            scan(tmp_path)
    for user in ("..", "a\\b", "a\nb"):
        write_json(tmp_path / "test" / "b.json", leaf(**{user: [1]}))
        with pytest.raises(InputError, match="A path must be relative"):
            scan(tmp_path)
    write_json(tmp_path / "test" / "b.json", leaf(**{"\ud800": [1]}))
    with pytest.raises(InputError, match="must hold Unicode text"):
        scan(tmp_path)
    damaged = [("{", "must be JSON"), ("[" * 100_000, "nested at most"), ("[NaN]", "NaN is no JSON number"),
               ('{"users": [], "users": []}', "the key 'users' occurs twice"), ("[1e999]", "finite"),
               (f"[{10**30}]", "64 bits"), ("\ufeff{}", "must be JSON")]  # fmt: skip
    for content, sentence in damaged:
        (tmp_path / "test" / "b.json").write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=sentence):
            scan(tmp_path)
    for content in ("[1]", '"text"', "null"):
        (tmp_path / "test" / "b.json").write_text(content)
        with pytest.raises(InputError, match="hold users, num_samples and user_data"):
            scan(tmp_path)


# Tables


def write_table(file: Path, columns: dict[str, Any], row_groups: int = 1000) -> Path:
    table = pa.table(columns)
    if file.suffix == ".csv":
        pyarrow.csv.write_csv(table, file)
    else:
        pyarrow.parquet.write_table(table, file, row_group_size=row_groups)
    return file


ROWS: dict[str, Any] = {
    "path": ["a/1.png", "Größe/画, 2.png", 'b/"3".png', "b/4.png"],
    "class": [10, 9, 10, 2],
    "domain": ["été", "art", "art", "été"],
    "user": ["u2", "u10", "u2", "u1"],
    "group": ["g1", "g1", "g2", "g3"],
    "split": ["train", "test", "", "train"],
}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_file_becomes_a_table(tmp_path: Path, suffix: str) -> None:
    table = read_table(write_table(tmp_path / f"list{suffix}", ROWS | {"extra": [1.5, 2.5, 3.5, 4.5]}))
    assert table.paths == tuple(ROWS["path"])
    assert table.class_names == ("2", "9", "10")
    assert table.labels.tolist() == [2, 1, 2, 0]
    assert table.domain_names == ("art", "été")
    assert table.domains.tolist() == [1, 0, 0, 1]
    assert table.user_names == ("u1", "u10", "u2")
    assert table.users is not None
    assert table.users.tolist() == [2, 1, 2, 0]
    assert table.groups == ("g1", "g1", "g2", "g3")
    assert table.official_test is not None
    assert table.official_test.tolist() == [False, True, False, False]


def test_the_digest_is_of_the_content_and_not_of_the_file(tmp_path: Path) -> None:
    digest = read_table(write_table(tmp_path / "a.csv", ROWS)).digest
    texts = {name: [str(value) for value in values] for name, values in ROWS.items()}
    same: list[dict[str, Any]] = [
        ROWS,
        texts,
        {"extra": [1, 2, 3, 4]} | dict(reversed(ROWS.items())),
        {{"class": "Label", "user": " user_id "}.get(name, name): values for name, values in ROWS.items()},
        {name: pa.array(values).dictionary_encode() for name, values in texts.items()},
        {name: pa.array(values, pa.large_string()) for name, values in texts.items()},
        texts | {"split": ["train", "test", None, "train"]},
    ]
    for i, columns in enumerate(same):
        assert read_table(write_table(tmp_path / f"{i}.parquet", columns, row_groups=1 + i % 3)).digest == digest
    others = [texts | {name: ["test", *values[1:]]} for name, values in texts.items()]
    others += [
        {key: texts[key] for key in texts if key != left_out} for left_out in ("domain", "user", "group", "split")
    ]
    others += [texts | {"path": [path.removesuffix(".png") for path in texts["path"]]}]
    found = {read_table(write_table(tmp_path / "b.csv", columns)).digest for columns in others}
    assert len(found) == len(others)
    assert digest not in found


def test_a_csv_as_people_write_it(tmp_path: Path) -> None:
    file = tmp_path / "people's list.csv"
    file.write_bytes('\ufeffpath, Label ,note\r\n"a, b.png",007,NA\r\nc.png,NA,\r\n'.encode())
    table = read_table(file)
    assert table.paths == ("a, b.png", "c.png")
    assert table.class_names == ("007", "NA")
    assert table.domain_names == ("people's list",)
    assert table.domains.tolist() == [0, 0]
    assert table.groups is None
    assert table.users is None
    assert table.official_test is None
    file.write_text("image,class,split\na.png,1,train\nb.png,2,\n")
    assert read_table(file).official_test is None


def test_names_are_sorted_as_text_or_as_numbers() -> None:
    assert in_order(["10", "9", "-1", "009"]) == ["-1", "009", "9", "10"]
    assert in_order(["10", "9", "x"]) == ["10", "9", "x"]
    assert in_order(["１", "0"]) == ["0", "１"]
    assert in_order([]) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must be a whole csv or parquet file"),
        ("path,class\n", "at least one row, got none"),
        ("path,klass\na,b\n", "must have a column class or label, got 'path', 'klass'"),
        ("path;class\na;b\n", "must have a column path or file or filename or image, got 'path;class'"),
        ("path,class,label\na,b,c\n", "one column for the class, got 'class', 'label'"),
        ("path,path,class\na,b,c\n", "one column for the path, got 'path', 'path'"),
        ("path,class\na,b\nc,\n", "value in the column 'class', got none in row 2"),
        ("path,class\na,b\n,c\n", "value in the column 'path', got none in row 2"),
        ("path,class,user\na,b,\n", "value in the column 'user', got none in row 1"),
        ("path,class\na,b\nc,d,e\n", "whole csv or parquet file"),
        ("path,class\na,b\na,c\n", "is not a valid table: paths must be unique, got 'a' twice"),
        ("path,class,split\na,b,train\nc,d,val\n", "train, test or empty, got 'val' in row 2"),
    ],
)
def test_wrong_tables_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_table(tmp_path / "list.csv")


def test_wrong_files_and_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must exist, but it does not; check the path"):
        read_table(tmp_path / "nowhere.csv")
    (tmp_path / "list.txt").write_text("path,class\na,b\n")
    with pytest.raises(InputError, match=r"must be a .csv or a .parquet file"):
        read_table(tmp_path / "list.txt")
    (tmp_path / "list.parquet").write_text("path,class\na,b\n")
    with pytest.raises(InputError, match="must be a whole csv or parquet file"):
        read_table(tmp_path / "list.parquet")
    (tmp_path / "latin.csv").write_bytes("path,class\né.png,b\n".encode("latin-1"))
    with pytest.raises(InputError, match="must be text in UTF-8"):
        read_table(tmp_path / "latin.csv")
    file = write_table(tmp_path / "list.parquet", {"path": ["a", "b"], "class": [1.0, 2.0]})
    with pytest.raises(InputError, match="'class' must hold text or whole numbers, got double"):
        read_table(file)
    write_table(file, {"path": ["a", "b"], "class": ["x", None]})
    with pytest.raises(InputError, match="'class', got none in row 2"):
        read_table(file)
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], "<i4")), pa.py_buffer(b"\xff")])
    write_table(file, {"path": bad, "class": ["x"]})
    with pytest.raises(InputError, match="must be text in UTF-8"):
        read_table(file)
    write_table(file, {"path": ["a"], "class": ["x"]})
    with pytest.raises(InputError, match="must be in a folder, got"):
        read_table(file, tmp_path / "nowhere")
    assert read_table(file, tmp_path).paths == ("a",)


@pytest.mark.parametrize("path", [path for path in HOSTILE if path])
def test_hostile_paths_in_a_table_are_refused(tmp_path: Path, path: str) -> None:
    file = write_table(tmp_path / "list.parquet", {"path": ["a.png", path], "class": ["x", "y"]})
    with pytest.raises(InputError, match=r"relative to the data folder.* in row 2 of .*list.parquet;"):
        read_table(file)
    if "\n" not in path:
        with pytest.raises(InputError, match=r"relative to the data folder.* in row 2 of .*list.csv;"):
            read_table(write_table(tmp_path / "list.csv", {"path": ["a.png", path], "class": ["x", "y"]}))


# All sources


def test_sources_are_light_and_importable_by_name() -> None:
    heavy = "('torch', 'matplotlib', 'sklearn', 'mlxtend', 'pyarrow', 'fedbasis')"
    code = f"import sys, pflbed.sources; sys.exit(', '.join(name for name in {heavy} if name in sys.modules) or None)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(SOURCES) == ["pacs", "office-home", "gld23k", "cifar10", "cifar100", "cifar100-coarse", "femnist",
                             "arrays", "folder"]  # fmt: skip
    for name, source in SOURCES.items():
        assert source.name == name
        module = importlib.import_module(source.open_image.__module__)
        assert getattr(module, getattr(source.open_image, "__qualname__", "")) is source.open_image
