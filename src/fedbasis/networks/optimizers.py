"""The optimizers of local training: SGD and Adam in place, called as functions.

The arithmetic is torch's. Its classes would make torch import its compiler, and on small networks their overhead takes
as long as a step.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class FlatSGD:
    """SGD that updates flat vectors in place, with one rate and decay per block.

    The arithmetic is that of ``torch.optim.SGD(fused=True)``, called directly: on small networks the overhead of the
    class takes as long as a step.
    """

    def __init__(
        self,
        flats: Sequence[Tensor],
        gradients: Sequence[Tensor],
        rates: Sequence[float],
        decays: Sequence[float],
        momentum: float,
    ) -> None:
        self._blocks = list(zip(flats, gradients, rates, decays, strict=True))
        self._momentum = momentum
        self._buffers: list[list[Tensor | None]] = [[None] for _ in self._blocks]

    @torch.no_grad()
    def step(self) -> None:
        """Take a step along the gradients as they are now."""
        for (flat, gradient, rate, decay), buffer in zip(self._blocks, self._buffers, strict=True):
            sgd(
                [flat], [gradient], buffer, fused=True, lr=rate, weight_decay=decay, momentum=self._momentum,
                dampening=0.0, nesterov=False, maximize=False,
            )  # fmt: skip


class PlainSGD:
    """SGD that updates tensors in place from their ``grad``; a tensor without one is not changed.

    The arithmetic is that of ``torch.optim.SGD`` on the CPU, called directly: the class makes torch import its
    compiler.
    """

    def __init__(self, tensors: Iterable[Tensor], rate: float, momentum: float = 0.0, decay: float = 0.0) -> None:
        self._tensors = list(tensors)
        self._rate, self._momentum, self._decay = rate, momentum, decay
        self._buffers: list[list[Tensor | None]] = [[None] for _ in self._tensors]

    def zero_grad(self) -> None:
        """Set the gradients to zero in place, so that a working model's gradients stay views."""
        for tensor in self._tensors:
            if tensor.grad is not None:
                tensor.grad = tensor.grad.detach().zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Take a step along the gradients as they are now."""
        for tensor, buffer in zip(self._tensors, self._buffers, strict=True):
            if tensor.grad is not None:
                sgd(
                    [tensor], [tensor.grad], buffer, foreach=False, fused=False, lr=self._rate, dampening=0.0,
                    momentum=self._momentum, weight_decay=self._decay, nesterov=False, maximize=False,
                )  # fmt: skip


class FlatAdam:
    """Adam that updates a tensor in place from its ``grad``.

    The arithmetic is that of ``torch.optim.Adam``, called directly: the class makes torch import its compiler, a second
    and 76 MiB in every process that trains or serves a client.
    """

    def __init__(self, flat: Tensor, rate: float, decay: float = 0.0) -> None:
        self._flat, self._rate, self._decay = flat, rate, decay
        self._first, self._second = torch.zeros_like(flat), torch.zeros_like(flat)
        self._steps = torch.tensor(0.0)

    @torch.no_grad()
    def step(self) -> None:
        """Take a step along the gradient as it is now."""
        assert self._flat.grad is not None
        adam(
            [self._flat], [self._flat.grad], [self._first], [self._second], [], [self._steps], foreach=False,
            amsgrad=False, beta1=0.9, beta2=0.999, lr=self._rate, weight_decay=self._decay, eps=1e-8, maximize=False,
        )  # fmt: skip
