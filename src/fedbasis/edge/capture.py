"""Capture a function of tensors as a graph of forward operators, with a batch of any size.

The function may call ``torch.func.grad``: the backward pass becomes part of the graph. This uses torch's tracing tools
(``make_fx``, ``functionalize``, fake tensors), which no version of torch promises to keep; all of them are here.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedbasis.edge.decompositions import table
from fedbasis.networks.depthwise import depthwise_conv2d
from pflbed.errors import InputError

BATCH = 4
"""Images of the example batch; the graph does not depend on it."""


def _mean_pool(x: Tensor, output_size: Any) -> Tensor:
    if output_size in (1, (1, 1), [1, 1]):
        return x.mean((-2, -1), keepdim=True)
    return torch._C._nn.adaptive_avg_pool2d(x, output_size)


SAME: dict[Any, Callable[..., Tensor]] = {
    functional.adaptive_avg_pool2d: _mean_pool,
    depthwise_conv2d: lambda x, weight, stride, padding: functional.conv2d(
        x, weight, None, stride, padding, 1, len(weight)
    ),
    functional.silu: lambda x, **_: x * torch.sigmoid(x),
    functional.mish: lambda x, **_: x * torch.tanh(functional.softplus(x)),
}
"""Functions whose backward pass cannot be traced with a batch of any size, by others that can."""


class TraceableCalls(TorchFunctionMode):
    """Replace functions that cannot be traced: those in ``SAME``, and some that work in place."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in SAME:
            return SAME[func](*args, **given)
        return func(*args, **({**given, "inplace": False} if given.get("inplace") else given))


def capture(function: Callable[..., Any], arguments: Sequence[Any], batched: Sequence[bool]) -> fx.GraphModule:
    """Trace a function of tensors (or lists of them) into a graph of forward operators.

    Args:
        function: The function; it may compute gradients and change tensors in place.
        arguments: Example arguments.
        batched: Which arguments have the batch as their first dimension.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def fake(value: Any, batch: bool) -> Any:
        if not isinstance(value, Tensor):
            return [fake(one, batch) for one in value]
        free = [DimDynamic.DYNAMIC if batch and i == 0 else DimDynamic.STATIC for i in range(value.dim())]
        return mode.from_tensor(value, symbolic_context=StatelessSymbolicContext(dynamic_sizes=free))

    fakes = [fake(value, batch) for value, batch in zip(arguments, batched, strict=True)]
    plain = functionalize(lambda *values: function(*values), remove="mutations")  # noqa: PLW0108 (make_fx counts self)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's tracer warns of its own deprecated parts
        with TraceableCalls(), enable_python_dispatcher():  # else the batch is taken to be that of the example
            try:
                graph = make_fx(plain, table(), _allow_non_fake_inputs=True)(*fakes)
            except InputError:
                raise
            except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError) as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise InputError(
                    "An export to ONNX needs a network that torch can trace with a batch of any size, but it cannot: "
                    f"{reason:.300}"
                ) from error
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph
