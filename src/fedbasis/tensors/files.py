"""Named tensors on disk: safetensors files, written atomically; reading a damaged file is an ``InputError``."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedbasis.tensors.params import State, Tensors, require_finite
from pflbed.errors import InputError
from pflbed.files import replacing


def write_tensors(path: Path, state: State, metadata: Mapping[str, str] | None = None) -> None:
    """Write a state to one safetensors file, atomically; keys are ``group/name``, or ``name`` in the group ""."""
    flat = {f"{group}/{name}" if group else name: t for group, tensors in state.items() for name, t in tensors.items()}
    ready = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in flat.items()}
    with replacing(path) as temporary:
        try:
            save_file(ready, temporary, dict(metadata or {}))
        except SafetensorError as error:  # not an OSError, even when the disk is full
            raise InputError(
                f"The file {path} must be written, but the system refused it ({error}); free some disk space."
            ) from error


def read_tensors(path: Path) -> tuple[State, dict[str, str]]:
    """Read a state and the file's metadata; a missing or damaged file is an ``InputError``."""
    state: State = {}
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            for key in file.keys():  # noqa: SIM118
                group, _, name = key.rpartition("/")
                state.setdefault(group, {})[name] = file.get_tensor(key)
    except FileNotFoundError:
        raise InputError(f"The file {path} must exist, but it does not.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"The file {path} must be whole safetensors, but it is not ({error}); get it again."
        ) from error
    return state, metadata


def load_weights(path: Path, expected: Mapping[str, torch.Size]) -> Tensors:
    """Read pretrained tensors for a network; only the classifier may be missing or of another shape."""
    state, _ = read_tensors(path)
    weights = state.get("", {})
    usable = {name: tensor for name, tensor in weights.items() if name in expected and tensor.shape == expected[name]}
    missing = [name for name in expected if name not in usable]
    if len({name.rpartition(".")[0] for name in missing}) > 1:
        why = "has another shape" if missing[0] in weights else "is missing"
        raise InputError(
            f"The weights {path} must fit the network in all but its classifier, but {len(missing)} of {len(expected)} "
            f"tensors do not ('{missing[0]}' {why}); choose the matching network or file."
        )
    require_finite({"": usable}, f"The file {path}")
    return usable
