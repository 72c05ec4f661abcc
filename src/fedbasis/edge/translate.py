"""Translate a captured graph of torch's forward operators to ONNX.

One function per operator, and nothing else: no optimizer changes the graph, so that the same graph gives the same
bytes. Only operators of the standard opset are used, without control flow. Sizes are constants but for the batch.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from fedbasis.edge.packages import onnx
from pflbed.errors import InputError

aten = torch.ops.aten
OPSET = 18
IR_VERSION = 9
"""Of ONNX 1.14, which has this opset; newer ones are refused by older runtimes."""
TYPES = {
    torch.float32: "FLOAT", torch.float64: "DOUBLE", torch.int64: "INT64", torch.int32: "INT32", torch.uint8: "UINT8",
    torch.int8: "INT8", torch.bool: "BOOL", torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16",
}  # fmt: skip
LAST = 2**63 - 1
OperatorForm = Callable[..., str | tuple[str, ...]]
HANDLERS: dict[Any, OperatorForm] = {}


def type_number(dtype: torch.dtype) -> int:
    """Return ONNX's number of a type."""
    return int(getattr(onnx().TensorProto, TYPES[dtype]))


def translate(
    graph: fx.GraphModule, inputs: Sequence[str], outputs: Sequence[str], name: str, batched: Sequence[bool]
) -> Any:
    """Translate a graph to an ONNX model.

    Args:
        graph: What ``capture`` returned.
        inputs: Names of its inputs, in their order.
        outputs: Names of its outputs.
        name: The name of the ONNX graph.
        batched: Which inputs have the batch as their first dimension.

    Returns:
        An ``onnx.ModelProto``.
    """
    work = Translation(graph)
    work.run(inputs)
    helper = onnx().helper
    for source, wanted in zip(work.results, outputs, strict=True):
        work.emit("Identity", [source], name=wanted)
    values = [node for node in graph.graph.nodes if node.op == "placeholder"]
    typed_inputs = [
        helper.make_tensor_value_info(name, type_number(node.meta["val"].dtype), _dims(node.meta["val"].shape, batch))
        for name, node, batch in zip(inputs, values, batched, strict=True)
    ]
    (last,) = (node for node in graph.graph.nodes if node.op == "output")
    made = last.args[0] if isinstance(last.args[0], (list, tuple)) else [last.args[0]]
    typed_outputs = [
        helper.make_tensor_value_info(name, type_number(node.meta["val"].dtype), _dims(node.meta["val"].shape, True))
        for name, node in zip(outputs, made, strict=True)
    ]
    body = helper.make_graph(work.nodes, name, typed_inputs, typed_outputs, work.initializers)
    return helper.make_model(
        body,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="fedbasis",
    )


def _dims(shape: Sequence[int], batch: bool) -> list[int | str]:
    return ["batch" if batch and not isinstance(side, int) else int(side) for side in shape]


