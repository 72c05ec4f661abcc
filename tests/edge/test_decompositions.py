"""Every decomposition is the operator's own backward pass (or forward pass), by autograd in float64."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedbasis.edge import decompositions as own
from fedbasis.edge.decompositions import aten

GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64).requires_grad_()


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    y = function(*inputs)
    gy = torch.randn(y.shape, generator=GENERATOR, dtype=torch.float64)
    return y.detach(), gy, torch.autograd.grad(y, inputs, gy)


def require_close(got: Sequence[Any], expected: Sequence[Any]) -> None:
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


CONVOLUTIONS = [
    # inputs, outputs, groups, kernel, stride, padding, dilation
    (3, 4, 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    (4, 6, 2, (3, 2), (2, 1), (1, 0), (1, 1)),
    (4, 4, 4, (5, 5), (2, 2), (0, 0), (1, 1)),  # depthwise, some pixels in no window
    (4, 8, 4, (3, 3), (1, 2), (1, 2), (1, 1)),  # depthwise with a multiplier
    (3, 5, 1, (1, 1), (2, 2), (0, 0), (1, 1)),
    (2, 3, 1, (3, 3), (1, 1), (2, 2), (2, 2)),
    (4, 4, 2, (3, 3), (3, 2), (1, 1), (2, 1)),
    (3, 4, 1, (7, 7), (2, 2), (3, 3), (1, 1)),
]


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("transposed", [False, True])
def test_convolution_backward(case: tuple[Any, ...], transposed: bool) -> None:
    inputs, outputs, groups, kernel, stride, padding, dilation = case
    x = random(3, inputs, 11, 12)
    w = random(*((inputs, outputs // groups) if transposed else (outputs, inputs // groups)), *kernel)
    b = random(outputs)

    def convolve(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        if transposed:
            return F.conv_transpose2d(x, w, b, stride, padding, 0, groups, dilation)
        return F.conv2d(x, w, b, stride, padding, dilation, groups)

    _, gy, expected = gradients(convolve, x, w, b)
    mask = [True, True, True]
    got = own.convolution_backward(gy, x, w, list(b.shape), stride, padding, dilation, transposed, (0, 0), groups, mask)
    require_close(got, expected)
    none = own.convolution_backward(gy, x, w, None, stride, padding, dilation, transposed, (0, 0), groups, [False] * 3)
    assert none == (None, None, None)


def test_convolutions_of_other_dimensions_have_no_decomposition() -> None:
    x, w = torch.zeros(1, 2, 5), torch.zeros(3, 2, 3)
    made = own.convolution_backward(torch.zeros(1, 3, 3), x, w, None, (1,), (0,), (1,), False, (0,), 1, [True] * 3)
    assert made is NotImplemented


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [
        ((2, 2), (2, 2), (0, 0)),
        ((3, 3), (2, 2), (1, 1)),
        ((3, 2), (1, 2), (1, 0)),
        ((2, 2), (3, 3), (0, 0)),
        ((2, 2), [], (1, 1)),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_max_pool_backward(kernel: Any, stride: Any, padding: Any, tied: bool) -> None:
    x = random(2, 3, 9, 10)
    if tied:  # as after ReLU: the first of equal values gets the gradient
        x = x.detach().clamp_min(0).requires_grad_()
    _, gy, (expected,) = gradients(lambda x: F.max_pool2d(x, kernel, stride or None, padding), x)
    got = own.max_pool_backward(gy, x, kernel, stride, padding, (1, 1), False, torch.zeros(0))
    require_close([got], [expected])
    assert own.max_pool_backward(gy, x, kernel, stride, padding, (2, 2), False, torch.zeros(0)) is NotImplemented


def test_average_pool_backward() -> None:
    x = random(2, 3, 9, 10)
    _, gy, (expected,) = gradients(lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0)), x)
    require_close([own.average_pool_backward(gy, x, (3, 2), (2, 1), (1, 0), False, True, None)], [expected])


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(affine: bool, training: bool) -> None:
    x, mean, var = random(4, 3, 5, 6), random(3).detach(), random(3).detach().square() + 0.1
    given = [random(3), random(3)] if affine else []
    w, b = given if affine else (None, None)
    after = mean.clone(), var.clone()

    def normalize(x: Tensor, w: Tensor | None = None, b: Tensor | None = None) -> Tensor:
        return F.batch_norm(x, *after, w, b, training, 0.3, 1e-5)

    y, gy, expected = gradients(normalize, x, *given)
    got, m, inverse, new_mean, new_var = own.batch_norm(x, w, b, mean, var, training, 0.3, 1e-5)
    require_close([got, new_mean, new_var], [y, *after] if training else [y, mean, var])
    of = own.batch_norm_backward(gy, x, w, mean, var, m, inverse, training, 1e-5, [True, affine, affine])
    require_close([one for one in of if one is not None], expected)
    if training:
        require_close(own.batch_norm_without_statistics(x, w, b, True, 0.1, 1e-5), [got, m, inverse])


def test_group_and_layer_norm() -> None:
    x, w, b = random(4, 6, 5, 5), random(6), random(6)
    require_close(own.group_norm(x, w, b, 4, 6, 25, 3, 1e-5), aten.native_group_norm(x, w, b, 4, 6, 25, 3, 1e-5))
    w, b = random(5), random(5)
    require_close(own.layer_norm(x, [5], w, b, 1e-5), aten.native_layer_norm(x, [5], w, b, 1e-5))
