"""Check ONNX graphs that somebody else made, before a runtime opens them; and complete a graph by its weights.

A graph may use the operators that the exporter writes and no others. It has no functions, no graphs inside of it, and
no data outside of itself but within ``tensors.safetensors``. Unknown fields are refused.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbasis_edge.protobuf import BYTES, VARINT, FormatError, field, fields, integers, varint
from pflbed.errors import InputError

OPERATORS = frozenset({
    "Abs", "Add", "And", "AveragePool", "BatchNormalization", "Cast", "Clip", "Concat", "Conv", "ConvTranspose",
    "Div", "Elu", "Equal", "Erf", "Exp", "Expand", "Gather", "Gemm", "GlobalAveragePool", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log",
    "LogSoftmax", "MatMul", "Max", "MaxPool", "Min", "Mul", "Neg", "Not", "Or", "Pad", "Pow", "Reciprocal",
    "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape", "Shape", "Sigmoid", "Sign", "Size",
    "Slice", "Softmax", "Softplus", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where",
})  # fmt: skip
"""What a graph may compute with."""
SIZES = {1: 4, 2: 1, 3: 1, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 16: 2}
"""Bytes of a number by its type in ONNX: float, uint8, int8, int32, int64, bool, float16, double, bfloat16."""
MAX_NODES = 200_000
MAX_INLINE = 4 * 2**20
"""Bytes of all constants in a graph."""
MAX_ELEMENTS = 2**28
"""Elements of a tensor that is expanded to a constant shape."""
FLOAT, INT64 = 1, 7

MODEL = {1, 2, 3, 4, 5, 6, 7, 8, 14}
GRAPH = {1, 2, 5, 10, 11, 12, 13}
NODE = {1, 2, 3, 4, 5, 6, 7}
ATTRIBUTE = {1, 2, 3, 4, 5, 7, 8, 9, 13, 20}
TENSOR = {1, 2, 4, 5, 7, 8, 9, 10, 12, 13, 14}
"""The fields that messages of these kinds may have, by their numbers in ONNX."""
DATA = {4, 5, 7, 9, 10}
"""The fields of a tensor that hold its numbers."""


def check_graph(data: bytes, name: str, external: str, size: int, inline: int = MAX_INLINE) -> None:
    """Refuse a graph that is not of the kind that is exported.

    Args:
        data: The file.
        name: What errors call it.
        external: The file that may hold its constants.
        size: Bytes of that file.
        inline: Bytes that constants in the graph itself may have.
    """
    try:
        _Check(external, size, inline).model(memoryview(data))
    except FormatError as error:
        raise InputError(f"{name} must be an exported ONNX graph, but {error}; get the bundle again.") from error


class _Check:
    def __init__(self, external: str, size: int, inline: int) -> None:
        self._external, self._size, self._limit = external, size, inline
        self._nodes = self._inline = 0
        self._elements: dict[str, float] = {}
        self._expanded: list[str] = []

    def model(self, data: memoryview) -> None:
        graphs = 0
        for number, kind, value in _known(data, MODEL, "model"):
            if number == 7:
                graphs += 1
                self._graph(_bytes(kind, value))
            elif number == 8:
                for inner, inner_kind, domain in fields(_bytes(kind, value)):
                    if inner == 1 and len(_bytes(inner_kind, domain)):
                        raise FormatError(f"it uses operators of '{_text(inner_kind, domain)}'")
        if not graphs:
            raise FormatError("it holds no graph")
        if any(self._elements.get(name, 0) > MAX_ELEMENTS for name in self._expanded):
            raise FormatError("a shape is too large")

    def _graph(self, data: memoryview) -> None:
        for number, kind, value in _known(data, GRAPH, "graph"):
            if number == 1:
                self._node(_bytes(kind, value))
            elif number == 5:
                self._tensor(_bytes(kind, value))

    def _node(self, data: memoryview) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise FormatError(f"it has more than {MAX_NODES:,} nodes")
        operator, inputs = "", list[str]()
        for number, kind, value in _known(data, NODE, "node"):
            if number == 4:
                operator = _text(kind, value)
            elif number == 7 and len(_bytes(kind, value)):
                raise FormatError(f"it uses operators of '{_text(kind, value)}'")
            elif number == 5:
                for inner, inner_kind, content in _known(_bytes(kind, value), ATTRIBUTE, "attribute"):
                    if inner == 5:
                        self._tensor(_bytes(inner_kind, content))
            elif number == 1:
                inputs.append(_text(kind, value))
        if operator not in OPERATORS:
            raise FormatError(f"it uses the operator '{operator}'")
        if operator == "Expand":
            self._expanded += inputs[1:2]

    def _tensor(self, data: memoryview) -> None:
        found = list(_known(data, TENSOR, "tensor"))
        dims = [side for number, kind, value in found if number == 1 for side in integers(kind, value)]
        dtype = next((value for number, _, value in reversed(found) if number == 2), 0)
        location = next((value for number, _, value in reversed(found) if number == 14), 0)
        entries = dict(_entry(_bytes(kind, value)) for number, kind, value in found if number == 13)
        if dtype not in SIZES:
            raise FormatError(f"a constant has type {dtype}")
        if len(dims) > 8 or any(side < 0 for side in dims):
            raise FormatError("a constant has no shape")
        count = prod(dims)
        if location == 1:
            self._outside(entries, SIZES[dtype] * count)
            return
        if location or entries:
            raise FormatError("a constant is in an unknown place")
        self._inline += sum(8 if isinstance(value, int) else len(value) for number, _, value in found if number in DATA)
        if self._inline > self._limit or count > self._limit:
            raise FormatError(f"its constants have more than {self._limit:,} bytes")
        if dtype == INT64:
            raw = b"".join(_bytes(kind, value) for number, kind, value in found if number == 9)
            sides = np.frombuffer(raw[: len(raw) // 8 * 8], "<i8").astype(np.float64)
            name = next((_text(kind, value) for number, kind, value in found if number == 8), "")
            self._elements[name] = float(np.prod(np.maximum(np.abs(sides), 1)))

    def _outside(self, entries: Mapping[str, str], wanted: int) -> None:
        if set(entries) != {"location", "offset", "length"} or entries["location"] != self._external:
            raise FormatError(f"it refers to data outside of {self._external}")
        if not (entries["offset"].isdecimal() and entries["length"].isdecimal()):
            raise FormatError("the place of a constant is no number")
        offset, length = int(entries["offset"][:20]), int(entries["length"][:20])
        if length != wanted or offset + length > self._size:
            raise FormatError(f"a constant is not within {self._external}")


def _known(data: memoryview, numbers: set[int], what: str) -> Any:
    for number, kind, value in fields(data):
        if number not in numbers:
            raise FormatError(f"a {what} has the unknown field {number}")
        yield number, kind, value


def _bytes(kind: int, value: int | memoryview) -> memoryview:
    if kind != BYTES or isinstance(value, int):
        raise FormatError("a field has the wrong kind")
    return value


def _text(kind: int, value: int | memoryview) -> str:
    return bytes(_bytes(kind, value)[:100]).decode("utf-8", errors="replace")


def _entry(data: memoryview) -> tuple[str, str]:
    made = {number: _text(kind, value) for number, kind, value in fields(data) if kind != VARINT}
    return made.get(1, ""), made.get(2, "")


def with_weights(skeleton: bytes, tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Append float32 weights to a graph that lacks them, and return a whole ONNX file.

    Of two messages that follow one another, protocol buffers make one; so the weights are a second message.
    """
    body = b"".join(field(5, _weights(name, array)) for name, array in tensors.items())
    return skeleton + field(7, body)


def _weights(name: str, array: NDArray[Any]) -> bytes:
    dims = b"".join(b"\x08" + varint(side) for side in array.shape)
    return dims + b"\x10" + varint(FLOAT) + field(8, name.encode()) + field(9, array.astype("<f4").tobytes())
