"""The networks: ResNets with torchvision's parameter names (so its weight files load), EfficientNet-Lite0, small CNNs,
or your own.

Your own network is a factory (or its name ``module:factory``), called with ``classes=`` and the given options, and with
``channels=`` and ``resolution=`` if it has such parameters. Or it is an ``nn.Module`` instance, whose weights are the
initial weights.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedbasis.networks.efficientnet import EfficientNetLite0
from fedbasis.networks.resolve import reference_of, resolve
from fedbasis.tensors.blocks import BlockSpec, Layout, layout_of
from fedbasis.tensors.flat import FlatModel, Precision
from fedbasis.tensors.params import Tensors
from fedbasis.tensors.seeding import seeded_globally
from pflbed.errors import InputError
from pflbed.images import Resolution

NETWORKS = "fedbasis.networks"
"""The group of entry points by which a package offers networks."""
NetworkSource = str | Callable[..., nn.Module] | nn.Module
"""A network as users give it: its name, a factory, or an ``nn.Module``."""


MAX_WIDTH = 4096
"""Channels of the first stage of a built-in network."""


def sides(resolution: Resolution) -> tuple[int, int]:
    """Return height and width."""
    return (resolution, resolution) if isinstance(resolution, int) else (resolution[0], resolution[1])


def _norm(kind: str, width: int) -> nn.Module:
    makers: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm2d(width),
        "group": lambda: nn.GroupNorm(math.gcd(8, width), width),
        "none": nn.Identity,
    }
    if not isinstance(kind, str) or kind not in makers:
        raise InputError(f"'norm' must be one of {', '.join(makers)}, but it is '{kind}'.")
    return makers[kind]()


def _require_width(width: int) -> int:
    if type(width) is not int or not 1 <= width <= MAX_WIDTH:
        raise InputError(f"'width' must be a whole number from 1 to {MAX_WIDTH}, but it is {width!r}.")
    return width


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = _norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = _norm(norm, outputs)
        self.relu = nn.ReLU(inplace=True)
        changed = stride != 1 or inputs != outputs
        self.downsample = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(norm, outputs)) if changed else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + shortcut)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A ResNet of basic blocks.

    Args:
        depths: Blocks per stage.
        width: Channels of the first stage.
        classes: The number of outputs.
        stem: The first convolution: "imagenet" (7x7, stride 2) or "small" (3x3, stride 1).
        norm: Normalization layers: "batch", "group" or "none".
        channels: Channels of an image.
    """

    blocks: ClassVar[dict[str, tuple[str, ...]]] = {
        "layer1": ("conv1", "bn1", "layer1"),
        "layer2": ("layer2",),
        "layer3": ("layer3",),
        "layer4": ("layer4",),
        "fc": ("fc",),
    }

    def __init__(
        self, depths: tuple[int, ...], width: int, classes: int, stem: str, norm: str = "batch", channels: int = 3
    ) -> None:
        super().__init__()
        if stem not in ("imagenet", "small"):
            raise InputError(f"'stem' must be imagenet or small, but it is '{stem}'.")
        _require_width(width)
        large = stem == "imagenet"
        self.conv1 = nn.Conv2d(channels, width, 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.bn1 = _norm(norm, width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.MaxPool2d(2)
        inputs = width
        for stage, depth in enumerate(depths):
            outputs = width * 2**stage
            layers = [
                BasicBlock(inputs if i == 0 else outputs, outputs, 2 if stage and i == 0 else 1, norm)
                for i in range(depth)
            ]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
            inputs = outputs
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))  # type: ignore[no-any-return]


def _stage(inputs: int, outputs: int, kernel: int, norm: str) -> nn.Sequential:
    """Convolution, normalization, ReLU, pooling by two."""
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=norm == "none")
    return nn.Sequential(convolution, _norm(norm, outputs), nn.ReLU(inplace=True), nn.MaxPool2d(2))


