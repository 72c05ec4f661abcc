"""A working copy of a network whose parameters and gradients are views into one flat vector per block.

A forward and backward pass through ``module`` then reads and writes the flat vectors directly: an optimizer step, a
combination of bases or a pull-back of the gradient is one operation per block instead of one per tensor.
"""

from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor, nn

from fedbasis.tensors.blocks import Layout
from fedbasis.tensors.params import Tensors, require_same

Precision = Literal["float32", "bf16"]
"""Of the arithmetic of training steps: float32, or bfloat16 by torch's autocast; weights are float32 in both."""


class FlatModel:
    """A copy of a network on a device, with its parameters and gradients in flat vectors.

    Args:
        skeleton: The network; it is copied and never changed.
        layout: Its layout by blocks.
        device: Where the copy is.
        copy: False if nobody else has the network: then it is used itself.
        precision: Of the arithmetic of training steps.
    """

    def __init__(
        self,
        skeleton: nn.Module,
        layout: Layout,
        device: torch.device | str = "cpu",
        *,
        copy: bool = True,
        precision: Precision = "float32",
    ) -> None:
        self.precision = precision
        self.module = (deepcopy(skeleton) if copy else skeleton).to(device)
        self.convolutional = any(len(shape) > 2 for shape in layout.shapes.values())
        """Whether it has convolutions, which are faster on inputs that are laid out pixel by pixel."""
        self.frozen_statistics = False
        """Whether training normalizes by the running statistics and leaves them as they are."""
        self.layout = layout
        blocks = range(len(layout.blocks))
        first = next(self.module.parameters())
        self.weights = [first.new_zeros(layout.size(block, True)).detach() for block in blocks]
        self.gradients = [torch.zeros_like(flat) for flat in self.weights]
        self.statistics = [first.new_zeros(layout.size(block, False)).detach() for block in blocks]
        self._constants = {
            name: buffer.clone() for name, buffer in self.module.named_buffers() if not buffer.is_floating_point()
        }
        parameters, buffers = dict(self.module.named_parameters()), dict(self.module.named_buffers())
        self._views = layout.unflatten(self.weights, self.statistics)
        for entry in layout.entries:
            view = self._views[entry.name]
            if entry.trained:
                parameter = parameters[entry.name]
                view.copy_(parameter.detach())
                parameter.data = view
                parameter.grad = entry.view(self.gradients[entry.block])
            else:
                view.copy_(buffers[entry.name])
                buffers[entry.name].data = view

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logits of a training step, as float32."""
        if self.precision == "float32":
            return self.module(inputs)  # type: ignore[no-any-return]
        with torch.autocast(inputs.device.type, torch.bfloat16):
            return self.module(inputs).float()  # type: ignore[no-any-return]

    def zero_gradients(self) -> None:
        """Clear the gradients in place, so that they stay views."""
        for gradient in self.gradients:
            gradient.zero_()

    def load(self, tensors: Tensors, where: str = "A model") -> None:
        """Replace all parameters and statistics, and reset the integer buffers."""
        require_same(tensors, self.layout.shapes, where)
        if self.weights[0].device.type == "cpu":
            for name, view in self._views.items():
                view.copy_(tensors[name])
        else:  # few large copies to another device take less time than many small ones
            flats = self.layout.flatten(tensors, True, where) + self.layout.flatten(tensors, False, where)
            for flat, value in zip(self.weights + self.statistics, flats, strict=True):
                flat.copy_(value)
        if self._constants:
            for name, buffer in self.module.named_buffers():
                if name in self._constants:
                    buffer.copy_(self._constants[name])

    def tensors(self) -> Tensors:
        """Return a copy of the current parameters and statistics on the CPU, by name."""
        weights, statistics = ([flat.to("cpu", copy=True) for flat in kind] for kind in (self.weights, self.statistics))
        return self.layout.unflatten(weights, statistics)
