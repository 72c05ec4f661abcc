"""Decode bases that are published in the compact coding of ``fedbasis bundle --compact``, with numpy.

One model, or the mean of all, is the reference; of the others a file has differences of 3, 4 or 8 bits of matrices,
with a scale for every output channel, and 16-bit numbers of vectors. ``fedbasis.tensors.compact`` has the exact
definition; the results are the same bits.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEAN, REFERENCE = "compact/mean/", "compact/reference/"
CODES, SCALES, VECTORS = "compact/codes/", "compact/scales/", "compact/vectors/"
Arrays = Mapping[str, NDArray[Any]]
Shapes = Mapping[str, tuple[int, ...]]


def is_coded(tensors: Arrays) -> bool:
    """Return whether a file holds coded models."""
    return any(name.startswith("compact/") for name in tensors)


def decode(tensors: Arrays, groups: Sequence[str], shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    """Return the models as float32 tensors ``group/name``.

    Args:
        tensors: The file; numbers in bfloat16 are uint16.
        groups: The models.
        shapes: The tensors of a model.

    Raises:
        ValueError: The file does not hold them.
    """
    made = {}
    for name, shape in shapes.items():
        keys = [f"{MEAN}{name}", *(f"{REFERENCE}{group}/{name}" for group in groups)]
        (key,) = (key for key in keys if key in tensors)
        near = _floats(tensors[key]).reshape(shape)
        for group in groups:
            made[f"{group}/{name}"] = (
                near if f"{REFERENCE}{group}/{name}" == key else _decoded(tensors, f"{group}/{name}", shape, near)
            )
    return made


def _decoded(tensors: Arrays, key: str, shape: tuple[int, ...], near: NDArray[np.float32]) -> NDArray[np.float32]:
    if len(shape) <= 1:
        half = tensors[f"{VECTORS}{key}"].reshape(shape)
        return _floats(half) if half.dtype == np.uint16 else near + half.astype(np.float32)
    codes, scales = tensors[f"{CODES}{key}"], tensors[f"{SCALES}{key}"].reshape(shape[0], *[1] * (len(shape) - 1))
    if codes.dtype == np.uint8:
        codes = _unpacked(codes)[: near.size]
    made: NDArray[np.float32] = scales * codes.reshape(shape).astype(np.float32) + near
    return made


def _unpacked(packed: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Return codes of 4 bits, two in a byte, or of 3 bits, in three planes."""
    if packed.ndim == 1:
        return np.stack([packed & 15, packed >> 4], axis=1).reshape(-1).astype(np.int16) - 8
    low, middle, high = np.unpackbits(packed, axis=1, bitorder="little").astype(np.int16)
    codes: NDArray[np.int16] = low + 2 * middle + 4 * high - np.int16(4)
    return codes


def _floats(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return float32 from float32, or from the upper halves of such numbers."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    if values.dtype != np.float32:
        raise ValueError("a reference must have 16 or 32 bits")
    return values
