"""What travels in a Flower message: parcels, each with a few words and numbers and at most one block of tensors.

All parcels of a message are one run of bytes, because Flower carries everything it knows as a thing of its own in
requests of their own: a json list (words, numbers, how long every block is), then the blocks. Nothing is ever
unpickled.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from fedbasis.tensors import packed as pack
from fedbasis.tensors.params import State
from pflbed.errors import InputError
from pflbed.foreign import parse_json

KIND = "fedbasis"
LENGTH = 8
"""Bytes that tell how long the json list is."""
Block = NDArray[np.uint8]


@dataclass(frozen=True)
class Payload:
    """One job, or its answer."""

    words: Mapping[str, str | int]
    numbers: Mapping[str, float] = field(default_factory=dict)
    block: Block = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))

    def word(self, key: str) -> str:
        """Return a text, or nothing if the parcel has none by this name."""
        value = self.words.get(key, "")
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int:
        """Return a whole number, or -1 if the parcel has none by this name."""
        value = self.words.get(key, -1)
        return value if isinstance(value, int) else -1


def pack_state(state: State, precision: str = "float32") -> Block:
    """Pack a state; in bfloat16, float32 tensors are rounded and take half the bytes."""
    if precision == "bfloat16":
        state = {g: {n: _halved(tensor) for n, tensor in named.items()} for g, named in state.items()}
    return pack.packed(state)


def _halved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16() if tensor.dtype == torch.float32 else tensor


def as_float32(state: State) -> State:
    """Bring tensors that travelled in bfloat16 back to float32."""
    return {
        group: {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in named.items()}
        for group, named in state.items()
    }


def spooled(payload: Payload) -> Payload:
    """Put a parcel's block on disk, from where it is shown without being held in memory."""
    if not len(payload.block):
        return payload
    with tempfile.TemporaryFile() as file:  # has no name; it is gone when nobody looks at it any more
        file.write(payload.block.data)
        file.flush()
        return replace(payload, block=np.memmap(file, dtype=np.uint8, mode="c"))


def to_bytes(payloads: Iterable[Payload]) -> bytes:
    """Write parcels as one run of bytes."""
    several = list(payloads)
    told = [[dict(payload.words), dict(payload.numbers), len(payload.block)] for payload in several]
    head = json.dumps(told).encode()
    return b"".join([len(head).to_bytes(LENGTH, "little"), head, *(payload.block.tobytes() for payload in several)])


def from_bytes(data: bytes) -> list[Payload]:
    """Read parcels that somebody else wrote; lengths are checked before anything is copied."""
    try:
        start = LENGTH + int.from_bytes(data[:LENGTH], "little")
        told = parse_json(data[LENGTH:start], "it")
        if start + sum(length for _, _, length in told) != len(data) or any(length < 0 for _, _, length in told):
            raise ValueError("it has another length than it tells of")
        payloads = []
        for words, numbers, length in told:
            plain = {str(key): value for key, value in words.items() if isinstance(value, str | int)}
            counted = {str(key): float(value) for key, value in numbers.items()}
            block = np.frombuffer(bytearray(data[start : start + length]), dtype=np.uint8)
            payloads.append(Payload(plain, counted, block))
            start += length
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise InputError(f"it must be payloads of ours, but it is not ({error}).") from error
    return payloads


def to_record(payloads: Iterable[Payload]) -> RecordDict:
    """Put parcels into the content of a message."""
    data = to_bytes(payloads)
    return RecordDict({KIND: ArrayRecord({KIND: Array("uint8", (len(data),), KIND, data)})})


def from_record(content: RecordDict) -> list[Payload]:
    """Take the parcels out of a message; what is not laid out like one is refused."""
    record = content.get(KIND)
    array = record.get(KIND) if isinstance(record, ArrayRecord) and len(record) == len(content) == 1 else None
    if array is None or (array.dtype, array.stype) != ("uint8", KIND):
        raise InputError("it must hold one array of ours, but it holds something else.")
    return from_bytes(array.data)
