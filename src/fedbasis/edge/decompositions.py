"""Backward passes written with forward operators, so that a graph of them runs where there is no training runtime.

``table`` is torch's own table of decompositions and the ones below, which torch does not have. They are plain torch
functions with the signatures of the operators they replace, and are tested against autograd in float64.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Sizes = Sequence[int]


def windows(x: Tensor, kernel: Sizes, stride: Sizes, dilation: Sizes, size: Sizes) -> list[Tensor]:
    """Return, for every place of a kernel, the values of ``x`` [.., H, W] that it meets: [.., *size] each."""
    (dh, dw), (sh, sw), (ho, wo) = dilation, stride, size
    return [
        x[:, :, i * dh : i * dh + sh * (ho - 1) + 1 : sh, j * dw : j * dw + sw * (wo - 1) + 1 : sw]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]


def convolution_backward(
    gy: Tensor, x: Tensor, w: Tensor, bias_sizes: Sizes | None, stride: Sizes, padding: Sizes, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Return the gradients of input, weights and bias of a 2-d convolution, or NotImplemented for other ones."""
    if x.dim() != 4:
        return NotImplemented
    stride, padding, dilation = (_pair(value) for value in (stride, padding, dilation))
    gx = gw = None
    if mask[0]:
        gx = _input_gradient(gy, x, w, stride, padding, dilation, transposed, groups)
    if mask[1] and transposed:  # the same bilinear map, with the roles of input and output exchanged
        gw = _weight_gradient(x, gy, w, stride, padding, dilation, groups)
    elif mask[1]:
        gw = _weight_gradient(gy, x, w, stride, padding, dilation, groups)
    return gx, gw, gy.sum((0, 2, 3)) if mask[2] else None


def _input_gradient(
    gy: Tensor, x: Tensor, w: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, transposed: bool, groups: int
) -> Tensor:
    if transposed:
        return _convolution(gy, w, stride, padding, dilation, False, (0, 0), groups)
    kernel = w.shape[2:]
    beyond = [
        (size + 2 * p - d * (k - 1) - 1) % s
        for size, p, d, k, s in zip(x.shape[2:], padding, dilation, kernel, stride, strict=True)
    ]
    return _convolution(gy, w, stride, padding, dilation, True, beyond, groups)


