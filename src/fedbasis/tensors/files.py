"""Named tensors on disk: safetensors files, written atomically, and checked by their header before they are read.

The header says which tensors a file holds, of which type and shape, and where. It is read first, bounded and compared
with the size of the file, so that a file can claim nothing that it does not have.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedbasis.tensors.params import State, Tensors, require_finite
from pflbed.errors import InputError
from pflbed.files import replacing
from pflbed.foreign import parse_json, require_file

MAX_TENSORS = 64 * 2**30
"""Bytes of a file of tensors."""
MAX_HEADER = 16 * 2**20
"""Bytes of its header."""
MAX_DIMENSIONS = 8
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""The types of tensors that are used here, by their names in a header."""
COUNTER = ".num_batches_tracked"
"""How constants of normalization layers end, which are not loaded."""
DIGEST = "sha256"
"""Where a file's metadata holds the digest of its tensors."""


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a file before it is read."""

    dtype: torch.dtype
    shape: torch.Size


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor is in a file: its type and shape, and the range of its bytes from the start of the file."""

    dtype: torch.dtype
    shape: torch.Size
    start: int
    stop: int


Header = dict[str, dict[str, TensorInfo]]
"""The tensors of a file by group and name."""


def write_tensors(path: Path, state: State, metadata: Mapping[str, str] | None = None, digest: bool = False) -> None:
    """Write a state to one safetensors file, atomically.

    Args:
        path: The file.
        state: Tensors by group and name; keys are ``group/name``, and ``name`` in the group "".
        metadata: A few texts beside them.
        digest: Whether to add the digest of the tensors, which ``read_tensors`` then checks.
    """
    flat = {f"{group}/{name}" if group else name: t for group, tensors in state.items() for name, t in tensors.items()}
    ready = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in flat.items()}
    texts = {**(metadata or {}), **({DIGEST: digest_of(ready)} if digest else {})}
    with replacing(path) as temporary:
        try:
            save_file(ready, temporary, texts)
        except SafetensorError as error:  # not an OSError, even when the disk is full
            raise InputError(
                f"The file {path} must be written, but the system refused it ({error}); free some disk space."
            ) from error


def digest_of(tensors: Tensors) -> str:
    """Hash named tensors: their names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_header(path: Path) -> tuple[Header, dict[str, str]]:
    """Read what a safetensors file holds, without its tensors.

    Args:
        path: The file.

    Returns:
        Type and shape of every tensor by group and name, and the file's metadata.
    """
    what = "The file"
    size = require_file(path, what, MAX_TENSORS)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MAX_HEADER, size - 8):
            raise InputError(f"{what} {path} must be whole safetensors, but its header does not fit; get it again.")
        raw = parse_json(file.read(length), f"The header of {path}")
    header: Header = {}
    try:
        metadata = raw.pop("__metadata__", {})
        end = 0
        for key, about in sorted(raw.items(), key=lambda item: item[1]["data_offsets"]):
            if about["dtype"] not in DTYPES:
                raise ValueError(f"'{key}' has the type {about['dtype']!r:.40}, which is not supported")
            dtype, shape, (start, stop) = DTYPES[about["dtype"]], about["shape"], about["data_offsets"]
            if len(shape) > MAX_DIMENSIONS or not all(type(side) is int and side >= 0 for side in shape):
                raise ValueError(f"'{key}' has the shape {shape}")
            if start != end or stop - start != prod(shape) * dtype.itemsize:
                raise ValueError(f"'{key}' is not where the header says")
            end = stop
            group, _, name = key.rpartition("/")
            header.setdefault(group, {})[name] = TensorInfo(dtype, torch.Size(shape))
        if 8 + length + end != size:
            raise ValueError("it has another length than it says")
        if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
            raise ValueError("its metadata are no texts")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{what} {path} must be whole safetensors of numbers, but it is not ({error}); get it again."
        ) from error
    return header, metadata


def read_places(path: Path) -> dict[str, TensorPlace]:
    """Return where every tensor of a file is, by its key; the header is checked first."""
    read_header(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        raw = parse_json(file.read(length), f"The header of {path}")
    raw.pop("__metadata__", None)
    data = 8 + length
    return {
        key: TensorPlace(
            DTYPES[about["dtype"]],
            torch.Size(about["shape"]),
            data + about["data_offsets"][0],
            data + about["data_offsets"][1],
        )
        for key, about in raw.items()
    }


def read_tensors(path: Path) -> tuple[State, dict[str, str]]:
    """Read a state and the file's metadata back; a file with a digest must agree with it."""
    header, metadata = read_header(path)
    state: State = {group: {} for group in header}
    flat: Tensors = {}
    try:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118
                group, _, name = key.rpartition("/")
                state[group][name] = flat[key] = file.get_tensor(key)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"The file {path} must be whole safetensors, but it is not ({error}); get it again."
        ) from error
    if DIGEST in metadata and digest_of(flat) != metadata[DIGEST]:
        raise InputError(f"The file {path} must be as it was written, but its tensors were changed.")
    return state, metadata


def load_weights(path: Path, expected: Mapping[str, torch.Size], unused: Collection[str] = ()) -> Tensors:
    """Read pretrained tensors for a network; only the classifier may be missing or of another shape.

    Args:
        path: The safetensors file.
        expected: The network's tensors.
        unused: Modules of the file that the network is known not to have. Besides these and counters of normalization
            layers, the file may hold nothing else.
    """
    header, _ = read_header(path)
    found = header.get("", {})
    known = tuple(f"{module}." for module in unused)
    more = [
        name for name in found.keys() - expected.keys() if not name.startswith(known) and not name.endswith(COUNTER)
    ]
    if more:
        raise InputError(
            f"The weights {path} must fit the network, but {len(more)} of their {len(found)} tensors are none of its "
            f"own ('{min(more)}'); choose the matching network or file."
        )
    usable = {name for name, about in found.items() if name in expected and about.shape == expected[name]}
    missing = [name for name in expected if name not in usable]
    if len({name.rpartition(".")[0] for name in missing}) > 1:
        why = "has another shape" if missing[0] in found else "is missing"
        raise InputError(
            f"The weights {path} must fit the network in all but its classifier, but {len(missing)} of {len(expected)} "
            f"tensors do not ('{missing[0]}' {why}); choose the matching network or file."
        )
    state, _ = read_tensors(path)
    weights = {name: tensor for name, tensor in state[""].items() if name in usable}
    require_finite({"": weights}, f"The file {path}")
    return weights
