"""A personal model on disk: the files that ``fedbasis predict`` reads, and one ONNX file that other tools read."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbasis_edge import tensors
from fedbasis_edge.bundle import CARD, MAX_ABOUT, MAX_TENSORS, SKELETON, TENSORS
from fedbasis_edge.checks import require_name, require_numbers, require_pair, require_whole
from fedbasis_edge.fit import Personal
from fedbasis_edge.graphs import check_graph, with_weights
from fedbasis_edge.probe import probe
from fedbasis_edge.runtime import Graph
from pflbed.errors import InputError
from pflbed.files import hidden_beside, write_json
from pflbed.foreign import parse_json, read_bytes

MODEL = "model.onnx"
COLUMNS = "Coefficients: how much of each basis, block by block"


def write_model(personal: Personal, out: Path) -> None:
    """Write a personal model as a folder: ``card.json``, ``tensors.safetensors`` and ``model.onnx``.

    Args:
        personal: What ``personalize`` returned.
        out: The folder, which must not exist yet.
    """
    if out.exists():
        raise InputError(f"The output {out} must not exist yet, but it does; choose another name or remove it.")
    bundle = personal.bundle
    file = tensors.serialize(personal.tensors)
    floats = {name: value for name, value in personal.tensors.items() if value.dtype == np.float32}
    graph = with_weights(bundle.files[SKELETON], floats)
    card = {**bundle.card, "kind": "model", "settings": {}, "sha256": hashlib.sha256(file).hexdigest()}
    card["learned"] = {"alpha": alpha_table(personal)}
    card["provenance"] = {
        "bases": bundle.card.get("sha256", ""), "personalized_by": personal.way, "epochs": personal.epochs,
        "images": personal.images, "held_out": personal.held_out, "before": personal.before, "after": personal.after,
        "label_counts": personal.label_counts, "onnx": hashlib.sha256(graph).hexdigest(),
    }  # fmt: skip
    with hidden_beside(out) as folder:
        (folder / TENSORS).write_bytes(file)
        (folder / MODEL).write_bytes(graph)
        write_json(folder / CARD, card)
        folder.rename(out)


def alpha_table(personal: Personal) -> dict[str, Any]:
    """Return the coefficients as the table that cards hold."""
    rows = [
        [block, [round(float(value), 4) for value in row]]
        for block, row in zip(personal.bundle.blocks, personal.alpha, strict=True)
    ]
    columns = [f"basis {number}" for number in range(personal.alpha.shape[1])]
    return {"title": COLUMNS, "columns": columns, "rows": rows, "shares": True}


@dataclass(frozen=True)
class EdgeModel:
    """A personal model that is ready to predict.

    Args:
        card: Its card.
        classes: Names of the classes.
        resolution: Height and width of the images.
        channels: 3 for RGB, 1 for gray.
    """

    card: Mapping[str, Any]
    classes: tuple[str, ...]
    resolution: tuple[int, int]
    channels: int
    _mean: NDArray[np.float32]
    _std: NDArray[np.float32]
    _crop: tuple[int, int]
    _graph: Graph

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the class probabilities of uint8 images [N, H, W, C]."""
        above, left = (pixels.shape[1] - self._crop[0]) // 2, (pixels.shape[2] - self._crop[1]) // 2
        cropped = pixels[:, above : above + self._crop[0], left : left + self._crop[1]]
        inputs = (cropped.astype(np.float32) / 255 - self._mean) / self._std
        logits = self._graph({"images": np.ascontiguousarray(inputs.transpose(0, 3, 1, 2))})["logits"]
        shifted = np.exp(logits - logits.max(1, keepdims=True))
        made: NDArray[np.float32] = shifted / shifted.sum(1, keepdims=True)
        return made


def open_model(folder: Path, threads: int = 0, trust: bool = False) -> EdgeModel:
    """Read and check a personal model that has a ``model.onnx``.

    Args:
        folder: What ``write_model`` wrote.
        threads: Threads of the runtime; 0: one per core.
        trust: Whether to open the graph without trying it in another process before.
    """
    if not (folder / CARD).exists() or not (folder / MODEL).exists():
        raise InputError(
            f"A model is a folder with {CARD} and {MODEL}, but {folder} has not both; write it with "
            "'fedbasis-edge personalize'."
        )
    text = read_bytes(folder / CARD, "The card", MAX_ABOUT)
    card = parse_json(text, f"The card {folder / CARD}")
    if not isinstance(card, dict):
        raise InputError(f"The card {folder / CARD} must be a JSON object, but it is {type(card).__name__}.")
    data = read_bytes(folder / MODEL, "The model", MAX_TENSORS)
    provenance = card.get("provenance")
    if not isinstance(provenance, dict) or provenance.get("onnx") != hashlib.sha256(data).hexdigest():
        raise InputError(
            f"The file {folder / MODEL} must be the one that {CARD} describes, but it is not; get it again."
        )
    try:
        pixels, classes = card["preprocessing"], tuple(map(require_name, card["classes"]))
        channels = require_whole(card["architecture"]["channels"], 1, 256)
        mean = np.array(require_numbers(pixels["mean"], channels, -1e6, 1e6), dtype=np.float32)
        std = np.array(require_numbers(pixels["std"], channels, 1e-6, 1e6), dtype=np.float32)
        resolution = _sides(pixels["resolution"])
        crop = resolution if pixels.get("crop") is None else _sides(pixels["crop"])
        if card["kind"] != "model":
            raise ValueError("no model")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"The card {folder / CARD} must describe a model, but it does not; get it again.") from error
    check_graph(data, f"The file {folder / MODEL}", TENSORS, 0, inline=MAX_TENSORS)
    if not trust:
        probe("model", folder, hashlib.sha256(text).hexdigest(), 4 * len(data))
    graph = Graph(data, f"The file {folder / MODEL}", None, threads)
    if list(graph.inputs) != ["images"]:
        raise InputError(f"The file {folder / MODEL} must take images alone, but it takes {sorted(graph.inputs)}.")
    return EdgeModel(card, classes, resolution, channels, mean, std, crop, graph)


def _sides(value: Any) -> tuple[int, int]:
    return require_pair([value, value] if isinstance(value, int) else value)