def _weight_gradient(
    gy: Tensor, x: Tensor, w: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Tensor:
    """One matrix product of the output's gradient with the windows of the input; for every group by itself."""
    kernel, size = w.shape[2:], gy.shape[2:]
    if any(padding):
        x = aten.constant_pad_nd(x, [padding[1], padding[1], padding[0], padding[0]], 0.0)
    if groups == x.shape[1] == gy.shape[1]:  # every channel by itself: products of numbers, none of matrices
        parts = [(gy * part).sum((0, 2, 3)) for part in windows(x, kernel, stride, dilation, size)]
        return torch.stack(parts, 1).reshape(w.shape)
    inputs, outputs = x.shape[1] // groups, gy.shape[1] // groups
    parts = windows(x.transpose(0, 1), kernel, stride, dilation, size)
    if groups == 1:
        columns = torch.cat(parts, 0).reshape(len(parts) * inputs, -1)
        product = gy.transpose(0, 1).reshape(outputs, -1).mm(columns.t())
        return product.reshape(outputs, *kernel, inputs).permute(0, 3, 1, 2)
    columns = torch.stack(parts, 1).reshape(groups, inputs * len(parts), -1)
    product = gy.transpose(0, 1).reshape(groups, outputs, -1).bmm(columns.transpose(1, 2))
    return product.reshape(groups * outputs, inputs, *kernel)


def _convolution(
    x: Tensor, w: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, transposed: bool, beyond: Sizes, groups: int
) -> Tensor:
    made: Tensor = aten.convolution(x, w, None, stride, padding, dilation, transposed, beyond, groups)
    return made


def max_pool_backward(
    gy: Tensor, x: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil: bool, indices: Tensor
) -> Any:
    """Send every window's gradient to its first largest value, as torch does, without indices and scattering."""
    if x.dim() != 4 or ceil:
        return NotImplemented
    kernel, padding, dilation = _pair(kernel), _pair(padding), _pair(dilation)
    stride = _pair(stride) if stride else kernel
    if set(dilation) != {1}:
        return NotImplemented
    n, c, height, width = x.shape
    (kh, kw), (sh, sw), (ph, pw), (ho, wo) = kernel, stride, padding, gy.shape[2:]
    if ph or pw:
        x = aten.constant_pad_nd(x, [pw, pw, ph, ph], float("-inf"))
    parts = windows(x, kernel, stride, dilation, (ho, wo))
    largest = reduce(torch.maximum, parts)
    # A place (i, j) of the kernel belongs to the phase (i mod stride, j mod stride) of the pixels: what falls on one
    # phase is summed, then the phases are interleaved. A stride above the kernel leaves phases without any place.
    more_h, more_w = (kh - 1) // sh, (kw - 1) // sw
    phases: dict[tuple[int, int], Tensor] = {}
    free: Tensor | None = None
    for place, part in enumerate(parts):
        i, j = divmod(place, kw)
        hit = part == largest
        first = hit if free is None else hit & free
        free = ~hit if free is None else free & ~hit
        g = torch.where(first, gy, torch.zeros((), dtype=gy.dtype))
        if more_h or more_w:
            g = aten.constant_pad_nd(g, [j // sw, more_w - j // sw, i // sh, more_h - i // sh], 0.0)
        phase = i % sh, j % sw
        phases[phase] = g if phase not in phases else phases[phase] + g
    zero = next(iter(phases.values())) * 0.0 if len(phases) < sh * sw else None
    rows = [torch.stack([phases.get((i, j), zero) for j in range(sw)], -1) for i in range(sh)]  # type: ignore[misc]
    whole = torch.stack(rows, 3).reshape(n, c, (ho + more_h) * sh, (wo + more_w) * sw)
    missing = max(0, ph + height - whole.shape[2]), max(0, pw + width - whole.shape[3])
    if any(missing):
        whole = aten.constant_pad_nd(whole, [0, missing[1], 0, missing[0]], 0.0)
    return whole[:, :, ph : ph + height, pw : pw + width]


def average_pool_backward(
    gy: Tensor, x: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, ceil: bool, with_padding: bool,
    divisor: int | None,
) -> Any:  # fmt: skip
    """Spread every window's gradient evenly: a transposed convolution of every channel by itself."""
    kernel, padding = _pair(kernel), _pair(padding)
    stride = _pair(stride) if stride else kernel
    if x.dim() != 4 or ceil or (any(padding) and not with_padding):
        return NotImplemented
    channels = x.shape[1]
    share = gy.new_full((channels, 1, *kernel), 1 / (divisor or kernel[0] * kernel[1]))
    return _input_gradient(gy, x, share, stride, padding, (1, 1), False, channels)


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, training: bool, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    """Normalize by the batch and move the running statistics.

    ONNX's operator in training mode keeps a biased running variance, torch an unbiased one; and few runtimes have it.
    """
    if not training:
        return *aten._native_batch_norm_legit_no_training(x, weight, bias, mean, var, momentum, eps), mean, var
    y, m, v, inverse = _normalized(x, weight, bias, eps)
    count = x.numel() // x.shape[1]
    unbiased = v * (count / (count - 1))
    return y, m, inverse, mean + momentum * (m - mean), var + momentum * (unbiased - var)


def batch_norm_without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    """Normalize by the batch; there are no running statistics."""
    y, m, _, inverse = _normalized(x, weight, bias, eps)
    return y, m, inverse


def _normalized(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the normalized batch, its mean and biased variance, and one divided by the deviation, per channel."""
    over = [d for d in range(x.dim()) if d != 1]
    m = x.mean(over, keepdim=True)
    centred = x - m
    v = (centred * centred).mean(over, keepdim=True)
    inverse = torch.rsqrt(v + eps)
    scale = inverse if weight is None else inverse * _channels(weight, x)
    y = centred * scale
    y = y if bias is None else y + _channels(bias, x)
    return y, m.reshape(-1), v.reshape(-1), inverse.reshape(-1)


def batch_norm_backward(
    gy: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    mean: Tensor | None, inverse: Tensor | None, training: bool, eps: float, mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Return the gradients of input, weight and bias, for batch statistics (training) and for frozen ones."""
    over = [d for d in range(x.dim()) if d != 1]
    if not training:
        assert running_mean is not None
        assert running_var is not None
        mean, inverse = running_mean, torch.rsqrt(running_var + eps)
    assert mean is not None
    assert inverse is not None
    centred = x - _channels(mean, x)
    gb, gw = gy.sum(over), (gy * centred).sum(over) * inverse
    scale = inverse if weight is None else weight * inverse
    gx = gy * _channels(scale, x)
    if training:  # numbers per channel are multiplied first: every product with a whole batch takes time
        count = x.numel() // x.shape[1]
        gx = gx - centred * _channels(scale * inverse * gw / count, x) - _channels(scale * gb / count, x)
    return gx, gw if mask[1] else None, gb if mask[2] else None


def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, pixels: int, groups: int, eps: float
) -> Any:
    """Normalize every group of channels of every image; returns its mean and one divided by the deviation too."""
    rows = x.reshape(x.shape[0], groups, -1)
    m = rows.mean(2, keepdim=True)
    centred = rows - m
    inverse = torch.rsqrt((centred * centred).mean(2, keepdim=True) + eps)
    y = (centred * inverse).reshape(x.shape)
    y = y if weight is None else y * _channels(weight, x)
    y = y if bias is None else y + _channels(bias, x)
    return y, m.reshape(x.shape[0], groups), inverse.reshape(x.shape[0], groups)


def layer_norm(x: Tensor, shape: Sizes, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    """Normalize over the last dimensions; returns mean and one divided by the deviation too."""
    over = list(range(x.dim() - len(shape), x.dim()))
    m = x.mean(over, keepdim=True)
    centred = x - m
    inverse = torch.rsqrt((centred * centred).mean(over, keepdim=True) + eps)
    y = centred * inverse
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, m, inverse


def _channels(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


def _pair(value: Sizes) -> tuple[int, int]:
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])


OWN: dict[Any, Callable[..., Any]] = {
    aten.convolution_backward.default: convolution_backward,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
    aten.avg_pool2d_backward.default: average_pool_backward,
    aten._native_batch_norm_legit_functional.default: batch_norm,
    aten._native_batch_norm_legit.no_stats: batch_norm_without_statistics,
    aten.native_batch_norm_backward.default: batch_norm_backward,
    aten.native_group_norm.default: group_norm,
    aten.native_layer_norm.default: layer_norm,
}


@lru_cache(maxsize=1)
def table() -> dict[Any, Callable[..., Any]]:
    """Return all decompositions by operator."""
    from torch._decomp import core_aten_decompositions

    return {**dict(core_aten_decompositions()), **OWN}
