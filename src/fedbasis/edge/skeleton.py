"""The graph of a network without its weights, to which anybody can append them.

Concatenated protobuf messages merge: a skeleton followed by ``{graph: {initializer: [...]}}`` is one self-contained
ONNX file. So a client writes its personal model in any language, without a package for ONNX or protobuf.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from fedbasis.edge.capture import BATCH, capture
from fedbasis.edge.step import traceable
from fedbasis.edge.translate import translate
from fedbasis.networks.models import Network, sides
from fedbasis.serving import artifact

FLOAT = 1
"""The number of float32 in ONNX."""


def skeleton(network: Network, image: str = "images") -> Any:
    """Return the network in evaluation mode as an ``onnx.ModelProto`` whose weights are missing.

    Args:
        network: The network.
        image: The name of the input, [N, C, H, W] of preprocessed images. The output is ``logits``.
    """
    module = traceable(network.build()).eval()
    weights = {name: value.detach() for name, value in module.state_dict().items() if value.is_floating_point()}
    names = list(weights)

    def logits(images: Tensor, *values: Tensor) -> list[Tensor]:
        return [functional_call(module, dict(zip(names, values, strict=True)), (images,))]

    images = torch.zeros(BATCH, *network.input_shape)
    graph = capture(logits, [images, *weights.values()], [True, *[False] * len(names)])
    model = translate(graph, [image, *names], ["logits"], "model", [True, *[False] * len(names)])
    del model.graph.input[1:]
    return model


def model_metadata(card: artifact.Card) -> dict[str, Any]:
    """Return what an ONNX model says about itself: classes and preprocessing."""
    pixels = card.preprocessing
    return {
        "classes": card.classes,
        "resolution": list(sides(pixels.resolution)),
        "input": list(sides(card.architecture.resolution)),
        "channels": card.architecture.channels,
        "mean": list(pixels.mean),
        "std": list(pixels.std),
    }


def describe(model: Any, about: Mapping[str, Any]) -> None:
    """Write class names and preprocessing into the metadata of a model, as JSON texts."""
    del model.metadata_props[:]
    for key in sorted(about):
        model.metadata_props.add(key=key, value=json.dumps(about[key], ensure_ascii=False))


def with_weights(skeleton_bytes: bytes, tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Append float32 weights to a skeleton and return a whole ONNX file.

    Args:
        skeleton_bytes: The file of the skeleton.
        tensors: The weights by their names in the state dict.
    """
    return skeleton_bytes + b"".join(_appended(tensors))


def _appended(tensors: Mapping[str, NDArray[Any]]) -> Iterator[bytes]:
    body = b""
    for name, array in tensors.items():
        body += _field(5, _tensor(name, array.shape, array.astype("<f4").tobytes()))
    yield _field(7, body)


def _tensor(name: str, shape: Sequence[int], raw: bytes) -> bytes:
    dims = b"".join(b"\x08" + _varint(side) for side in shape)
    return dims + b"\x10" + _varint(FLOAT) + _field(8, name.encode()) + _field(9, raw)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    made = bytearray()
    while True:
        number, low = number >> 7, number & 127
        made.append(low | (128 if number else 0))
        if not number:
            return bytes(made)


def float_arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]]:
    """Return the floating-point tensors of a state dict as arrays; integer constants are not part of a graph."""
    return {name: value.float().numpy() for name, value in tensors.items() if value.is_floating_point()}
