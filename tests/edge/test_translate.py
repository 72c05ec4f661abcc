"""Operators of user networks: those with a form in ONNX, and refusals by name."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbasis.edge.capture import capture
from fedbasis.edge.packages import session
from fedbasis.edge.translate import translate
from pflbed.errors import InputError


def require_same(function: Callable[[Tensor], Tensor], *shape: int) -> None:
    """The function and its gradient, captured with one batch and run with another."""

    def both(x: Tensor) -> list[Tensor]:
        gradient, value = torch.func.grad_and_value(lambda x: function(x).square().mean())(x)
        return [value, gradient]

    graph = capture(both, [torch.zeros(4, *shape)], [True])
    model = translate(graph, ["x"], ["value", "gradient"], "both", [True])
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(0))
    made = session(model.SerializeToString()).run(None, {"x": x.numpy()})
    for got, expected in zip(made, both(x), strict=True):
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-6)


def test_layers_of_user_networks() -> None:
    def function(x: Tensor) -> Tensor:
        x = (
            nn.functional.silu(nn.functional.gelu(x))
            + nn.functional.leaky_relu(x, 0.1)
            - torch.tanh(x).clamp(-0.5, 0.5)
        )
        x = nn.functional.relu6(nn.functional.elu(x) * 8, inplace=True) * torch.sigmoid(x).flip(2)
        x = nn.functional.avg_pool2d(nn.functional.layer_norm(x, [6]), 2)
        return torch.cat([x.flatten(1), x.amax((2, 3)), nn.functional.hardswish(x).mean((2, 3))], 1).softmax(1)

    require_same(function, 3, 6, 6)


def test_an_operator_without_a_form_is_refused_by_its_name() -> None:
    graph = capture(lambda x: [torch.fft.rfft(x).abs()], [torch.zeros(4, 8)], [True])
    with pytest.raises(InputError, match=r"there is none of 'aten\.[a-z_0-9.]*fft"):
        translate(graph, ["x"], ["y"], "y", [True])


def test_what_cannot_be_traced_is_refused() -> None:
    with pytest.raises(InputError, match="that torch can trace with a batch of any size"):
        capture(lambda x: [x * 2 if float(x.sum()) > 0 else x], [torch.zeros(4, 3)], [True])