@dataclass
class Translation:
    """A graph while it is translated: nodes, constants, and the names of values."""

    graph: fx.GraphModule
    nodes: list[Any] = field(default_factory=list)
    initializers: list[Any] = field(default_factory=list)
    values: dict[fx.Node, str | tuple[str, ...]] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)
    views: dict[str, fx.Node] = field(default_factory=dict)
    """What was reshaped, by the name of the result."""
    _known: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _constants: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)

    def run(self, inputs: Sequence[str]) -> None:
        """Translate node after node."""
        names = iter(inputs)
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = next(names)
            elif node.op == "get_attr":
                self.values[node] = self.constant(getattr(self.graph, str(node.target)))
            elif node.op == "output":
                made = node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
                self.results = [str(self.values[one]) for one in made]
            else:
                self.values[node] = handler_of(node.target)(self, node, *node.args, **node.kwargs)

    def emit(self, kind: str, inputs: Sequence[str], count: int = 1, name: str | None = None, **attributes: Any) -> str:
        """Append a node and return the name of its first output; the others have ``_1``, ``_2`` ... after it.

        A node that is there already is used again.
        """
        key = (kind, tuple(inputs), count, repr(sorted(attributes.items())))
        if name is None and key in self._known:
            return self._known[key]
        first = name or f"v{len(self.nodes)}"
        self._known[key] = first
        outputs = [first, *(f"{first}_{i}" for i in range(1, count))]
        self.nodes.append(onnx().helper.make_node(kind, list(inputs), outputs, **attributes))
        return first

    def constant(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """Return the name of a constant; equal ones are stored once."""
        tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype)
        tensor = tensor.to(dtype) if dtype is not None else tensor
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        key = (TYPES[tensor.dtype], tuple(tensor.shape), raw)
        if key not in self._constants:
            self._constants[key] = name = f"k{len(self._constants)}"
            self.initializers.append(
                onnx().TensorProto(name=name, data_type=type_number(tensor.dtype), dims=key[1], raw_data=raw)
            )
        return self._constants[key]

    def one(self, node: Any) -> str:
        """Return the name of a value that is one tensor."""
        found = self.values[node]
        assert isinstance(found, str)
        return found

    def given(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """Return the name of an argument: a tensor, a size that depends on the batch, or a number; cast if needed."""
        if not isinstance(value, fx.Node):
            return self.constant(value, dtype)
        name = self.one(value)
        if dtype is not None and dtype_of(value) != dtype:
            return self.emit("Cast", [name], to=type_number(dtype))
        return name

    def shape(self, sides: Sequence[Any]) -> str:
        """Return the name of a shape as an int64 vector; at most one side that depends on the batch is computed."""
        if not any(isinstance(side, fx.Node) for side in sides):
            return self.constant([int(side) for side in sides], torch.int64)
        one = self.constant([1], torch.int64)
        parts = [
            self.emit("Reshape", [self.one(side), one])
            if isinstance(side, fx.Node)
            else self.constant([int(side)], torch.int64)
            for side in sides
        ]
        return self.emit("Concat", parts, axis=0)

    def axes(self, dims: Sequence[int]) -> str:
        """Return the name of a list of dimensions."""
        return self.constant(list(dims), torch.int64)


def dtype_of(value: Any) -> torch.dtype:
    """Return the type of an argument's value."""
    found = value.meta["val"] if isinstance(value, fx.Node) else value
    if isinstance(found, Tensor):
        return found.dtype
    if isinstance(found, (bool, torch.SymBool)):
        return torch.bool
    return torch.int64 if isinstance(found, (int, torch.SymInt)) else torch.float32


def handler_of(target: Any) -> OperatorForm:
    """Return the translation of an operator; an error by its name if there is none."""
    if target in HANDLERS:
        return HANDLERS[target]
    raise InputError(
        f"An export to ONNX needs a form of every operator, but there is none of '{target}', which this network uses; "
        "replace the layer that needs it."
    )


def handles(*targets: Any) -> Callable[[OperatorForm], OperatorForm]:
    """Register a translation for operators."""

    def register(handler: OperatorForm) -> OperatorForm:
        HANDLERS.update(dict.fromkeys(targets, handler))
        return handler

    return register


# --- numbers, one by one ---------------------------------------------------------------------------------------------


def _result(node: fx.Node) -> torch.dtype:
    return dtype_of(node)


def _promoted(a: Any, b: Any) -> torch.dtype:
    values = [x.meta["val"] if isinstance(x, fx.Node) else x for x in (a, b)]
    tensors = [value for value in values if isinstance(value, Tensor)]
    if len(tensors) == 2:
        return torch.promote_types(tensors[0].dtype, tensors[1].dtype)
    if tensors and (
        tensors[0].dtype.is_floating_point or not any(isinstance(v, (float, torch.SymFloat)) for v in values)
    ):
        return tensors[0].dtype
    return torch.float32 if any(isinstance(v, (float, torch.SymFloat)) for v in values) else torch.int64


def _binary(kind: str) -> OperatorForm:
    def translate_binary(work: Translation, node: fx.Node, a: Any, b: Any, alpha: Any = 1) -> str:
        dtype = _result(node)
        second = work.given(b, dtype)
        if alpha != 1:
            second = work.emit("Mul", [second, work.given(alpha, dtype)])
        return work.emit(kind, [work.given(a, dtype), second])

    return translate_binary


def _unary(kind: str) -> OperatorForm:
    def translate_unary(work: Translation, node: fx.Node, x: Any) -> str:
        return work.emit(kind, [work.given(x, _result(node))])

    return translate_unary


def _comparison(kind: str, negated: bool = False) -> OperatorForm:
    def translate_comparison(work: Translation, node: fx.Node, a: Any, b: Any) -> str:
        dtype = _promoted(a, b)
        made = work.emit(kind, [work.given(a, dtype), work.given(b, dtype)])
        return work.emit("Not", [made]) if negated else made

    return translate_comparison


for _kind, _targets in {
    "Add": (aten.add.Tensor, aten.add.Scalar, operator.add),
    "Sub": (aten.sub.Tensor, aten.sub.Scalar, operator.sub),
    "Mul": (aten.mul.Tensor, aten.mul.Scalar, operator.mul),
    "Div": (aten.div.Tensor, aten.div.Scalar, operator.truediv),
    "Max": (aten.maximum.default,),
    "Min": (aten.minimum.default,),
    "Pow": (aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar, operator.pow),
    "And": (aten.logical_and.default, aten.bitwise_and.Tensor),
    "Or": (aten.logical_or.default, aten.bitwise_or.Tensor),
}.items():
    handles(*_targets)(_binary(_kind))
for _kind, _targets in {
    "Neg": (aten.neg.default, operator.neg), "Exp": (aten.exp.default,), "Log": (aten.log.default,),
    "Sqrt": (aten.sqrt.default,), "Reciprocal": (aten.reciprocal.default,), "Sigmoid": (aten.sigmoid.default,),
    "Tanh": (aten.tanh.default,), "Relu": (aten.relu.default,), "Erf": (aten.erf.default,), "Abs": (aten.abs.default,),
    "Sign": (aten.sign.default,), "Not": (aten.logical_not.default, aten.bitwise_not.default),
}.items():  # fmt: skip
    handles(*_targets)(_unary(_kind))
for _kind, _targets in {
    "Equal": (aten.eq.Tensor, aten.eq.Scalar), "Less": (aten.lt.Tensor, aten.lt.Scalar),
    "LessOrEqual": (aten.le.Tensor, aten.le.Scalar), "Greater": (aten.gt.Tensor, aten.gt.Scalar),
    "GreaterOrEqual": (aten.ge.Tensor, aten.ge.Scalar),
}.items():  # fmt: skip
    handles(*_targets)(_comparison(_kind))
handles(aten.ne.Tensor, aten.ne.Scalar)(_comparison("Equal", negated=True))


@handles(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)
def _same(work: Translation, node: fx.Node, x: Any, **_: Any) -> str:
    return work.one(x)


@handles(torch.sym_float)
def _as_float(work: Translation, node: fx.Node, x: Any) -> str:
    return work.given(x, torch.float32)


@handles(operator.floordiv)
def _floor_division(work: Translation, node: fx.Node, a: Any, b: Any) -> str:
    return work.emit("Div", [work.given(a, torch.int64), work.given(b, torch.int64)])  # sizes are not negative


@handles(aten.rsqrt.default)
def _rsqrt(work: Translation, node: fx.Node, x: Any) -> str:
    return work.emit("Reciprocal", [work.emit("Sqrt", [work.one(x)])])


@handles(aten.log1p.default)
def _log1p(work: Translation, node: fx.Node, x: Any) -> str:
    return work.emit("Log", [work.emit("Add", [work.one(x), work.constant(1.0, _result(node))])])


@handles(aten.where.self)
def _where(work: Translation, node: fx.Node, condition: Any, a: Any, b: Any) -> str:
    dtype = _result(node)
    return work.emit("Where", [work.one(condition), work.given(a, dtype), work.given(b, dtype)])


@handles(aten.clamp.default, aten.hardtanh.default)
def _clamp(work: Translation, node: fx.Node, x: Any, low: Any = None, high: Any = None, **kw: Any) -> str:
    if node.target is aten.hardtanh.default:
        low, high = -1.0 if low is None else low, 1.0 if high is None else high
    low, high, dtype = kw.get("min", low), kw.get("max", high), _result(node)
    bounds = ["" if bound is None else work.given(bound, dtype) for bound in (low, high)]
    return work.emit("Clip", [work.given(x, dtype), *bounds])


@handles(aten.clamp_min.default)
def _clamp_min(work: Translation, node: fx.Node, x: Any, low: Any) -> str:
    return work.emit("Max", [work.one(x), work.given(low, _result(node))])


@handles(aten.leaky_relu.default)
def _leaky(work: Translation, node: fx.Node, x: Any, slope: float = 0.01) -> str:
    return work.emit("LeakyRelu", [work.one(x)], alpha=float(slope))


@handles(aten.elu.default)
def _elu(work: Translation, node: fx.Node, x: Any, alpha: float = 1.0, scale: float = 1.0, inner: float = 1.0) -> str:
    if (scale, inner) != (1, 1):
        raise InputError("The edge export knows ELU with a scale of 1 only, but this network has another, as SELU has.")
    return work.emit("Elu", [work.one(x)], alpha=float(alpha))


@handles(aten.gelu.default)
def _gelu(work: Translation, node: fx.Node, x: Any, approximate: str = "none") -> str:
    if approximate != "none":
        raise InputError("The edge export knows the exact GELU only, but this network has an approximate one.")
    dtype = _result(node)
    inner = work.emit("Erf", [work.emit("Mul", [work.one(x), work.constant(2**-0.5, dtype)])])
    half = work.emit("Mul", [work.one(x), work.constant(0.5, dtype)])
    return work.emit("Mul", [half, work.emit("Add", [inner, work.constant(1.0, dtype)])])


@handles(aten._to_copy.default, aten.to.dtype, aten._to_copy)
def _to(work: Translation, node: fx.Node, x: Any, *_: Any, **__: Any) -> str:
    return work.given(x, _result(node))


# --- sums and products -----------------------------------------------------------------------------------------------


def _reduction(kind: str) -> OperatorForm:
    def translate_reduction(
        work: Translation, node: fx.Node, x: Any, dims: Any = None, keep: bool = False, **_: Any
    ) -> str:
        source = work.given(x, _result(node))
        every = x.meta["val"].dim()
        over = list(range(every)) if dims is None or dims == [] else [dims] if isinstance(dims, int) else list(dims)
        over = sorted(d % every for d in over) if every else []
        if not over:
            return source
        return work.emit(kind, [source, work.axes(over)], keepdims=int(keep))

    return translate_reduction


handles(aten.sum.dim_IntList, aten.sum.default)(_reduction("ReduceSum"))
handles(aten.mean.dim, aten.mean.default)(_reduction("ReduceMean"))
handles(aten.amax.default)(_reduction("ReduceMax"))
handles(aten.amin.default)(_reduction("ReduceMin"))


@handles(aten._softmax.default)
def _softmax(work: Translation, node: fx.Node, x: Any, dim: int, half: bool) -> str:
    return work.emit("Softmax", [work.one(x)], axis=dim)


@handles(aten._log_softmax.default)
def _log_softmax(work: Translation, node: fx.Node, x: Any, dim: int, half: bool) -> str:
    return work.emit("LogSoftmax", [work.one(x)], axis=dim)


@handles(aten.mm.default, aten.bmm.default)
def _product(work: Translation, node: fx.Node, a: Any, b: Any) -> str:
    return work.emit("MatMul", [work.one(a), work.one(b)])


@handles(aten.addmm.default)
def _linear(work: Translation, node: fx.Node, bias: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> str:
    return work.emit("Gemm", [work.one(a), work.one(b), work.one(bias)], alpha=float(alpha), beta=float(beta))


@handles(aten.convolution.default)
def _convolution(
    work: Translation, node: fx.Node, x: Any, w: Any, bias: Any, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, beyond: Sequence[int], groups: int,
) -> str:  # fmt: skip
    kernel = [int(side) for side in w.meta["val"].shape[2:]]
    every = len(kernel)
    stride, padding, dilation = (
        list(value) * (every if len(value) == 1 else 1) for value in (stride, padding, dilation)
    )
    inputs = [work.one(x), work.one(w), *([] if bias is None else [work.one(bias)])]
    shared: dict[str, Any] = {
        "kernel_shape": kernel, "strides": stride, "dilations": dilation, "group": groups, "pads": [*padding, *padding]
    }  # fmt: skip
    if transposed:
        return work.emit("ConvTranspose", inputs, output_padding=list(beyond), **shared)
    return work.emit("Conv", inputs, **shared)


@handles(aten.max_pool2d_with_indices.default)
def _max_pool(
    work: Translation, node: fx.Node, x: Any, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0), dilation: Sequence[int] = (1, 1), ceil: bool = False,
) -> tuple[str, ...]:  # fmt: skip
    kernel, padding, dilation = (_two(value) for value in (kernel, padding, dilation))
    stride = _two(stride) if stride else kernel
    made = work.emit(
        "MaxPool", [work.one(x)], kernel_shape=kernel, strides=stride, pads=[*padding, *padding], dilations=dilation,
        ceil_mode=int(ceil),
    )  # fmt: skip
    return made, ""  # a backward pass here needs no indices


@handles(aten.avg_pool2d.default)
def _average_pool(
    work: Translation, node: fx.Node, x: Any, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0), ceil: bool = False, with_padding: bool = True, divisor: int | None = None,
) -> str:  # fmt: skip
    kernel, padding = _two(kernel), _two(padding)
    if divisor is not None:
        raise InputError("The edge export knows average pooling by the window's size, but this network divides by another number.")  # fmt: skip  # noqa: E501
    return work.emit(
        "AveragePool", [work.one(x)], kernel_shape=kernel, strides=_two(stride) if stride else kernel,
        pads=[*padding, *padding], ceil_mode=int(ceil), count_include_pad=int(with_padding),
    )  # fmt: skip


