"""Depthwise convolutions with a weight gradient of their own are those of torch, in value and in every derivative."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap
from torch.nn import functional

from fedbasis.networks import depthwise
from fedbasis.networks.depthwise import depthwise_conv2d
from fedbasis.networks.efficientnet import EfficientNetLite0

SIZES = [(1, 1), (3, 3), (4, 6), (9, 9)]


def images(*shape: int, last: bool = False) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return made.contiguous(memory_format=torch.channels_last) if last else made


def by_torch(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    return functional.conv2d(x, weight, None, stride, padding, 1, len(weight))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [
        (size, kernel, stride, padding)
        for size, kernel, stride, padding in itertools.product(SIZES, [4, 5, 7], [1, 2, 3], [0, 1, 2, 4])
        if min(size) + 2 * padding >= kernel
    ],
)  # fmt: skip
def test_value_and_gradients_are_those_of_torch(
    size: tuple[int, int], kernel: int, stride: int, padding: int, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depthwise, "SMALL", 10_000)
    x, weight = images(3, 4, *size, last=last).requires_grad_(), images(4, 1, kernel, kernel).requires_grad_()
    mine, theirs = depthwise_conv2d(x, weight, stride, padding), by_torch(x, weight, stride, padding)
    assert "Depthwise" in type(mine.grad_fn).__name__
    assert torch.equal(mine, theirs)
    direction = torch.randn_like(mine)
    for a, b in zip(
        torch.autograd.grad(mine, (x, weight), direction),
        torch.autograd.grad(theirs, (x, weight), direction),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_first_and_second_derivatives_are_right() -> None:
    x, weight = images(2, 2, 3, 3).requires_grad_(), images(2, 1, 5, 5).requires_grad_()
    assert gradcheck(lambda x, weight: depthwise_conv2d(x, weight, 1, 2), (x, weight))
    assert gradgradcheck(lambda x, weight: depthwise_conv2d(x, weight, 1, 2), (x, weight))


def test_only_gradients_that_are_asked_for_are_computed() -> None:
    x, weight = images(2, 2, 3, 3), images(2, 1, 5, 5).requires_grad_()
    (gradient,) = torch.autograd.grad(depthwise_conv2d(x, weight, 1, 2).sum(), weight)
    assert gradient.shape == weight.shape
    frozen = depthwise_conv2d(x.requires_grad_(), weight.detach(), 1, 2)
    assert "Depthwise" not in type(frozen.grad_fn).__name__


@pytest.mark.parametrize(("kernel", "size"), [(3, 3), (5, 7)])
def test_small_kernels_and_large_maps_are_left_to_torch(kernel: int, size: int) -> None:
    made = depthwise_conv2d(images(2, 2, size, size), images(2, 1, kernel, kernel).requires_grad_(), 1, kernel // 2)
    assert type(made.grad_fn).__name__ == "ConvolutionBackward0"


def test_torch_func_goes_through_it() -> None:
    x, weights = images(2, 3, 3, 3), images(4, 3, 1, 5, 5)

    def loss(weight: Tensor) -> Tensor:
        return depthwise_conv2d(x, weight, 1, 2).square().sum()

    def plain(weight: Tensor) -> Tensor:
        return by_torch(x, weight, 1, 2).square().sum()

    torch.testing.assert_close(vmap(grad(loss))(weights), torch.stack([grad(plain)(one) for one in weights]))


def test_a_network_has_the_gradients_of_plain_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    module = EfficientNetLite0(3, channels=112, first_block=11).double().train()
    x, weights = images(2, 112, 6, 6), dict(module.named_parameters())

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(module(x).square().sum(), list(weights.values()))

    mine = gradients()
    monkeypatch.setattr(depthwise, "SMALL", 0)
    for name, found, expected in zip(weights, mine, gradients(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10, msg=name)
