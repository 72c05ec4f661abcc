"""What travels to another machine: arrays that hold everything and need no file, and that no task can change."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbasis.engines.ray.transfer import ObjectCache, Placeholder, extract, from_arrays, insert, to_arrays
from fedbasis.engines.simulation import ClientTask
from fedbasis.methods.base import Adaptation
from fedbasis.networks.inputs import Examples, examples_of
from fedbasis.serving.evaluation import ServeTask
from pflbed import Client, Images
from shapes import shapes_examples


def read_only(arrays: Any) -> Any:
    """As a store shows them."""
    for array in [arrays] if isinstance(arrays, np.ndarray) else arrays[:2]:
        array.setflags(write=False)
    return arrays


def arrived(item: Any) -> Any:
    light, objects = extract(item)
    return insert(light, [from_arrays(read_only(to_arrays(one))) for one in objects])


@pytest.fixture
def mapped(tmp_path: Path) -> np.memmap[Any, np.dtype[np.uint8]]:
    pixels = np.memmap(tmp_path / "pixels", dtype=np.uint8, mode="w+", shape=(30, 4, 4, 3))
    pixels[:] = np.random.default_rng(0).integers(0, 256, pixels.shape)
    pixels.flush()
    return np.memmap(tmp_path / "pixels", dtype=np.uint8, mode="r", shape=(30, 4, 4, 3))


def images(source: Any, first: int, last: int) -> Images:
    return Images(source, np.arange(first, last), np.arange(first, last) % 3)


def client(source: Any) -> Client:
    weights = np.ones(10)
    train, val, test = images(source, 0, 10), images(source, 10, 20), images(source, 20, 30)
    return Client("a/n00", "a", train, val, test, np.ones(3) / 3, weights, weights, {"S": np.arange(0, 10, 2)})


def test_a_new_client_arrives_with_its_pixels(mapped: Any) -> None:
    item = ServeTask(client(mapped), "ft", "S", Adaptation(epochs=1, rate=0.1), 7)
    light, objects = extract(item)
    assert (light.client.train, light.client.val, light.client.test) == (Placeholder(0), Placeholder(1), Placeholder(2))
    assert not any(isinstance(array, np.memmap) for one in objects for array in to_arrays(one)[:2])
    got = arrived(item)
    for name in ("train", "val", "test"):
        there, here = getattr(got.client, name), getattr(item.client, name)
        assert np.array_equal(there.pixels, here.pixels)
        assert np.array_equal(there.labels, here.labels)
    assert np.array_equal(got.client.sized("S").pixels, item.client.sized("S").pixels)
    examples_of(got.client.train).labels.add_(1)  # no warning, and nothing else changes
    examples_of(got.client.train).pixels.zero_()
    assert got.client.train.pixels.any()
    assert (got.how, got.plan, got.seed) == (item.how, item.plan, item.seed)


@pytest.mark.parametrize("as_map", [True, False])
def test_copies_of_the_same_images_have_the_same_key_and_others_another(mapped: Any, as_map: bool) -> None:
    source = mapped if as_map else np.array(mapped)
    one, again = (
        arrived(ServeTask(client(source), "ft", "S", Adaptation(epochs=1, rate=0.1), 7)).client,
        arrived(client(source)),
    )
    assert one.val.source is not again.val.source
    assert one.val.key == again.val.key
    assert one.sized("S").key == again.sized("S").key
    assert len({one.train.key, one.val.key, one.test.key, one.sized("S").key}) == 4
    keys = [copy.copy(images(source, first, first + 10)).key for first in (0, 10, 20)]  # copied as if pickled
    assert len(set(keys)) == 3
    assert keys[0] == copy.copy(images(source, 0, 10)).key


def test_examples_and_what_a_client_keeps_arrive(tmp_path: Path) -> None:
    kept = {"a": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}, "empty": {}}
    data = shapes_examples(5)
    got = arrived(ClientTask("c", data, 1, 7, kept))
    assert isinstance(got.data, Examples)
    assert torch.equal(got.data.pixels, data.pixels)
    assert torch.equal(got.data.labels, data.labels)
    assert list(got.client_state) == ["a", "empty"]
    assert torch.equal(got.client_state["a"]["w"], kept["a"]["w"])
    assert got.client_state["a"]["n"].shape == ()
    got.client_state["a"]["w"].zero_()
    got.data.pixels.zero_()
    assert kept["a"]["w"].any()
    assert data.pixels.any()


def test_what_is_light_stays_as_it_is() -> None:
    @dataclass(frozen=True)
    class Light:
        name: str
        numbers: dict[str, Any]

    for item in (Light("a", {"x": 1}), Light("b", {}), "text", {"rows": np.arange(3)}, None):
        light, objects = extract(item)
        assert light is item
        assert not objects


def test_the_cache_stores_images_once_and_drops_the_oldest(mapped: Any) -> None:
    put: list[Any] = []

    def count(arrays: Any) -> int:
        put.append(arrays)
        return len(put)

    a, b, c = (images(mapped, first, first + 10) for first in (0, 10, 20))  # 480 bytes each
    cache = ObjectCache(count, limit=1000)
    assert [cache.sent(one) for one in (a, b, a, images(mapped, 10, 20), a)] == [1, 2, 1, 2, 1]
    assert [cache.sent(one) for one in (c, a, b)] == [3, 1, 4]  # b was unused for longest
    state = {"g": {"w": torch.ones(2)}}
    assert [cache.sent(state), cache.sent(state)] == [5, 6]
    tiny = ObjectCache(count, limit=1)
    assert tiny.sent(a) == 7  # what is larger than the cache travels all the same