def _two(value: Sequence[int]) -> list[int]:
    return list(value) * (2 if len(value) == 1 else 1)


@handles(aten._native_batch_norm_legit_no_training.default)
def _batch_norm(
    work: Translation, node: fx.Node, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[str, ...]:
    dtype, channels = dtype_of(x), int(x.meta["val"].shape[1])
    scale = work.constant([1.0] * channels, dtype) if weight is None else work.one(weight)
    shift = work.constant([0.0] * channels, dtype) if bias is None else work.one(bias)
    made = work.emit(
        "BatchNormalization", [work.one(x), scale, shift, work.one(mean), work.one(var)], epsilon=float(eps)
    )
    return made, "", ""


# --- shapes ----------------------------------------------------------------------------------------------------------


@handles(operator.getitem)
def _item(work: Translation, node: fx.Node, values: Any, index: int) -> str:
    found = work.values[values]
    assert isinstance(found, tuple)
    return found[index]


@handles(aten.sym_size.int)
def _size(work: Translation, node: fx.Node, x: Any, dim: int) -> str:
    shape = work.emit("Shape", [work.one(x)])
    return work.emit("Gather", [shape, work.constant(dim, torch.int64)], axis=0)


@handles(aten.sym_numel.default)
def _numel(work: Translation, node: fx.Node, x: Any) -> str:
    return work.emit("Size", [work.one(x)])


@handles(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(work: Translation, node: fx.Node, x: Any, sides: Sequence[Any]) -> str:
    free = [isinstance(side, fx.Node) for side in sides]
    if sum(free) == 1 and -1 not in sides:  # the runtime finds the one that depends on the batch
        sides = [-1 if unknown else side for unknown, side in zip(free, sides, strict=True)]
    if 0 in x.meta["val"].shape:
        return work.emit("Reshape", [work.one(x), work.shape(sides)], allowzero=1)
    source = work.views.get(work.one(x), x)  # of several reshapes in a row, the last one counts
    if all(isinstance(side, int) for side in sides) and source.meta["val"].shape == node.meta["val"].shape:
        return work.one(source)
    made = work.emit("Reshape", [work.one(source), work.shape(sides)])
    work.views[made] = source
    return made


@handles(aten.permute.default)
def _permute(work: Translation, node: fx.Node, x: Any, order: Sequence[int]) -> str:
    return work.emit("Transpose", [work.one(x)], perm=[d % len(order) for d in order])


@handles(aten.t.default)
def _t(work: Translation, node: fx.Node, x: Any) -> str:
    return work.one(x) if x.meta["val"].dim() < 2 else work.emit("Transpose", [work.one(x)], perm=[1, 0])


@handles(aten.transpose.int)
def _transpose(work: Translation, node: fx.Node, x: Any, a: int, b: int) -> str:
    order = list(range(x.meta["val"].dim()))
    order[a], order[b] = order[b], order[a]
    return work.emit("Transpose", [work.one(x)], perm=order)


@handles(aten.unsqueeze.default)
def _unsqueeze(work: Translation, node: fx.Node, x: Any, dim: int) -> str:
    return work.emit("Unsqueeze", [work.one(x), work.axes([dim])])


@handles(aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(work: Translation, node: fx.Node, x: Any, dims: Any) -> str:
    shape = x.meta["val"].shape
    over = [d for d in ([dims] if isinstance(dims, int) else dims) if isinstance(shape[d], int) and shape[d] == 1]
    return work.emit("Squeeze", [work.one(x), work.axes(over)]) if over else work.one(x)


@handles(aten.expand.default)
def _expand(work: Translation, node: fx.Node, x: Any, sides: Sequence[Any], **_: Any) -> str:
    old = x.meta["val"].shape
    lead = len(sides) - len(old)
    kept: list[Any] = []
    for i, side in enumerate(sides):
        same = i >= lead and not (isinstance(old[i - lead], int) and old[i - lead] == 1)
        kept.append(1 if same or (isinstance(side, int) and side == -1) else side)  # a side of 1 takes that of x
    return work.emit("Expand", [work.one(x), work.shape(kept)])


@handles(aten.slice.Tensor)
def _slice(
    work: Translation, node: fx.Node, x: Any, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1
) -> str:
    begin, end = 0 if start is None else start, LAST if stop is None else stop
    if begin == 0 and step == 1 and isinstance(end, int) and end >= LAST:
        return work.one(x)
    bounds = [work.shape([bound]) for bound in (begin, end)]
    return work.emit("Slice", [work.one(x), *bounds, work.axes([dim]), work.axes([step])])


@handles(aten.flip.default)
def _flip(work: Translation, node: fx.Node, x: Any, dims: Sequence[int]) -> str:
    count = len(dims)
    bounds = [work.axes([-1] * count), work.axes([-LAST] * count), work.axes(dims), work.axes([-1] * count)]
    return work.emit("Slice", [work.one(x), *bounds])


@handles(aten.select.int)
def _select(work: Translation, node: fx.Node, x: Any, dim: int, index: int) -> str:
    return work.emit("Gather", [work.one(x), work.constant(index, torch.int64)], axis=dim)


@handles(aten.cat.default)
def _cat(work: Translation, node: fx.Node, parts: Sequence[Any], dim: int = 0) -> str:
    dtype = _result(node)
    return work.emit("Concat", [work.given(part, dtype) for part in parts], axis=dim)


@handles(aten.stack.default)
def _stack(work: Translation, node: fx.Node, parts: Sequence[Any], dim: int = 0) -> str:
    rows = [work.emit("Unsqueeze", [work.one(part), work.axes([dim])]) for part in parts]
    return work.emit("Concat", rows, axis=dim)


@handles(aten.split_with_sizes.default)
def _split(work: Translation, node: fx.Node, x: Any, sizes: Sequence[int], dim: int = 0) -> tuple[str, ...]:
    first = work.emit("Split", [work.one(x), work.axes([int(size) for size in sizes])], len(sizes), axis=dim)
    return (first, *(f"{first}_{i}" for i in range(1, len(sizes))))


@handles(aten.constant_pad_nd.default)
def _pad(work: Translation, node: fx.Node, x: Any, around: Sequence[int], value: float = 0.0) -> str:
    every = x.meta["val"].dim()
    before, after = [0] * every, [0] * every
    for i, (low, high) in enumerate(zip(around[0::2], around[1::2], strict=True)):
        before[every - 1 - i], after[every - 1 - i] = int(low), int(high)
    return work.emit("Pad", [work.one(x), work.axes([*before, *after]), work.given(value, _result(node))])


@handles(aten.full.default)
def _full(work: Translation, node: fx.Node, sides: Sequence[Any], value: Any, **_: Any) -> str:
    number = work.given(value, _result(node))
    return work.emit("Expand", [number, work.shape(sides)]) if sides else number


@handles(aten.full_like.default)
def _full_like(work: Translation, node: fx.Node, x: Any, value: Any, **_: Any) -> str:
    return work.emit("Expand", [work.given(value, _result(node)), work.emit("Shape", [work.one(x)])])


@handles(aten.zeros_like.default)
def _zeros_like(work: Translation, node: fx.Node, x: Any, **_: Any) -> str:
    return _full_like(work, node, x, 0)  # type: ignore[return-value]


@handles(aten.ones_like.default)
def _ones_like(work: Translation, node: fx.Node, x: Any, **_: Any) -> str:
    return _full_like(work, node, x, 1)  # type: ignore[return-value]


@handles(aten.scalar_tensor.default)
def _scalar(work: Translation, node: fx.Node, value: Any, **_: Any) -> str:
    return work.given(value, _result(node))


def operators(model: Any) -> list[str]:
    """Return the kinds of operators of an ONNX model, sorted."""
    return sorted({node.op_type for node in model.graph.node})
