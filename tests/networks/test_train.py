"""The optimizers called directly have the arithmetic of torch's classes, bit by bit."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedbasis.networks.train import FlatAdam, PlainSGD

STEPS = 20


def trajectory(optimize: Callable[[list[Tensor]], list[Callable[[], object]]]) -> list[Tensor]:
    """Twenty steps of two tensors along drawn gradients; the second has a gradient from the third step on."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator).requires_grad_() for shape in ((7, 33), (5,))]
    steps, seen = optimize(tensors), []
    for number in range(STEPS):
        gradients = [torch.randn(tensor.shape, generator=generator) for tensor in tensors]
        tensors[0].grad = gradients[0]
        tensors[1].grad = gradients[1] if number > 1 else None
        for step in steps:
            step()
        seen += [tensor.detach().clone() for tensor in tensors]
    return seen


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 1e-2), (0.9, 0.0), (0.0, 1e-2), (0.0, 0.0)])
def test_plain_sgd_is_the_sgd_of_torch(momentum: float, decay: float) -> None:
    ours = trajectory(lambda tensors: [PlainSGD(tensors, 0.05, momentum, decay).step])
    theirs = trajectory(lambda t: [torch.optim.SGD(t, lr=0.05, momentum=momentum, weight_decay=decay).step])
    assert len(ours) == 2 * STEPS
    assert equal(ours, theirs)
    assert not equal(ours[:2], ours[-2:])


def test_zero_grad_leaves_the_gradients_where_they_are() -> None:
    tensor = torch.ones(3, requires_grad=True)
    optimizer = PlainSGD([tensor], 0.1)
    optimizer.zero_grad()
    assert tensor.grad is None
    flat = torch.ones(5)
    tensor.grad = flat[1:4]
    optimizer.zero_grad()
    assert flat.tolist() == [1, 0, 0, 0, 1]


@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_flat_adam_is_the_adam_of_torch(decay: float) -> None:
    ours = trajectory(lambda tensors: [FlatAdam(tensors[0], 0.05, decay).step])
    theirs = trajectory(lambda tensors: [torch.optim.Adam(tensors[:1], lr=0.05, weight_decay=decay).step])
    assert equal(ours, theirs)
    assert not equal(ours[:2], ours[-2:])
