"""A dataset that is an array: read as it is, split like images, and checked before it is used."""

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pflbed
from pflbed import InputError, Spec
from pflbed.dataset import find
from pflbed.normalization import Normalization
from pflbed.sources.arrays import write_arrays

CHANNELS = 5


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBASIS_CACHE", str(tmp_path / "cache"))


def maps(count: int = 160, channels: int = CHANNELS, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 2, channels), dtype=np.uint8)


def by_hand(folder: Path, images: NDArray[np.uint8], **more: Any) -> Path:
    """What a researcher writes: np.save and a csv file of two domains and two classes."""
    folder.mkdir(parents=True)
    np.save(folder / "images.npy", images)
    with (folder / "images.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "class", "domain", *more])
        for i in range(len(images)):
            own = [values[i] for values in more.values()]
            writer.writerow([f"x{i}", ("cat", "dog")[i // 2 % 2], ("art", "photo")[i % 2], *own])
    return folder


def test_an_array_and_a_csv_file_are_a_dataset(tmp_path: Path) -> None:
    images = maps()
    dataset = find(by_hand(tmp_path / "a", images))
    assert dataset.source.name == "arrays"
    assert (dataset.table.class_names, dataset.table.domain_names) == (("cat", "dog"), ("art", "photo"))
    assert dataset.table.labels.tolist() == [i // 2 % 2 for i in range(160)]
    decoded = dataset.decode((3, 2), channels=CHANNELS)
    assert isinstance(decoded.images, np.memmap)
    assert np.array_equal(decoded.images, images)
    assert dataset.card.normalization is None
    assert find(tmp_path / "a", "arrays").table.digest == dataset.table.digest


def test_gray_and_rgb_arrays_can_be_scaled_and_others_cannot(tmp_path: Path) -> None:
    rgb = find(by_hand(tmp_path / "rgb", maps(channels=3)))
    assert rgb.decode(8).images.shape == (160, 8, 8, 3)
    gray = find(by_hand(tmp_path / "gray", maps(channels=1))).decode((3, 2))
    assert np.array_equal(gray.images, np.repeat(maps(channels=1), 3, axis=3))
    with pytest.raises(InputError, match=r"have 5 channels; use them as they are: resolution \[3, 2\], channels 5"):
        find(by_hand(tmp_path / "five", maps())).decode(28)


def test_the_parts_follow_the_bytes_or_the_column_content(tmp_path: Path) -> None:
    images = maps()
    images[7] = images[5]  # a copy in the same domain
    dataset, findings, _ = find(by_hand(tmp_path / "a", images)).checked()
    assert findings.duplicates == [("x5", "x7")]
    assert dataset.table.groups is not None
    assert dataset.table.groups[5] == dataset.table.groups[7]
    tuning = set(dataset.part("tuning").table.paths)
    for i, image in enumerate(images):
        head = hashlib.sha256(b"2 3 " + image.tobytes()).digest()[:8]
        assert (f"x{i}" in tuning) == (int.from_bytes(head, "big") % 4 == 0)
    numbers = [f"{i:016x}" for i in range(160)]
    given = find(by_hand(tmp_path / "b", images, content=numbers)).checked()[0]
    chosen = set(given.part("tuning").table.paths)
    assert chosen == {f"x{i}" for i in range(0, 160, 4)}
    rest = given.part("tables")
    assert not chosen & set(rest.table.paths)
    rows = [int(path[1:]) for path in rest.table.paths]
    assert np.array_equal(rest.decode((3, 2), channels=CHANNELS).images, images[rows])


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    images, by = maps(), Normalization((0.1, 0.2, 0.3, 0.4, 0.5), (1.0, 2.0, 3.0, 4.0, 0.5))
    before = find(by_hand(tmp_path / "a", images)).checked()[0].table
    write_arrays(tmp_path / "b", images, before, by, {"network": "x"})
    after = find(tmp_path / "b")
    for name in ("paths", "class_names", "domain_names", "groups", "users"):
        assert getattr(after.table, name) == getattr(before, name)
    assert after.table.contents is not None
    assert before.contents is not None
    assert np.array_equal(after.table.contents, before.contents)
    assert after.card.normalization == by
    assert after.card.about == {"network": "x"}
    with pytest.raises(InputError, match="must not exist yet"):
        write_arrays(tmp_path / "b", images, before)
    with pytest.raises(InputError, match="one row per row of the table, got uint8"):
        write_arrays(tmp_path / "c", images[1:], before)
    assert not (tmp_path / "c").exists()


def test_a_benchmark_of_arrays_is_built_and_loaded_with_its_normalization(tmp_path: Path) -> None:
    images, by = maps(), Normalization((0.5,) * CHANNELS, (0.2,) * CHANNELS)
    table = find(by_hand(tmp_path / "a", images)).table
    write_arrays(tmp_path / "b", images, table, by)
    dataset = find(tmp_path / "b").checked()[0]
    benchmark = pflbed.build(dataset.table, Spec(clients_per_domain=2, new_clients_per_domain=1))
    pflbed.write(benchmark, dataset, tmp_path / "bench")
    clients = pflbed.load(tmp_path / "bench", resolution=(3, 2), channels=CHANNELS)
    assert clients.normalization == by
    assert clients.image_shape == (3, 2, CHANNELS)
    client = clients["art/n00"]
    rows = benchmark.rows("art/n00")
    assert np.array_equal(client.train.pixels, images[rows])
    np.save(tmp_path / "b" / "images.npy", maps(seed=1))
    with pytest.raises(InputError, match=r"must be the one of its arrays.json"):
        pflbed.load(tmp_path / "bench", resolution=(3, 2), channels=CHANNELS)


def test_the_digest_covers_the_array(tmp_path: Path) -> None:
    folder = by_hand(tmp_path / "a", maps())
    before = find(folder).table.digest
    changed = maps()
    changed[0, 0, 0, 0] ^= 1
    np.save(folder / "images.npy", changed)
    assert find(folder).table.digest != before


def damaged(folder: Path, what: str) -> None:
    """Damage one thing of a good folder."""
    images = maps()
    arrays: dict[str, Any] = {
        "float": images.astype(np.float32), "flat": images[:, 0], "short": images[1:], "none": images[:0],
        "objects": np.array([{}], dtype=object),
    }  # fmt: skip
    if what in arrays:
        np.save(folder / "images.npy", arrays[what], allow_pickle=True)
    elif what == "cut":
        content = (folder / "images.npy").read_bytes()
        (folder / "images.npy").write_bytes(content[:-1])
    elif what == "no table":
        (folder / "images.csv").unlink()
    else:
        cards = {
            "other format": {"format": 2}, "other key": {"format": 1, "scale": 1}, "few": {"format": 1, "mean": [1.0]},
            "channels": {"format": 1, "mean": [0.5], "std": [1.0]}, "text": {"format": 1, "about": "x"},
            "zero": {"format": 1, "mean": [0.5] * CHANNELS, "std": [0.0] * CHANNELS},
        }  # fmt: skip
        (folder / "arrays.json").write_text(json.dumps(cards[what]))


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("float", "must hold bytes"), ("flat", "must hold bytes"), ("short", "a row for each of the 159 rows"),
        ("none", "must hold images"), ("objects", "must hold bytes"), ("cut", "as long as its header says"),
        ("no table", "must hold one of images.parquet and images.csv, got 0"), ("other format", "must have format 1"),
        ("other key", "only the keys"), ("few", "std must be a list of finite numbers"),
        ("channels", "for each of 5 channels, got 1"), ("text", "about an object"), ("zero", "std must be positive"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(what: str, sentence: str, tmp_path: Path) -> None:
    folder = by_hand(tmp_path / "a", maps())
    damaged(folder, what)
    with pytest.raises(InputError, match=sentence):
        find(folder, "arrays")


def test_a_normalization_has_a_mean_and_a_std_for_every_channel() -> None:
    assert Normalization([0, 1], [1, 2]).mean == (0.0, 1.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one number per channel, got 2 and 1"):
        Normalization((0.0, 1.0), (1.0,))
    with pytest.raises(InputError, match="mean must be a list of finite numbers"):
        Normalization((float("nan"),), (1.0,))


def test_a_content_must_be_a_number(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="16 hexadecimal digits, got '7' in row 1"):
        find(by_hand(tmp_path / "a", maps(), content=["7"] * 160))
    with pytest.raises(InputError, match=r"needs the file images.npy"):
        find(tmp_path, "arrays")