class ConvNet(nn.Module):
    """A plain CNN: one stage per width, an optional hidden layer, a classifier.

    Args:
        widths: Channels of every stage.
        kernel: Size of the convolutions.
        hidden: Width of the hidden layer; 0: none.
        classes: The number of outputs.
        resolution: Pixels of a square image, or (height, width).
        norm: Normalization layers: "batch", "group" or "none".
        channels: Channels of an image.
    """

    def __init__(
        self, widths: tuple[int, ...], kernel: int, hidden: int, classes: int, resolution: Resolution, norm: str,
        channels: int = 3,
    ) -> None:  # fmt: skip
        super().__init__()
        for stage, (inputs, outputs) in enumerate(pairwise((channels, *widths)), start=1):
            self.add_module(f"conv{stage}", _stage(inputs, outputs, kernel, norm))
        height, width = (side // 2 ** len(widths) for side in sides(resolution))
        features = widths[-1] * height * width
        self.flatten = nn.Flatten()
        if hidden:
            self.hidden = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(inplace=True))
        self.fc = nn.Linear(hidden or features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        for stage in self.children():
            x = stage(x)
        return x


class CollinsNet(nn.Module):
    """The CNN of Collins et al. 2021 on CIFAR: two unpadded 5x5 convolutions and three linear layers.

    As in their public code (lgcollins/FedRep, models/Nets.py). Every convolution is followed by ReLU and pooling by
    two; dropout is between the second linear layer and the classifier.

    Args:
        widths: Channels of the two convolutions.
        hidden: Widths of the two hidden layers.
        dropout: The share of the last hidden layer that is set to zero in training.
        classes: The number of outputs.
        resolution: Pixels of a square image, or (height, width).
        channels: Channels of an image.
    """

    def __init__(
        self, widths: tuple[int, int], hidden: tuple[int, int], dropout: float, classes: int, resolution: Resolution,
        channels: int = 3,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(channels, widths[0], 5), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.conv2 = nn.Sequential(nn.Conv2d(widths[0], widths[1], 5), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        height, width = (((side - 4) // 2 - 4) // 2 for side in sides(resolution))
        self.flatten = nn.Flatten()
        self.fc1 = nn.Sequential(nn.Linear(widths[1] * height * width, hidden[0]), nn.ReLU(inplace=True))
        self.fc2 = nn.Sequential(nn.Linear(*hidden), nn.ReLU(inplace=True), nn.Dropout(dropout))
        self.fc3 = nn.Linear(hidden[1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        for stage in self.children():
            x = stage(x)
        return x


def _resnet18(
    classes: int,
    resolution: Resolution,
    width: int = 64,
    stem: str = "imagenet",
    norm: str = "batch",
    channels: int = 3,
) -> nn.Module:
    return ResNet((2, 2, 2, 2), width, classes, stem, norm, channels)


def _resnet10(
    classes: int, resolution: Resolution, width: int = 16, stem: str = "small", norm: str = "batch", channels: int = 3
) -> nn.Module:
    return ResNet((1, 1, 1, 1), width, classes, stem, norm, channels)


def _cnn(classes: int, resolution: Resolution, norm: str = "none", channels: int = 3) -> nn.Module:
    return ConvNet((32, 64), 5, 512, classes, resolution, norm, channels)


def _cnn_small(
    classes: int, resolution: Resolution, width: int = 16, norm: str = "batch", channels: int = 3
) -> nn.Module:
    _require_width(width)
    return ConvNet((width, 2 * width, 4 * width), 3, 0, classes, resolution, norm, channels)


def _collins_cifar10(classes: int, resolution: Resolution, dropout: float = 0.0, channels: int = 3) -> nn.Module:
    return CollinsNet((64, 64), (120, 64), dropout, classes, resolution, channels)


def _collins_cifar100(classes: int, resolution: Resolution, dropout: float = 0.6, channels: int = 3) -> nn.Module:
    return CollinsNet((64, 128), (256, 128), dropout, classes, resolution, channels)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": _resnet18,
    "resnet10": _resnet10,
    "cnn": _cnn,
    "cnn-small": _cnn_small,
    "collins-cifar10": _collins_cifar10,
    "collins-cifar100": _collins_cifar100,
    "efficientnet-lite0": EfficientNetLite0,
}


@dataclass(frozen=True)
class Network:
    """An architecture with its classes, input shape and options: everything that is needed to build it.

    Args:
        name: One of ``MODELS``, or ``"module:factory"``.
        classes: The number of outputs.
        resolution: Pixels of a square image, or (height, width).
        options: Passed to the factory, such as ``width`` or ``norm``.
        blocks: 1 (the whole network is one block), a mapping of block names to parameter-name prefixes, or None (the
            network's ``blocks`` attribute, else its top-level children).
        channels: Channels of an image.
        source: The factory or ``nn.Module`` itself, if it was given as an object.
        precision: Of the arithmetic of training steps.
        channels_last: Whether working models store the weights of convolutions in the order in which GPUs read them.

    Example:
        >>> Network("cnn-small", classes=10, resolution=28, channels=1).build()(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    name: str
    classes: int
    resolution: Resolution
    options: Mapping[str, Any] = field(default_factory=dict)
    blocks: BlockSpec = None
    channels: int = 3
    source: Callable[..., nn.Module] | nn.Module | None = field(default=None, repr=False, compare=False)
    precision: Precision = field(default="float32", compare=False)
    channels_last: bool = field(default=False, compare=False)

    @classmethod
    def of(
        cls, source: NetworkSource, classes: int, shape: tuple[int, int, int], blocks: BlockSpec = None, **options: Any
    ) -> "Network":
        """Make a network from a name, a factory or a module, for images of (height, width, channels)."""
        height, width, channels = shape
        resolution = height if height == width else (height, width)
        name, given = (source, None) if isinstance(source, str) else (reference_of(source), source)
        return cls(name, classes, resolution, options, blocks, channels, given)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an input."""
        return (self.channels, *sides(self.resolution))

    @property
    def _built_in(self) -> bool:
        """Whether the module is made anew by every call of ``build``; a user's factory may return the same again."""
        return self.source is None and self.name in MODELS

    def build(self, seed: int = 0) -> nn.Module:
        """Build the module; its initial weights depend on the seed only, and global generators are not changed."""
        factory = self._factory()
        with seeded_globally(seed, "initial weights", self.name):
            try:
                module = _redrawn(factory) if isinstance(factory, nn.Module) else factory(**self._arguments(factory))
            except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
                if isinstance(error, InputError):
                    raise
                raise InputError(f"The network '{self.name}' does not take these options: {error}.") from error
        if not isinstance(module, nn.Module):
            raise InputError(f"The factory '{self.name}' must return a torch nn.Module, but returned {type(module)}.")
        return module

    def skeleton(self, device: str = "meta") -> nn.Module:
        """Build the module without initial weights, and by default without memory for them, to compare shapes."""
        if self._built_in:
            with torch.device(device), _Uninitialized():
                return self.build()
        return self.build()  # a user's own code need not know that device

    def given_weights(self) -> Tensors | None:
        """Return the weights of a module that was given as an instance; None for networks with random weights."""
        factory = self._factory()
        if not isinstance(factory, nn.Module):
            return None
        return FlatModel(factory, self.layout(factory)).tensors()

    def check(self) -> None:
        """Run two black images through the network; an error if it does not fit the data's shape and classes."""
        wanted = (2, self.classes)
        try:
            with torch.no_grad():
                got = tuple(self.build().eval()(torch.zeros(2, *self.input_shape)).shape)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            reason = str(error).splitlines()[0]
            channels, height, width = self.input_shape
            raise InputError(
                f"The network '{self.name}' must take images of {height} x {width} pixels and {channels} channels, "
                f"but it does not: {reason}."
            ) from error
        if got != wanted:
            raise InputError(f"The network '{self.name}' must turn 2 images into {wanted} logits, but it gave {got}.")

    def layout(self, module: nn.Module) -> Layout:
        """Return the layout of the module by this network's blocks."""
        return layout_of(module, self.blocks, channels_last=self.channels_last)

    def workspace(self, device: torch.device | str = "cpu") -> FlatModel:
        """Return a working model, to load parameters and statistics into."""
        module = self.build()
        layout = self.layout(module)
        return FlatModel(module, layout, device, copy=not self._built_in, precision=self.precision)

    def initial(self, seed: int) -> Tensors:
        """Return randomly initialized parameters and statistics."""
        module = self.build(seed)
        return FlatModel(module, self.layout(module), copy=not self._built_in).tensors()

    def __getstate__(self) -> dict[str, Any]:
        """Include a factory that is defined in the user's script: other processes do not import that script."""
        return {**vars(self), "source": self._factory()} if self.name.startswith("__main__:") else vars(self)

    def _arguments(self, factory: Callable[..., Any]) -> dict[str, Any]:
        """Return the arguments of a factory; resolution and channels only if it has such parameters."""
        shapes = {"resolution": self.resolution, "channels": self.channels}
        try:
            parameters = set(inspect.signature(factory).parameters)
        except (TypeError, ValueError):  # a built-in callable
            parameters = set()
        if self.source is None and self.name in MODELS and (unknown := self.options.keys() - parameters):
            known = ", ".join(sorted(parameters - {"classes", *shapes}))
            wrong = ", ".join(sorted(unknown))
            raise InputError(f"The network '{self.name}' does not take these options: {wrong}; it takes {known}.")
        return {"classes": self.classes, **{key: shapes[key] for key in shapes if key in parameters}, **self.options}

    def _factory(self) -> Callable[..., nn.Module] | nn.Module:
        if self.source is not None:
            return self.source
        factory: Callable[..., nn.Module] | nn.Module = resolve(self.name, MODELS, NETWORKS, "network")
        return factory


class _Uninitialized(TorchFunctionMode):
    """Leave out random initialization: on the meta device it draws nothing, but makes torch import its compiler."""

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the tensor of a function such as ``normal_`` as it is."""
        given = kwargs or {}
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "trunc_normal_"):
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def _redrawn(module: nn.Module) -> nn.Module:
    """Copy a module and initialize the weights of every layer that has ``reset_parameters``."""
    fresh = deepcopy(module)
    for layer in fresh.modules():
        if callable(reset := getattr(layer, "reset_parameters", None)):
            reset()
    return fresh


def classifier_of(module: nn.Module) -> str:
    """Return the name of the classifier: the module's ``classifier_name`` if it is set, else its last linear layer."""
    named = getattr(module, "classifier_name", None)
    if isinstance(named, str):
        return named
    linear = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    if not linear:
        raise InputError(f"{type(module).__name__} has no linear layer to serve as classifier; set 'classifier_name'.")
    return str(linear[-1])


def normalization_of(module: nn.Module) -> list[str]:
    """Return the names of the normalization layers' parameters and float buffers (batch, group, layer, instance)."""
    kinds = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
    return [
        f"{name}.{inner}" if name else inner
        for name, child in module.named_modules()
        if isinstance(child, kinds)
        for inner, tensor in (*child.named_parameters(recurse=False), *child.named_buffers(recurse=False))
        if tensor.is_floating_point()
    ]
