"""A working copy of a network whose parameters and gradients are views into one flat vector per block.

A forward and backward pass through ``module`` then reads and writes the flat vectors directly: an optimizer step, a
combination of bases or a pull-back of the gradient is one operation per block instead of one per tensor.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

from fedbasis.tensors.blocks import Layout
from fedbasis.tensors.params import Tensors


class FlatModel:
    """A copy of a network on a device, with its parameters and gradients in flat vectors.

    Args:
        skeleton: The network; it is copied and never changed.
        layout: Its layout by blocks.
        device: Where the copy is.
        copy: False if nobody else has the network: then it is used itself.
    """

    def __init__(
        self, skeleton: nn.Module, layout: Layout, device: torch.device | str = "cpu", *, copy: bool = True
    ) -> None:
        self.module = (deepcopy(skeleton) if copy else skeleton).to(device)
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
        for entry in layout.entries:
            if entry.trained:
                parameter = parameters[entry.name]
                view = self._view(self.weights, entry.block, entry.start, entry.stop, entry.shape)
                view.copy_(parameter.detach())
                parameter.data = view
                parameter.grad = self._view(self.gradients, entry.block, entry.start, entry.stop, entry.shape)
            else:
                view = self._view(self.statistics, entry.block, entry.start, entry.stop, entry.shape)
                view.copy_(buffers[entry.name])
                buffers[entry.name].data = view

    @staticmethod
    def _view(flats: list[Tensor], block: int, start: int, stop: int, shape: torch.Size) -> Tensor:
        return flats[block][start:stop].view(shape)

    def zero_gradients(self) -> None:
        """Clear the gradients in place, so that they stay views."""
        for gradient in self.gradients:
            gradient.zero_()

    def load(self, tensors: Tensors, where: str = "A model") -> None:
        """Replace all parameters and statistics, and reset the integer buffers."""
        device = self.weights[0].device
        weights = self.layout.flatten(tensors, True, where)
        statistics = self.layout.flatten(tensors, False, where)
        for flat, value in zip(self.weights + self.statistics, weights + statistics, strict=True):
            flat.copy_(value.to(device))
        for name, buffer in self.module.named_buffers():
            if name in self._constants:
                buffer.copy_(self._constants[name])

    def tensors(self) -> Tensors:
        """Return a copy of the current parameters and statistics on the CPU, by name."""
        weights, statistics = ([flat.to("cpu", copy=True) for flat in kind] for kind in (self.weights, self.statistics))
        return self.layout.unflatten(weights, statistics)
