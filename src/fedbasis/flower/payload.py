"""The content of a Flower message: payloads, each with some texts and numbers and at most one block of tensors.

All payloads of a message are one byte array, because Flower sends every object in its own requests: a json list (texts,
numbers, length of every block), then the blocks. Nothing is ever unpickled.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from fedbasis.tensors import packed as pack
from fedbasis.tensors.params import State
from pflbed.errors import InputError
from pflbed.foreign import parse_json

KIND = "fedbasis"
LENGTH = 8
"""Bytes of the length of the json list."""
Block = NDArray[np.uint8]


@dataclass(frozen=True)
class Payload:
    """One request, or its answer.

    Args:
        words: Texts and whole numbers, by name.
        numbers: Numbers of an update, by name.
        block: Packed tensors.
    """

    words: Mapping[str, str | int]
    numbers: Mapping[str, float] = field(default_factory=dict)
    block: Block = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))

    def word(self, key: str) -> str:
        """Return a text, or "" if the payload has none by this name."""
        value = self.words.get(key, "")
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int:
        """Return a whole number, or -1 if the payload has none by this name."""
        value = self.words.get(key, -1)
        return value if isinstance(value, int) else -1


def pack_state(state: State) -> Block:
    """Pack a state."""
    return pack.packed(state)


def spooled(payload: Payload) -> Payload:
    """Return a payload whose block is memory-mapped from a temporary file."""
    if not len(payload.block):
        return payload
    with tempfile.TemporaryFile() as file:  # it has no name and is deleted with the block
        file.write(payload.block.data)
        file.flush()
        return replace(payload, block=np.memmap(file, dtype=np.uint8, mode="c"))


def to_bytes(payloads: Iterable[Payload]) -> bytes:
    """Return payloads as bytes."""
    listed = list(payloads)
    header = [[dict(payload.words), dict(payload.numbers), len(payload.block)] for payload in listed]
    head = json.dumps(header).encode()
    return b"".join([len(head).to_bytes(LENGTH, "little"), head, *(payload.block.tobytes() for payload in listed)])


def from_bytes(data: bytes) -> list[Payload]:
    """Return payloads from received bytes; lengths are checked before any copy."""
    try:
        start = LENGTH + int.from_bytes(data[:LENGTH], "little")
        header = parse_json(data[LENGTH:start], "it")
        if start + sum(length for _, _, length in header) != len(data) or any(length < 0 for _, _, length in header):
            raise ValueError("its length differs from its header")
        payloads = []
        for words, numbers, length in header:
            plain = {str(key): value for key, value in words.items() if isinstance(value, str | int)}
            counted = {str(key): float(value) for key, value in numbers.items()}
            block = np.frombuffer(bytearray(data[start : start + length]), dtype=np.uint8)
            payloads.append(Payload(plain, counted, block))
            start += length
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise InputError(f"it must be valid payloads, but it is not ({error}).") from error
    return payloads


def to_record(payloads: Iterable[Payload]) -> RecordDict:
    """Return the content of a message with payloads."""
    data = to_bytes(payloads)
    return RecordDict({KIND: ArrayRecord({KIND: Array("uint8", (len(data),), KIND, data)})})


def from_record(content: RecordDict) -> list[Payload]:
    """Return the payloads of a message; an ``InputError`` if its content has another structure."""
    record = content.get(KIND)
    array = record.get(KIND) if isinstance(record, ArrayRecord) and len(record) == len(content) == 1 else None
    if array is None or (array.dtype, array.stype) != ("uint8", KIND):
        raise InputError("it must have one array of payloads, but it has other content.")
    return from_bytes(array.data)
