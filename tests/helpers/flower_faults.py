"""The app of a federation whose nodes misbehave when their folder tells them to; Flower carries this file to them.

The server waits before its second round, and the node that works in the round in which others hang, for a file in the
folder that SIGNALS names. The server's clock then jumps to the deadline as soon as that node has answered: no test
waits for a deadline, and none depends on how quick the machine is.
"""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, RecordDict
from flwr.app.message.arraychunk import ArrayChunk

from fedbasis.flower import batching
from fedbasis.flower import client as ours
from fedbasis.flower.expected import read_block
from fedbasis.flower.node import Node
from fedbasis.flower.payload import Payload, pack_state
from fedbasis.flower.payload import to_record as orderly
from fedbasis.flower.server import server_app
from fedbasis.flower.settings import FederatedRun

HERE = Path(__file__).parent
SIGNALS = "FEDBASIS_TEST_SIGNALS"
RESUMED, KILLED = "resumed", "killed"
"""The files that are waited for: the server was started again; a node was killed."""
CLAIM = 10 * 2**30
HANGING = 2
"""The round, counted from 0, in which nodes hang."""
honest = ours.update
told: dict[str, str] = {}
"""What this node was told to do wrong in this round, by experiment; "*" is the whole message."""


def update(node: Node, plan: FederatedRun, payload: Payload) -> Payload:
    faults: dict[str, dict[str, str]] = json.loads((node.state / "faults.json").read_text())
    told.update(faults.get(str(payload.number("round")), {}))
    (node.state / "at-work").write_text(str(payload.number("round")))
    if told.get("*") == "hang":
        time.sleep(6000)
    if payload.number("round") == HANGING:
        wait_for(KILLED)
    done = honest(node, plan, payload)
    return WRONG[told[plan.name]](done, payload) if plan.name in told else done


def wait_for(name: str) -> None:
    while not Path(os.environ[SIGNALS], name).exists():
        time.sleep(0.05)


def nan(done: Payload, asked: Payload) -> Payload:
    state = read_block(done.block)
    state["model"]["fc.bias"][0] = float("nan")
    return replace(done, block=pack_state(state))


def shape(done: Payload, asked: Payload) -> Payload:
    state = read_block(done.block)
    state["model"]["fc.bias"] = torch.zeros(7)
    return replace(done, block=pack_state(state))


def extra(done: Payload, asked: Payload) -> Payload:
    return replace(done, block=pack_state({**read_block(done.block), "images": {"mine": torch.zeros(3)}}))


def missing(done: Payload, asked: Payload) -> Payload:
    state = read_block(done.block)
    del state["model"]["fc.bias"]
    return replace(done, block=pack_state(state))


def stale(done: Payload, asked: Payload) -> Payload:
    return replace(done, words={**done.words, "round": asked.number("round") - 1})


def claim(done: Payload, asked: Payload) -> Payload:
    """A block of 64 bytes whose header tells of ten gigabytes."""
    entry = ["model", "fc.bias", "float32", [CLAIM // 4], 0]
    header = json.dumps({"groups": ["model"], "tensors": [entry], "size": 64, "note": ""}).encode()
    head = b"fedbasis" + len(header).to_bytes(8, "little") + header
    return replace(done, block=np.frombuffer(head + bytes(-len(head) % 64) + bytes(64), dtype=np.uint8))


WRONG = {"nan": nan, "shape": shape, "extra": extra, "missing": missing, "stale": stale, "claim": claim}


def to_record(payloads: Iterable[Payload]) -> RecordDict:
    """A message of some megabytes that grows to ten gigabytes when it is put together."""
    if told.get("*") == "flood":
        piece = ArrayChunk(memoryview(bytes(5 * 2**20)))
        Array.slice_array = lambda array: [(piece.object_id, piece)] * (CLAIM // len(piece.data))
    return orderly(payloads)


class Clock:
    """The clock by which the server keeps deadlines."""

    def __init__(self) -> None:
        self.round, self.answers, self.ahead = -1, 0, 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        if self.round == HANGING and self.answers:
            self.ahead, self.answers = self.ahead + 3600, 0
        time.sleep(seconds)


def to_node(payloads: Iterable[Payload]) -> RecordDict:
    asked = list(payloads)
    clock.round, clock.answers = int(asked[0].number("round")), 0
    if clock.round == 1:
        wait_for(RESUMED)
    return orderly(asked)


def reply(batch: batching.RequestBatcher, identity: str, largest: int) -> Any:
    answer = received(batch, identity, largest)
    clock.answers += answer is not None
    return answer


clock, received = Clock(), batching.RequestBatcher._reply
vars(batching).update(time=clock, to_record=to_node)
setattr(batching.RequestBatcher, "_reply", reply)  # noqa: B010
ours.update = update
vars(ours)["to_record"] = to_record
client = ours.client_app(HERE)
server = server_app(HERE)
