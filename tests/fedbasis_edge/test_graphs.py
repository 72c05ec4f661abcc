"""Graphs that are not of the exported kind are refused by what is wrong with them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from fedbasis_edge.graphs import MAX_INLINE, OPERATORS, check_graph, with_weights
from fedbasis_edge.protobuf import FormatError, field, fields, integers, varint
from pflbed.errors import InputError

NAME = "tensors.safetensors"


def external(offset: Any = 8, length: Any = 8, location: str = NAME) -> onnx.TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def model(
    *nodes: onnx.NodeProto, initializers: tuple[onnx.TensorProto, ...] = (), domain: str = "", **rest: Any
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(list(nodes) or [helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, 18)], ir_version=9, **rest)


def inner() -> onnx.NodeProto:
    branch = helper.make_graph([], "inside", [], [])
    return helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)


def disguised() -> onnx.NodeProto:
    node = helper.make_node("Relu", ["x"], ["y"])
    node.attribute.append(helper.make_attribute("body", helper.make_graph([], "inside", [], [])))
    return node


def function() -> onnx.ModelProto:
    made = model()
    made.functions.add(name="f", domain="own")
    return made


def training() -> onnx.ModelProto:
    made = model()
    made.training_info.add()
    return made


def test_what_is_exported_passes() -> None:
    made = model(helper.make_node("Add", ["x", "w"], ["y"]), initializers=(external(),))
    check_graph(made.SerializeToString(), "The file", NAME, 16)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model(helper.make_node("Loop", ["x"], ["y"])), "it uses the operator 'Loop'"),
        (lambda: model(helper.make_node("Relu", ["x"], ["y"], domain="com.evil")), "operators of 'com.evil'"),
        (lambda: model(domain="ai.onnx.ml"), "operators of 'ai.onnx.ml'"),
        (lambda: model(inner()), "unknown field 6"),
        (lambda: model(disguised()), "unknown field 6"),
        (function, "unknown field 25"),
        (training, "unknown field 20"),
        (lambda: model(initializers=(external(location="../secret"),)), "outside of tensors.safetensors"),
        (lambda: model(initializers=(external(location="/etc/passwd"),)), "outside of tensors.safetensors"),
        (lambda: model(initializers=(external(offset=9),)), "not within"),
        (lambda: model(initializers=(external(offset=-1),)), "no number"),
        (lambda: model(initializers=(external(length=4),)), "not within"),
        (lambda: model(initializers=(TensorProto(name="t", data_type=8, dims=[1]),)), "type 8"),
        (lambda: model(initializers=(TensorProto(name="t", data_type=1, dims=[-1]),)), "no shape"),
        (lambda: model(initializers=(TensorProto(name="t", data_type=1, dims=[2**40]),)), "more than"),
        (
            lambda: model(initializers=(helper.make_tensor("t", 1, [MAX_INLINE], bytes(4 * MAX_INLINE), raw=True),)),
            "more than",
        ),
        (
            lambda: model(
                helper.make_node("Expand", ["x", "t"], ["y"]),
                initializers=(helper.make_tensor("t", 7, [2], np.array([2**20] * 2).tobytes(), raw=True),),
            ),
            "too large",
        ),
    ],
)
def test_what_is_not_is_refused(make: Callable[[], onnx.ModelProto], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_graph(make().SerializeToString(), "The file", NAME, 16)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x07", b"\x3a\x05ab", b"\xff" * 20, b"\x3a", b"\x38\x01"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match=r"^The file must be an exported ONNX graph, but "):
        check_graph(data, "The file", NAME, 16)


def test_all_operators_are_onnx_own() -> None:
    assert {onnx.defs.has(name, 18) for name in OPERATORS} == {True}
    assert not OPERATORS & {"If", "Loop", "Scan", "SequenceMap", "Optional", "StringConcat"}


def test_weights_that_are_appended_complete_a_graph() -> None:
    lacking = model(helper.make_node("Add", ["x", "w"], ["y"])).SerializeToString()
    whole = with_weights(lacking, {"w": np.array([1.5, -2.0], dtype=np.float32)})
    onnx.checker.check_model(whole, full_check=True)
    session = onnxruntime.InferenceSession(whole, providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [2.5, -1.0]


def test_the_wire_format() -> None:
    message = field(3, b"abc") + varint(1 << 3) + varint(300) + field(200, varint(1) + varint(2**64 - 1))
    one, two, three = fields(memoryview(message))
    assert (one[0], bytes(one[2])) == (3, b"abc")
    assert two == (1, 0, 300)
    assert list(integers(three[1], three[2])) == [1, -1]
    with pytest.raises(FormatError, match="longer than"):
        list(fields(memoryview(field(3, b"abc")[:-1])))
