"""Datasets of other libraries become clients: torch-style rows, Hugging Face rows, images of every kind."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import pflbed
from pflbed import InputError

COUNT = 80


def pixels(count: int = COUNT, shape: tuple[int, ...] = (10, 8, 3)) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


class TorchStyle:
    """What torch calls a map-style dataset."""

    def __init__(self, rows: list[Any], classes: list[str] | None = None) -> None:
        self.rows = rows
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return self.rows[i]


def made(rows: Any, **more: Any) -> pflbed.Clients:
    return pflbed.from_dataset(rows, **{"clients": 2, "new": 1, **more})


def test_every_kind_of_image_gives_the_same_pixels() -> None:
    import torch

    images = pixels()
    kinds = {
        "array": list(images),
        "chw": list(images.transpose(0, 3, 1, 2)),
        "float": list(images.astype(np.float32) / 255),
        "pillow": [Image.fromarray(image) for image in images],
        "tensor": list(torch.from_numpy(images).permute(0, 3, 1, 2)),
        "float tensor": list(torch.from_numpy(images).permute(0, 3, 1, 2) / 255),
    }
    found = {kind: made(TorchStyle([(x, i % 2) for i, x in enumerate(given)])) for kind, given in kinds.items()}
    expected = pflbed.from_arrays(images, np.arange(COUNT) % 2, clients=2, new=1)
    for kind, clients in found.items():
        assert np.array_equal(clients.pixels, images), kind
        assert clients.benchmark.table.digest == expected.benchmark.table.digest
    labels = torch.arange(COUNT) % 2
    assert np.array_equal(made([(images[i], labels[i]) for i in range(COUNT)]).pixels, images)


def test_torch_is_not_imported() -> None:
    import subprocess
    import sys

    code = (
        "import pflbed, numpy as np, sys; pflbed.from_dataset([(np.zeros((4, 4), np.uint8), i % 2) for i in range(80)]"
    )
    code += ", clients=2, new=1); assert 'torch' not in sys.modules and 'datasets' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_third_value_is_the_domain_and_classes_are_named() -> None:
    images = pixels(160)
    rows = [(images[i], i // 2 % 2, "ab"[i % 2]) for i in range(160)]
    clients = made(TorchStyle(rows, classes=["cat", "dog"]))
    assert clients.classes == ("cat", "dog")
    assert list(clients.new) == ["a/n00", "b/n00"]
    pairs = TorchStyle([row[:2] for row in rows])
    by_function = made(pairs, domain=lambda i: "ab"[i % 2], classes=["cat", "dog"])
    by_list = made(pairs, domain=[row[2] for row in rows], classes=["cat", "dog"])
    assert by_function.benchmark.table.digest == by_list.benchmark.table.digest == clients.benchmark.table.digest


def test_sizes_that_differ_need_a_resolution() -> None:
    rows = [(Image.new("RGB", (8 + i % 3, 9)), i % 2) for i in range(COUNT)]
    with pytest.raises(InputError, match="one size, got 9x8 and 9x9; give a resolution"):
        made(rows)
    assert made(rows, resolution=6).image_shape == (6, 6, 3)
    assert made(rows, resolution=(5, 7), channels=1).image_shape == (5, 7, 1)


def test_arrays_are_scaled_as_files_are() -> None:
    images = pixels(shape=(20, 30, 3))
    clients = made([(image, i % 2) for i, image in enumerate(images)], resolution=(9, 8))
    fitted = [pflbed.images.fit(Image.fromarray(image), (9, 8)) for image in images]
    assert np.array_equal(clients.pixels, np.stack(fitted))
    five = made([(image, i % 2) for i, image in enumerate(pixels(shape=(12, 12, 5)))], resolution=6)
    assert five.image_shape == (6, 6, 5)


def test_gray_stays_gray_and_becomes_rgb_beside_rgb() -> None:
    gray = [(Image.new("L", (6, 6), i), i % 2) for i in range(COUNT)]
    assert made(gray).image_shape == (6, 6, 1)
    assert made(gray, channels=3).image_shape == (6, 6, 3)
    mixed = made([*gray[:40], *((Image.new("RGB", (6, 6), (i, 0, 0)), i % 2) for i in range(40))])
    assert mixed.image_shape == (6, 6, 3)
    assert mixed.pixels[7].tolist() == [[[7, 7, 7]] * 6] * 6


def test_a_hugging_face_dataset() -> None:
    datasets = pytest.importorskip("datasets")
    images = pixels(160)
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "kind": datasets.ClassLabel(names=["owl", "cat"]),
            "style": datasets.ClassLabel(names=["photo", "art"]),
            "writer": datasets.Value("string"),
        }
    )
    columns = {
        "img": [Image.fromarray(image) for image in images],
        "kind": [i // 2 % 2 for i in range(160)],
        "style": [i % 2 for i in range(160)],
        "writer": [f"w{i // 16}" for i in range(160)],
    }
    dataset = datasets.Dataset.from_dict(columns, features=features)
    clients = made(dataset, image="img", label="kind", domain="style")
    assert clients.classes == ("owl", "cat")
    assert clients.benchmark.table.domain_names == ("art", "photo")
    assert np.array_equal(clients.pixels, images)
    assert clients["photo/n00"].train.rows.max() % 2 == 0
    natural = made(dataset, image="img", label="kind", user="writer")
    assert natural.benchmark.spec.natural
    assert set(natural) <= {f"data/w{i}" for i in range(10)}
    with pytest.raises(InputError, match=r"must have the column 'imgs' \(did you mean 'img'\?\)"):
        made(dataset, image="imgs")
    with pytest.raises(InputError, match=r"one split, got several \(train\)"):
        made(datasets.DatasetDict({"train": dataset}))


@pytest.mark.parametrize(
    ("row", "given", "message"),
    [
        ((np.full((4, 4, 3), 2.0), 0), {}, "must lie in 0..1"),
        ((np.zeros((4, 4, 3), dtype=np.int64), 0), {}, "uint8 or floats"),
        ((np.zeros(4, dtype=np.uint8), 0), {}, r"must have the shape"),
        ((np.zeros((4, 4), dtype=np.uint8), 0.5), {}, "whole number or a name"),
        (np.zeros((4, 4), dtype=np.uint8), {}, r"A row must be \(image, label\)"),
        ((np.zeros((4, 4), dtype=np.uint8), 0), {"domain": "style"}, "name a column only if rows are dicts"),
        ((np.zeros((4, 4), dtype=np.uint8), 0), {"domain": ["a"]}, "one value per row, got 1 for 80"),
        ((np.zeros((8, 8, 5), dtype=np.uint8), 0), {"channels": 3}, "5 channels cannot become one of 3"),
        ((np.zeros((4, 4), dtype=np.uint8), 0), {"channels": 2}, "channels must be 3"),
    ],
)
def test_wrong_rows_are_refused(row: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        made([row] * COUNT, **given)


def test_what_has_no_length_is_refused() -> None:
    with pytest.raises(InputError, match="has no length"):
        made(iter([]))
    with pytest.raises(InputError, match="at least one row"):
        made([])
