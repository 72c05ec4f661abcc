"""Turn a PyTorch file of pretrained weights into safetensors, checked against the network that it is for.

A ``.pth`` or ``.pt`` file is a pickle, since PyTorch 1.6 in a zip archive. It is read with ``weights_only=True``, which
builds tensors and containers and runs nothing else; an archive's own list of contents is checked before.
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbasis.networks.models import MODELS, Network, classifier_of
from fedbasis.tensors.files import read_tensors
from fedbasis.tensors.params import Tensors, require_finite
from pflbed.errors import InputError
from pflbed.foreign import require_file

MAX_BYTES = 4 * 2**30
"""Of a file, and of what it holds."""
MAX_TENSORS = 100_000
WRAPPED = ("state_dict", "model", "model_state_dict")
"""Under which keys training scripts put the weights beside other things."""
COUNTERS = "num_batches_tracked"
"""Of normalization layers; they are constants here."""
GUESSED = ("resnet18", "resnet10", "efficientnet-lite0")
"""Networks whose tensors do not depend on the size of images, so that a file tells which of them it is for."""


@dataclass(frozen=True)
class Imported:
    """Weights that fit a network."""

    network: str
    tensors: Tensors
    left_out: tuple[str, ...]
    """Tensors of the file that are not used: the classifier and counters."""


def import_weights(path: Path, network: str | None = None, resolution: int = 224, **options: Any) -> Imported:
    """Read pretrained weights and compare them with a network; all but its classifier must be there.

    Args:
        path: A ``.pth`` or ``.pt`` file of PyTorch, or a safetensors file.
        network: The name of a built-in network; None: the one whose names the file has.
        resolution: Pixels of its images, for networks that depend on it.
        **options: Options of the network, such as ``width``.

    Returns:
        The weights without the classifier, which belongs to other classes.
    """
    found = _read(path)
    tried = [network] if network else list(GUESSED)
    lacking: dict[str, list[str]] = {}
    for name in tried:
        module = Network(name, 2, resolution, options if network else {}).skeleton()
        classifier = classifier_of(module)
        expected = {key: t.shape for key, t in module.state_dict().items() if not key.endswith(COUNTERS)}
        body = {key: shape for key, shape in expected.items() if key.rpartition(".")[0] != classifier}
        lacking[name] = [key for key, shape in body.items() if key not in found or found[key].shape != shape]
        if not lacking[name]:
            tensors = {key: found[key].detach().float() for key in body}
            require_finite({"": tensors}, f"The file {path}")
            return Imported(name, tensors, tuple(sorted(found.keys() - body.keys())))
    best = min(tried, key=lambda name: len(lacking[name]))
    first = lacking[best][0]
    why = f"has the shape {tuple(found[first].shape)} there" if first in found else "is missing"
    among = f"one of {', '.join(GUESSED)}" if network is None else best
    raise InputError(
        f"The weights {path} must fit {among} in all but the classifier, but for {best} {len(lacking[best])} tensors "
        f"do not ('{first}' {why}); name the network with --network, one of {', '.join(MODELS)}."
    )


def _read(path: Path) -> Tensors:
    require_file(path, "The file of weights", MAX_BYTES)
    if path.suffix == ".safetensors":
        return read_tensors(path)[0].get("", {})
    _require_archive(path)
    try:
        raw = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds about a file that it did not write
        reason = str(error).partition("\n")[0][:200]
        raise InputError(
            f"The file {path} must hold nothing but tensors, as torch.save writes a state dict, but it does not "
            f"({reason})."
        ) from error
    for key in WRAPPED:
        if isinstance(raw, dict) and isinstance(raw.get(key), dict):
            raw = raw[key]
    if not isinstance(raw, dict) or len(raw) > MAX_TENSORS:
        raise InputError(f"The file {path} must hold a state dict, but it holds a {type(raw).__name__}.")
    return {
        str(name).removeprefix("module."): tensor
        for name, tensor in raw.items()
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided and not str(name).endswith(COUNTERS)
    }


def _require_archive(path: Path) -> None:
    """Refuse an archive that unpacks to more than it has."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"The file {path} must be a whole file of torch.save, but it is not ({error}).") from error
    total = sum(entry.file_size for entry in entries)
    if total > min(MAX_BYTES, 2 * path.stat().st_size + 2**20) or len(entries) > 2 * MAX_TENSORS:
        raise InputError(f"The file {path} must unpack to its own size, but it says {total:,} bytes; do not use it.")
