"""The app of a federation whose nodes misbehave when their folder tells them to; Flower carries this file to them."""

import json
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, RecordDict
from flwr.app.message.arraychunk import ArrayChunk

from fedbasis.flower import client as ours
from fedbasis.flower.expected import read_block
from fedbasis.flower.node import Node
from fedbasis.flower.payload import Parcel, block_of
from fedbasis.flower.payload import loaded as orderly
from fedbasis.flower.server import server_app
from fedbasis.flower.settings import Plan

HERE = Path(__file__).parent
CLAIM = 10 * 2**30
honest = ours.update
told: dict[str, str] = {}
"""What this node was told to do wrong in this round, by experiment; "*" is the whole message."""


def update(node: Node, plan: Plan, parcel: Parcel) -> Parcel:
    faults: dict[str, dict[str, str]] = json.loads((node.state / "faults.json").read_text())
    told.update(faults.get(str(parcel.number("round")), {}))
    (node.state / "at-work").write_text(str(parcel.number("round")))
    if told.get("*") == "hang":
        time.sleep(600)
    done = honest(node, plan, parcel)
    return WRONG[told[plan.name]](done, parcel) if plan.name in told else done


def nan(done: Parcel, asked: Parcel) -> Parcel:
    state = read_block(done.block)
    state["model"]["fc.bias"][0] = float("nan")
    return replace(done, block=block_of(state))


def shape(done: Parcel, asked: Parcel) -> Parcel:
    state = read_block(done.block)
    state["model"]["fc.bias"] = torch.zeros(7)
    return replace(done, block=block_of(state))


def extra(done: Parcel, asked: Parcel) -> Parcel:
    return replace(done, block=block_of({**read_block(done.block), "images": {"mine": torch.zeros(3)}}))


def missing(done: Parcel, asked: Parcel) -> Parcel:
    state = read_block(done.block)
    del state["model"]["fc.bias"]
    return replace(done, block=block_of(state))


def stale(done: Parcel, asked: Parcel) -> Parcel:
    return replace(done, words={**done.words, "round": asked.number("round") - 1})


def claim(done: Parcel, asked: Parcel) -> Parcel:
    """A block of 64 bytes whose header tells of ten gigabytes."""
    entry = ["model", "fc.bias", "float32", [CLAIM // 4], 0]
    header = json.dumps({"groups": ["model"], "tensors": [entry], "size": 64, "note": ""}).encode()
    head = b"fedbasis" + len(header).to_bytes(8, "little") + header
    return replace(done, block=np.frombuffer(head + bytes(-len(head) % 64) + bytes(64), dtype=np.uint8))


WRONG = {"nan": nan, "shape": shape, "extra": extra, "missing": missing, "stale": stale, "claim": claim}


def loaded(parcels: Iterable[Parcel]) -> RecordDict:
    """A message of some megabytes that grows to ten gigabytes when it is put together."""
    if told.get("*") == "flood":
        piece = ArrayChunk(memoryview(bytes(5 * 2**20)))
        Array.slice_array = lambda array: [(piece.object_id, piece)] * (CLAIM // len(piece.data))
    return orderly(parcels)


ours.update = update
vars(ours)["loaded"] = loaded
client = ours.client_app(HERE)
server = server_app(HERE)
