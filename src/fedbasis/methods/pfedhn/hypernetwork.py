"""A hypernetwork as named tensors: from an embedding to the parameters of a model, and the gradient back.

``hidden_0``, ``hidden_1`` ... are linear layers with ReLUs between them; ``output_<block>`` is the output layer of a
block's flat vector.
"""

import torch
from torch import Tensor

from fedbasis.tensors.params import Tensors


def generate(hyper: Tensors, bias: list[Tensor], v: Tensor) -> list[Tensor]:
    """Return h(v): the generated parameters as one flat vector per block."""
    hyper = {name: tensor.clone() for name, tensor in hyper.items()}  # rounding depends on memory alignment
    z = hyper["hidden_0.weight"] @ v.clone() + hyper["hidden_0.bias"]
    for layer in range(1, sum(name.endswith(".bias") for name in hyper)):
        z = hyper[f"hidden_{layer}.weight"] @ torch.relu(z) + hyper[f"hidden_{layer}.bias"]
    return [start + hyper[f"output_{block}.weight"] @ z for block, start in enumerate(bias)]


def pull_back(hyper: Tensors, v: Tensor, change: list[Tensor]) -> tuple[Tensor, ...]:
    """Return ``J^T change`` for every tensor of the hypernetwork, in its order, and for the embedding."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in hyper.items()}
    flats = generate(leaves, change, start := v.detach().requires_grad_())  # these Jacobians do not depend on the bias
    return torch.autograd.grad(flats, [*leaves.values(), start], change)
