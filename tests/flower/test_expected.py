"""What a node sends must be what a rehearsal sent; everything else is refused by name."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("flwr")

from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.flower.expected import Expected, read_block, rehearsed
from fedbasis.flower.payload import pack_state
from fedbasis.networks.batches import Recipe
from fedbasis.tensors.params import State
from helpers.flower_methods import FIRST, clients, make, same
from pflbed.errors import InputError


class TestExpected:
    @pytest.mark.parametrize("variant", sorted(FIRST))
    def test_a_rehearsal_knows_what_every_method_sends(self, variant: str, recipe: Recipe) -> None:
        method, data = make(variant, recipe, rounds=2), clients(2)
        engine, server, first = Simulation(InProcess(method), data, seed=7), method.init(7), next(iter(data))
        for number in range(2):
            expected = rehearsed(method, method.broadcast(server, first), 3, number)
            sent = dict(engine.map(server, list(data), number))
            got = expected.update(pack_state(sent[first].tensors), sent[first].numbers)
            assert same(got.tensors, sent[first].tensors)
            server = method.aggregate(server, iter(sent.items()), 7)

    @pytest.fixture
    def expected(self) -> Expected:
        return Expected({("model", "w"): (torch.float32, torch.Size([2, 3]))}, frozenset({"loss", "examples"}), 2**16)

    @pytest.mark.parametrize(
        ("state", "reason"),
        [
            ({"model": {"w": torch.full((2, 3), float("nan"))}}, "not finite numbers"),
            ({"model": {"w": torch.zeros(3, 2)}}, "is float32 (3, 2) instead of float32 (2, 3)"),
            ({"model": {"w": torch.zeros(2, 3).double()}}, "is float64 (2, 3) instead of float32 (2, 3)"),
            ({"model": {}}, "'model/w' is missing"),
            ({"model": {"w": torch.zeros(2, 3), "v": torch.zeros(1)}}, "'model/v' is not expected"),
            ({"model": {"w": torch.zeros(2, 3)}, "x": {"w": torch.zeros(1)}}, "'x/w' is not expected"),
            ({"model": {"w": torch.zeros(2, 3), "v": torch.zeros(2**15)}}, "at most 65536 bytes"),
        ],
    )
    def test_refuses_what_does_not_fit(self, state: State, reason: str, expected: Expected) -> None:
        with pytest.raises(InputError, match=reason.replace("(", r"\(").replace(")", r"\)")):
            expected.update(pack_state(state), {"loss": 1.0, "examples": 3.0})

    @pytest.mark.parametrize(
        "numbers",
        [
            {"loss": 1.0},
            {"loss": 1.0, "examples": 3.0, "more": 1.0},
            {"loss": 1.0, "examples": 0.0},
            {"loss": 1.0, "examples": 2.5},
            {"loss": 1.0, "examples": float("inf")},
            {"loss": 1.0, "examples": float("nan")},
        ],
    )
    def test_refuses_numbers_that_could_weigh_too_much(self, numbers: dict[str, float], expected: Expected) -> None:
        with pytest.raises(InputError):
            expected.update(pack_state({"model": {"w": torch.zeros(2, 3)}}), numbers)

    @pytest.mark.parametrize("shape", [[2**40], [2**62, 2**62], [-2], [9, 9], [{}], "x", [1e300]])
    @pytest.mark.parametrize("size", [64, 10 * 2**30])
    def test_a_header_that_tells_of_more_than_there_is(self, shape: Any, size: int) -> None:
        with pytest.raises(InputError, match="must be whole"):
            read_block(forged(shape, size))


def forged(shape: Any, size: int) -> NDArray[np.uint8]:
    """A block of 64 bytes whose header is in order but for what it tells of its one tensor."""
    told = {"groups": ["model"], "tensors": [["model", "w", "float32", shape, 0]], "size": size, "note": ""}
    header = json.dumps(told).encode()
    head = b"fedbasis" + len(header).to_bytes(8, "little") + header
    return np.frombuffer(bytearray(head + bytes(-len(head) % 64) + bytes(64)), dtype=np.uint8)
