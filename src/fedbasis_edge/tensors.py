"""safetensors files with numpy: the header is checked against the size of the file before a tensor is used."""

import json
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflbed.errors import InputError
from pflbed.foreign import parse_json

TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"), "I64": np.dtype("<i8"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "U8": np.dtype("u1"), "I8": np.dtype("i1"),
}  # fmt: skip
"""numpy has no bfloat16: its bits are an integer."""
MAX_HEADER = 16 * 2**20


def parse(data: bytes, where: str) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file as views of its bytes.

    Args:
        data: The file.
        where: What errors call it.
    """
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= min(MAX_HEADER, len(data) - 8):
        raise InputError(f"{where} must be a safetensors file, but its header does not fit; get the folder again.")
    header = parse_json(data[8 : 8 + length], f"The header of {where}")
    body, tensors, ends = memoryview(data)[8 + length :], dict[str, NDArray[Any]](), [(0, 0)]
    try:
        header.pop("__metadata__", None)
        for name, info in header.items():
            dtype, shape, (start, stop) = TYPES[info["dtype"]], info["shape"], info["data_offsets"]
            if not all(type(number) is int and 0 <= number < 2**40 for number in (*shape, start, stop)):
                raise ValueError("no numbers")
            if len(shape) > 8 or stop > len(body) or stop - start != dtype.itemsize * prod(shape):
                raise ValueError("does not fit")
            tensors[name] = np.frombuffer(body[start:stop], dtype).reshape(shape)
            ends.append((start, stop))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{where} must hold tensors of known types within its size, but it does not; get the folder again."
        ) from error
    ends.sort()
    if any(before[1] != after[0] for before, after in pairwise(ends)) or ends[-1][1] != len(body):
        raise InputError(f"The tensors of {where} must follow one another, but they do not; get the folder again.")
    return tensors


def serialize(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a safetensors file; large types come first, then names in order, as the package of that name has it."""
    kinds = {TYPES[name]: name for name in ("F32", "I64")}
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header, at = {}, 0
    for name in order:
        size = tensors[name].nbytes
        kind = kinds[tensors[name].dtype.newbyteorder("<")]
        header[name] = {"dtype": kind, "shape": list(tensors[name].shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(tensors[name].tobytes() for name in order)
