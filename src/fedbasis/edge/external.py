"""The bases of a graph as external data: its constants point into the published ``tensors.safetensors``.

So a graph holds no weights, and the numbers are on disk once. The file must be beside the graph. Coded bases
(``tensors.compact``) are decoded by operators of the graph, which a runtime computes once, when it opens it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedbasis.edge.packages import onnx
from fedbasis.edge.translate import type_number
from fedbasis.serving.artifact import TENSORS
from fedbasis.tensors.blocks import LayoutEntry
from fedbasis.tensors.compact import CODES, MEAN, OFFSETS, REFERENCE, SCALES, VECTORS, bits_of, packed_shape
from fedbasis.tensors.files import TensorPlace, read_places
from pflbed.errors import InputError

Matrices = Sequence[tuple[str, Sequence[LayoutEntry]]]


def point_into(model: Any, folder: Path, matrices: Matrices, groups: Sequence[str]) -> None:
    """Replace inputs of a graph by constants that are in the file of the published tensors.

    Args:
        model: The ``onnx.ModelProto``; it is changed.
        folder: The published folder.
        matrices: Names of the inputs, each with the tensors that a row of it consists of.
        groups: The groups of the file, one per row.
    """
    graph, names = model.graph, {name for name, _ in matrices}
    kept = [one for one in graph.input if one.name not in names]
    del graph.input[:]
    graph.input.extend(kept)
    reading = Reading(read_places(folder / TENSORS))
    for name, entries in matrices:
        rows = [
            reading.emit("Concat", [reading.row(group, entry) for entry in entries], f"{name}_row_{i}", axis=1)
            for i, group in enumerate(groups)
        ]
        reading.emit("Concat", rows, name, axis=0)
    after = list(graph.node)
    del graph.node[:]
    graph.node.extend([*reading.nodes, *after])
    graph.initializer.extend(reading.initializers)


@dataclass
class Reading:
    """The part of a graph that reads the bases, while it is made."""

    places: dict[str, TensorPlace]
    nodes: list[Any] = field(default_factory=list)
    initializers: list[Any] = field(default_factory=list)
    _made: dict[str, str] = field(default_factory=dict)

    def row(self, group: str, entry: LayoutEntry) -> str:
        """Return the name of a tensor of a basis, as float32 [1, numbers]."""
        count = entry.stop - entry.start
        if (plain := f"{group}/{entry.name}") in self.places:
            if (dtype := self.places[plain].dtype) != torch.float32:
                raise InputError(f"The edge export needs bases in float32, but '{plain}' is {dtype}; convert them.")
            return self.external(plain, [1, count])
        return self.emit("Reshape", [self._decoded(group, entry), self.integers([1, count])])

    def _decoded(self, group: str, entry: LayoutEntry) -> str:
        """Return the name of a tensor of a coded basis, with the arithmetic of ``tensors.compact.decode``."""
        near = self._reference(entry)
        if f"{REFERENCE}{group}/{entry.name}" in self.places:
            return near
        if len(entry.shape) <= 1:
            key = f"{VECTORS}{group}/{entry.name}"
            half = self._float(self.external(key, entry.shape))
            return half if self.places[key].dtype == torch.bfloat16 else self.emit("Add", [near, half])
        codes = self._float(self._codes(f"{CODES}{group}/{entry.name}", entry))
        channels = [entry.shape[0], *[1] * (len(entry.shape) - 1)]
        scales = self.external(f"{SCALES}{group}/{entry.name}", channels)
        return self.emit("Add", [self.emit("Mul", [codes, scales]), near])

    def _reference(self, entry: LayoutEntry) -> str:
        if entry.name not in self._made:
            (key,) = (k for k in self.places if k == f"{MEAN}/{entry.name}" or _is_reference(k, entry.name))
            name = self.external(key, entry.shape)
            self._made[entry.name] = name if self.places[key].dtype == torch.float32 else self._float(name)
        return self._made[entry.name]

    def _codes(self, key: str, entry: LayoutEntry) -> str:
        bits = bits_of(self.places[key])
        held = packed_shape(entry.shape, bits)
        if bits == 8:
            return self.external(key, held)
        planes = 1 if bits == 4 else 3  # of numbers of 4 bits, or of 1 bit
        shifts = [2**shift for shift in range(0, 8, bits if planes == 1 else 1)]
        size = self.integers([16 if planes == 1 else 2], torch.int32)
        held_as = self._cast(self.external(key, [planes, held[-1], 1]), torch.int32)
        shifted = self.emit("Div", [held_as, self.integers(shifts, torch.int32)])
        parts = self.emit("Sub", [shifted, self.emit("Mul", [self.emit("Div", [shifted, size]), size])])
        rows = self.emit("Reshape", [parts, self.integers([planes, -1])])
        flat = rows if planes == 1 else self._sum_of_planes(rows)
        flat = self.emit("Reshape", [flat, self.integers([-1])])
        kept = self.emit("Slice", [flat, self.integers([0]), self.integers([entry.stop - entry.start])])
        codes = self.emit("Sub", [kept, self.integers([OFFSETS[bits]], torch.int32)])
        return self.emit("Reshape", [codes, self.integers(entry.shape)])

    def _sum_of_planes(self, rows: str) -> str:
        """Return plane 0 + 2 plane 1 + 4 plane 2."""
        total = ""
        for plane in range(3):
            one = self.emit("Slice", [rows, self.integers([plane]), self.integers([plane + 1]), self.integers([0])])
            part = self.emit("Mul", [one, self.integers([2**plane], torch.int32)])
            total = part if not plane else self.emit("Add", [total, part])
        return total

    def _float(self, name: str) -> str:
        return self._cast(name, torch.float32)

    def _cast(self, name: str, dtype: torch.dtype) -> str:
        return self.emit("Cast", [name], to=type_number(dtype))

    def emit(self, kind: str, inputs: Sequence[str], name: str | None = None, **attributes: Any) -> str:
        """Append a node and return the name of its output."""
        made = name or f"b{len(self.nodes)}"
        self.nodes.append(onnx().helper.make_node(kind, list(inputs), [made], **attributes))
        return made

    def integers(self, values: Sequence[int], dtype: torch.dtype = torch.int64) -> str:
        """Return the name of a constant vector of integers."""
        name = f"i{dtype.itemsize}_{'_'.join(map(str, values))}"
        if name not in self._made:
            self._made[name] = name
            self.initializers.append(
                onnx().TensorProto(
                    name=name, data_type=type_number(dtype), dims=[len(values)],
                    raw_data=torch.tensor(list(values), dtype=dtype).numpy().tobytes(),
                )
            )  # fmt: skip
        return name

    def external(self, key: str, dims: Sequence[int]) -> str:
        """Return the name of a constant that is in the file."""
        place = self.places[key]
        if key not in self._made:
            self._made[key] = key
            tensor = onnx().TensorProto(name=key, data_type=type_number(place.dtype), dims=dims)
            assert torch.Size(dims).numel() * place.dtype.itemsize == place.stop - place.start
            tensor.data_location = onnx().TensorProto.EXTERNAL
            for name, value in (("location", TENSORS), ("offset", place.start), ("length", place.stop - place.start)):
                tensor.external_data.add(key=name, value=str(value))
            self.initializers.append(tensor)
        return key


def _is_reference(key: str, name: str) -> bool:
    return key.startswith(REFERENCE) and key.rpartition("/")[2] == name
