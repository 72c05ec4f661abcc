"""A state as one block of bytes that many processes can map into memory without a copy for each.

A block is a short json header (group, name, type, shape and offset of every tensor), then the tensors, each at a
multiple of 64 bytes, as torch aligns them. ``mapped`` returns tensors that are views into a memory-mapped file: the
processes that map one file share its memory, and a page is copied only when a process writes to it.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbasis.tensors.params import State
from pflbed.errors import InputError
from pflbed.foreign import parse_json

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool,
    )
}  # fmt: skip
ALIGNED = 64
MAGIC = b"fedbasis"


def _rounded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _parts(state: State, note: str, digest: bool = False) -> Iterator[bytes | memoryview]:
    """Yield the header and the tensors' bytes, each padded to the alignment."""
    entries: list[list[Any]] = []
    tensors: list[Tensor] = []
    place = 0
    for group, named in state.items():
        for name, tensor in named.items():
            entries.append([group, name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), place])
            tensors.append(tensor)
            place = _rounded(place + tensor.nbytes)
    about: dict[str, Any] = {"groups": list(state), "tensors": entries, "size": place, "note": note}
    if digest:
        about["sha256"] = _digest(about, tensors)
    header = json.dumps(about).encode()
    head = MAGIC + len(header).to_bytes(8, "little") + header
    yield head + b" " * (_rounded(len(head)) - len(head))
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data
        yield b"\0" * (_rounded(tensor.nbytes) - tensor.nbytes)


def _digest(about: Mapping[str, Any], tensors: Iterable[Tensor]) -> str:
    """Hash a header, but for the digest in it, and the tensors: a changed name or shape is damage as well."""
    fields = {key: value for key, value in about.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write(path: Path, state: State, note: str = "", digest: bool = False) -> None:
    """Write a state to a file, with a short text in its header; with a digest, reading detects changes."""
    with path.open("wb") as file:
        _write(file, state, note, digest)


def _write(file: BinaryIO, state: State, note: str = "", digest: bool = False) -> None:
    for part in _parts(state, note, digest):
        file.write(part)


def packed(state: State) -> NDArray[np.uint8]:
    """Return a state as one array."""
    return np.concatenate([np.frombuffer(part, dtype=np.uint8) for part in _parts(state, "")])


def unpacked(block: NDArray[np.uint8], where: str = "A block of tensors") -> State:
    """Return the tensors of a block as views into it."""
    return _unpacked(block, where)[0]


def _unpacked(block: NDArray[np.uint8], where: str, digest: bool = False) -> tuple[State, str]:
    start = len(MAGIC) + 8
    try:
        if bytes(block[: len(MAGIC)]) != MAGIC:
            raise ValueError("its first bytes are wrong")
        length = int.from_bytes(bytes(block[len(MAGIC) : start]), "little")
        header = parse_json(bytes(block[start : start + length]), where)
        first = _rounded(start + length)
        if len(block) != first + header["size"]:
            raise ValueError("its length differs from its header")
        state: State = {group: {} for group in header["groups"]}
        note = str(header["note"])
        for group, name, kind, shape, place in header["tensors"]:
            dtype: torch.dtype = DTYPES[kind]
            size = prod(shape) * dtype.itemsize
            if not 0 <= place <= place + size <= header["size"]:
                raise ValueError(f"'{group}/{name}' does not fit into it")
            part = torch.from_numpy(block[first + place : first + place + size])
            state[group][name] = part.view(dtype).view(shape)
        if digest and "sha256" not in header:
            raise ValueError("it has no digest")
        tensors = (t for named in state.values() for t in named.values())
        if "sha256" in header and _digest(header, tensors) != header["sha256"]:
            raise ValueError("it has another digest")
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, IndexError, OverflowError) as error:
        raise InputError(f"{where} must be whole, but it was cut short or changed ({error}).") from error
    return state, note


def _map(file: Path | BinaryIO) -> NDArray[np.uint8]:
    return np.memmap(file, dtype=np.uint8, mode="c")


def mapped(path: Path, digest: bool = False) -> State:
    """Map a file's tensors into memory, copy-on-write: writing to them does not change the file.

    Args:
        path: The file.
        digest: Whether the file must have a digest; one that is there is compared in any case.

    Returns:
        The tensors.
    """
    return _unpacked(_map(path), f"The file {path}", digest)[0]


def note_of(path: Path, digest: bool = False) -> str:
    """Return the short text in a file's header."""
    return _unpacked(_map(path), f"The file {path}", digest)[1]


def on_disk(states: Iterable[State]) -> list[State]:
    """Write states to temporary files as they are produced, and return them mapped from there."""
    stored = []
    for state in states:
        with tempfile.TemporaryFile() as file:  # it has no name and is deleted with the last of its tensors
            _write(file, state)
            file.flush()
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            stored.append(unpacked(_map(file)))
    return stored
