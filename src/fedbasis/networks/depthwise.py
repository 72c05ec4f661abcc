"""Depthwise convolutions of small maps on a CPU: the gradient of their weights, one place of the kernel at a time.

torch's CPU library has no fast kernel for it. With a batch of 16, 1,152 channels, maps of 3 x 3 and kernels of 5 x 5 it
took 18 ms, where the convolution took 0.3 ms and the gradient of its inputs 0.4 ms: nearly half of a training step of
the upper blocks of EfficientNet-Lite0. Here it takes 2.4 ms. Other sizes and devices use torch's own.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_input
from torch.overrides import handle_torch_function, has_torch_function

FAST_KERNEL = 3
"""Up to this size torch has a fast kernel."""
SMALL = 36
"""Pixels of an output: above it, torch's own gradient is no slower."""


def depthwise_conv2d(x: Tensor, weight: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """Convolve every channel by itself.

    As ``functional.conv2d`` with as many groups as channels, gradients included, but for their rounding. Kernel, stride
    and padding are square.
    """
    if has_torch_function((x, weight)):
        replaced: Tensor = handle_torch_function(depthwise_conv2d, (x, weight), x, weight, stride, padding)
        return replaced
    kernel = weight.shape[2]
    if x.device.type == "cpu" and kernel > FAST_KERNEL and torch.is_grad_enabled() and weight.requires_grad:
        height, width = ((size + 2 * padding - kernel) // stride + 1 for size in x.shape[2:])
        if height * width <= SMALL:
            convolved: Tensor = _Depthwise.apply(x, weight, stride, padding)  # type: ignore[no-untyped-call]
            return convolved
    return functional.conv2d(x, weight, None, stride, padding, 1, len(weight))


class _Depthwise(torch.autograd.Function):
    """``functional.conv2d`` with another gradient of the weights."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        """Convolve."""
        return functional.conv2d(x, weight, None, stride, padding, 1, len(weight))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, int], output: Tensor) -> None:
        """Keep what the gradients need."""
        x, weight, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """Return the gradients of the inputs and of the weights."""
        (gradient,), (x, weight) = gradients, ctx.saved_tensors
        inputs, weights = None, None
        if ctx.needs_input_grad[0]:
            inputs = conv2d_input(  # type: ignore[no-untyped-call]
                x.shape, weight, gradient, ctx.stride, ctx.padding, 1, len(weight)
            )
        if ctx.needs_input_grad[1]:
            weights = _gradient_of_weights(x, gradient, weight.shape[2], ctx.stride, ctx.padding).view_as(weight)
        return inputs, weights, None, None


def _gradient_of_weights(x: Tensor, gradient: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Sum, for every place of the kernel, the products of the input's and the output's pixels that meet there."""
    x, gradient = x.permute(0, 2, 3, 1), gradient.permute(0, 2, 3, 1)  # channels last: their memory is contiguous
    lines = [_meeting(place, x.shape[1], gradient.shape[1], stride, padding) for place in range(kernel)]
    columns = [_meeting(place, x.shape[2], gradient.shape[2], stride, padding) for place in range(kernel)]
    sums = [
        (gradient[:, made, across] * x[:, read, over]).sum((0, 1, 2))
        for made, read in lines
        for across, over in columns
    ]
    return torch.stack(sums, 1)


def _meeting(place: int, size: int, made: int, stride: int, padding: int) -> tuple[slice, slice]:
    """Return which of ``made`` outputs read an input at this place of the kernel, and which of ``size`` inputs.

    Both are empty if none does.
    """
    first = max(0, -((place - padding) // stride))
    end = max(first, min(made, (size - 1 + padding - place) // stride + 1))
    start = first * stride + place - padding
    return slice(first, end), slice(start, max(start, start + (end - first - 1) * stride + 1), stride)
