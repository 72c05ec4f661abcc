"""Clients, their views and their images."""

import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import pflbed
from pflbed import Clients, Images, InputError


@pytest.fixture(scope="module")
def clients() -> Clients:
    images = np.arange(120 * 6 * 4, dtype=np.uint32).astype(np.uint8).reshape(120, 6, 4, 1)
    return pflbed.from_arrays(images, np.arange(120) % 3, clients=4, new=2, alpha=1.0)


def test_views_hold_just_their_clients(clients: Clients) -> None:
    assert list(clients.participating) == [f"data/p{i:02d}" for i in range(4)]
    assert list(clients.new) == ["data/n00", "data/n01"]
    assert [*clients.participating, *clients.new] == list(clients)
    assert "data/n00" in clients.new
    assert "data/n00" not in clients.participating
    assert np.array_equal(clients.new["data/n00"].train.rows, clients["data/n00"].train.rows)
    assert clients.new.classes == clients.classes == ("0", "1", "2")
    assert clients.new.image_shape == clients.image_shape == (6, 4, 1)
    with pytest.raises(InputError, match="must be one of the 2 of this view, got 'data/p00'"):
        clients.new["data/p00"]


def test_clients_answer_whether_they_have_a_name(clients: Clients) -> None:
    assert "data/p00" in clients
    assert "data/p99" not in clients


def test_what_clients_and_images_say_of_themselves(clients: Clients) -> None:
    assert repr(clients) == "Clients(4 participating and 2 new clients, 120 images of 6x4x1, 3 classes)"
    assert repr(clients.new) == "ClientView(2 of 6 clients)"
    images = Images(np.zeros((5, 6, 4, 2), dtype=np.uint8), np.arange(3), np.array([0, 1, 1]))
    assert repr(images) == "Images(3 images of 6x4x2, 2 classes)"


def test_images_of_any_channels_travel(clients: Clients) -> None:
    mine = clients["data/n00"].train
    copy = pickle.loads(pickle.dumps(mine))  # noqa: S301
    assert np.array_equal(copy.pixels, mine.pixels)
    assert copy.key == (mine.key, copy.key[1])


@pytest.mark.parametrize(
    "source", [np.zeros((2, 4, 4), np.uint8), np.zeros((2, 4, 4, 3)), np.zeros((2, 4, 4, 0), np.uint8)]
)
def test_wrong_pixels_are_refused(source: NDArray[Any]) -> None:
    with pytest.raises(InputError, match=r"uint8 of shape \[N, H, W, C\]"):
        Images(source, np.arange(2), np.arange(2))
