"""The bases of a graph as external data: its constants point into the published ``tensors.safetensors``.

So a graph holds no weights, and the numbers are on disk once. The file must be beside the graph.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedbasis.edge.packages import onnx
from fedbasis.edge.translate import type_number
from fedbasis.serving.artifact import TENSORS
from fedbasis.tensors.blocks import LayoutEntry
from fedbasis.tensors.files import TensorPlace, read_places


def point_into(
    model: Any, folder: Path, matrices: Sequence[tuple[str, Sequence[LayoutEntry]]], groups: Sequence[str]
) -> None:
    """Replace inputs of a graph by constants that are in the file of the published tensors.

    Args:
        model: The ``onnx.ModelProto``; it is changed.
        folder: The published folder.
        matrices: Names of the inputs, each with the tensors that a row of it consists of.
        groups: The groups of the file, one per row.
    """
    places = read_places(folder / TENSORS)
    graph, helper = model.graph, onnx().helper
    names = {name for name, _ in matrices}
    kept = [one for one in graph.input if one.name not in names]
    del graph.input[:]
    graph.input.extend(kept)
    before = []
    for name, entries in matrices:
        rows = []
        for number, group in enumerate(groups):
            parts = [f"{group}/{entry.name}" for entry in entries]
            for part, entry in zip(parts, entries, strict=True):
                graph.initializer.append(_external(part, [1, entry.stop - entry.start], places[part]))
            rows.append(f"{name}_row_{number}")
            before.append(helper.make_node("Concat", parts, [rows[-1]], axis=1))
        before.append(helper.make_node("Concat", rows, [name], axis=0))
    after = list(graph.node)
    del graph.node[:]
    graph.node.extend([*before, *after])


def _external(name: str, dims: Sequence[int], place: TensorPlace) -> Any:
    tensor = onnx().TensorProto(name=name, data_type=type_number(torch.float32), dims=dims)
    assert place.dtype == torch.float32
    assert place.stop - place.start == 4 * dims[0] * dims[1]
    tensor.data_location = onnx().TensorProto.EXTERNAL
    for key, value in (("location", TENSORS), ("offset", place.start), ("length", place.stop - place.start)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
