"""What travels in a Flower message: parcels, each with a few words and numbers and at most one block of tensors.

A block is raw bytes (see ``pack``); nothing is ever unpickled.
"""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedbasis import pack
from fedbasis.params import State
from pflbed.errors import InputError

WORDS, NUMBERS, TENSORS = "words", "numbers", "tensors"
KIND = "fedbasis.pack"
Block = NDArray[np.uint8]


@dataclass(frozen=True)
class Parcel:
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


def block_of(state: State, precision: str = "float32") -> Block:
    """Pack a state; in bfloat16, float32 tensors are rounded and take half the bytes."""
    if precision == "bfloat16":
        state = {g: {n: _halved(tensor) for n, tensor in named.items()} for g, named in state.items()}
    return pack.packed(state)


def _halved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16() if tensor.dtype == torch.float32 else tensor


def restored(state: State) -> State:
    """Bring tensors that travelled in bfloat16 back to float32."""
    return {
        group: {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in named.items()}
        for group, named in state.items()
    }


def aside(parcel: Parcel) -> Parcel:
    """Put a parcel's block on disk, from where it is shown without being held in memory."""
    if not len(parcel.block):
        return parcel
    with tempfile.TemporaryFile() as file:  # has no name; it is gone when nobody looks at it any more
        file.write(parcel.block.data)
        file.flush()
        return replace(parcel, block=np.memmap(file, dtype=np.uint8, mode="c"))


def loaded(parcels: Iterable[Parcel]) -> RecordDict:
    """Put parcels into the content of a message."""
    content = RecordDict()
    for i, parcel in enumerate(parcels):
        content[f"{WORDS}.{i}"] = ConfigRecord(dict(parcel.words))
        content[f"{NUMBERS}.{i}"] = ConfigRecord({key: float(value) for key, value in parcel.numbers.items()})
        array = Array("uint8", (len(parcel.block),), KIND, parcel.block.tobytes())
        content[f"{TENSORS}.{i}"] = ArrayRecord({KIND: array})
    return content


def unloaded(content: RecordDict) -> list[Parcel]:
    """Take the parcels out of a message; what is not laid out like one is refused."""
    parcels = []
    for i in range(len(content) // 3):
        words, numbers, tensors = (content.get(f"{part}.{i}") for part in (WORDS, NUMBERS, TENSORS))
        if not (
            isinstance(words, ConfigRecord) and isinstance(numbers, ConfigRecord) and isinstance(tensors, ArrayRecord)
        ):
            raise InputError("it must hold words, numbers and tensors, but it does not.")
        array = tensors.get(KIND)
        if array is None or array.stype != KIND or len(tensors) != 1:
            raise InputError("its tensors must be one block of ours, but they are something else.")
        if array.dtype != "uint8" or array.shape != (len(array.data),):
            raise InputError(f"it must have the bytes it tells of ({array.shape}), but it has {len(array.data)}.")
        plain = {key: value for key, value in words.items() if isinstance(value, str | int)}
        told = {key: float(value) for key, value in numbers.items() if isinstance(value, float | int)}
        parcels.append(Parcel(plain, told, np.frombuffer(bytearray(array.data), dtype=np.uint8)))
    return parcels
