"""Clients in one call: Digits-4 as the long way gives it, and arrays of any shape."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pflbed
from pflbed import Clients, InputError, Spec
from pflbed.table import limited_rows


def pictures(count: int, *shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def same(one: Clients, other: Clients) -> bool:
    a, b = one.benchmark, other.benchmark
    return (
        a.table.digest == b.table.digest
        and a.spec == b.spec
        and a.client_ids == b.client_ids
        and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("split", "client", "smallest"))
        and np.array_equal(one.pixels, other.pixels)
    )


@pytest.mark.parametrize("given", [{}, {"partition": "iid", "sizes": {"S": 0.25, "L": 1.0}}])
def test_digits4_is_the_long_way_bit_for_bit(given: dict[str, Any]) -> None:
    dataset = pflbed.find("digits4")
    spec = Spec(clients_per_domain=3, new_clients_per_domain=2, alpha=0.5, seed=4, **given)
    long = pflbed.clients(pflbed.build(dataset.table, spec), dataset.decode(28).images)
    assert same(pflbed.digits4(3, 2, alpha=0.5, seed=4, **given), long)


def test_digits4_has_the_pixels_that_decoding_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed at once or decoded image by image through the cache: the same pixels in the same order."""
    dataset = pflbed.find("digits4")
    rows = np.arange(0, len(dataset.table), 50)[::-1]
    part = dataset.table.take(rows)
    direct = dataset.decode(28, part)
    monkeypatch.setenv("FEDBASIS_CACHE", str(tmp_path))
    decoded = pflbed.decode(Path(), part, 28, open_image=dataset.source.open_image, workers=1)
    assert direct.table.digest == decoded.table.digest == part.digest
    assert np.array_equal(direct.images, decoded.images)
    assert np.array_equal(direct.images, dataset.decode(28).images[rows])
    assert dataset.decode(14, part, channels=1).images.shape == (len(part), 14, 14, 1)


def test_a_limit_takes_so_many_of_every_class_of_every_domain() -> None:
    clients = pflbed.digits4(2, 1, limit=12, seed=3)
    table = clients.benchmark.table
    assert np.bincount(table.labels + 10 * table.domains).tolist() == [12] * 40
    whole = pflbed.find("digits4")
    rows = limited_rows(whole.table, 12, 3)
    assert table.digest == whole.table.take(rows).digest
    assert np.array_equal(clients.pixels, whole.decode(28).images[rows])
    with pytest.raises(InputError, match="limit must be a whole number of at least 1"):
        pflbed.digits4(limit=0)


def test_no_new_clients_give_their_share_to_the_others() -> None:
    clients = pflbed.digits4(2, 0, limit=12)
    assert len(clients.new) == 0
    assert clients.benchmark.spec.split == (80, 0, 5, 15)


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 1), (9, 7, 3), (9, 7, 5)])
def test_arrays_of_any_shape(shape: tuple[int, ...]) -> None:
    images = pictures(120, *shape)
    clients = pflbed.from_arrays(images, np.arange(120) % 3, clients=3, new=2, alpha=1.0)
    assert clients.image_shape == (9, 7, shape[2] if len(shape) == 3 else 1)
    assert clients.classes == ("0", "1", "2")
    assert clients.benchmark.table.domain_names == ("data",)
    for client in clients.values():
        for part in (client.train, client.val, client.test):
            assert np.array_equal(part.pixels, images[part.rows].reshape(-1, *clients.image_shape))
            assert np.array_equal(part.labels, part.rows % 3)
    assert np.shares_memory(clients.pixels, images)


def test_labels_may_be_names_and_classes_give_their_order() -> None:
    images, names = pictures(80, 4, 4, 3), ["dog", "cat"] * 40
    assert pflbed.from_arrays(images, names, clients=2, new=1).classes == ("cat", "dog")
    ordered = pflbed.from_arrays(images, names, classes=["dog", "cat", "owl"], clients=2, new=1)
    numbered = pflbed.from_arrays(images, np.arange(80) % 2, classes=["dog", "cat", "owl"], clients=2, new=1)
    assert ordered.classes == ("dog", "cat", "owl")
    assert same(ordered, numbered)
    assert pflbed.from_arrays(images, np.arange(80) % 2 + 9, clients=2, new=1).classes == ("9", "10")


def test_domains_and_users() -> None:
    images, labels = pictures(200, 4, 4, 3), np.arange(200) // 2 % 2
    clients = pflbed.from_arrays(images, labels, domains=["a", "b"] * 100, clients=2, new=1)
    assert list(clients) == ["a/p00", "a/p01", "a/n00", "b/p00", "b/p01", "b/n00"]
    natural = pflbed.from_arrays(images, labels, users=[f"u{i // 20}" for i in range(200)], clients=6, new=4)
    assert natural.benchmark.spec.natural
    assert len(natural.participating) == 6
    for name, client in natural.items():
        assert {row // 20 for row in client.train.rows.tolist()} == {int(name.removeprefix("data/u"))}


def test_the_digest_is_that_of_the_content() -> None:
    images, labels = pictures(80, 4, 4, 3), np.arange(80) % 2

    def digest(pixels: NDArray[np.uint8] = images, **more: Any) -> str:
        return pflbed.from_arrays(pixels, labels, **more, clients=2, new=1).benchmark.table.digest

    other = images.copy()
    other[7, 0, 0, 0] ^= 1
    assert digest() == digest(images.copy())
    assert len({digest(), digest(other), digest(domains=["x"] * 80), digest(classes=["a", "b"])}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((80, 4, 4, 3))}, "images must be uint8"),
        ({"images": np.zeros((80, 4), dtype=np.uint8)}, "images must be uint8"),
        ({"labels": np.zeros(79, dtype=int)}, "one label per image"),
        ({"labels": np.zeros(80)}, "labels must be whole numbers or names"),
        ({"classes": ["a"]}, "indices into the 1 classes"),
        ({"labels": ["cat"] * 40 + ["dgo"] * 40, "classes": ["cat", "dog"]}, r"got .*dgo.* \(did you mean 'dog'\?\)"),
        ({"domains": ["a"] * 79}, "one of domains per image"),
        ({"users": ["a"] * 81}, "one of users per image"),
        ({"alhpa": 0.1}, r"got 'alhpa' \(did you mean 'alpha'\?\)"),
    ],
)
def test_wrong_arrays_are_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"images": pictures(80, 4, 4, 3), "labels": np.arange(80) % 2, "clients": 2, "new": 1}
    with pytest.raises(InputError, match=message):
        pflbed.from_arrays(**(given | change))
