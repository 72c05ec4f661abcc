"""Bases drawn for tests, and how far two tensors are apart."""

import torch
from torch import Tensor, nn

from fedbasis.methods.fedbasis.bases import BasisSet
from fedbasis.tensors.blocks import Layout
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.seeding import torch_generator


def make_bases(module: nn.Module, layout: Layout, count: int, major: bool, dtype: torch.dtype) -> BasisSet:
    generator = torch_generator("bases", count)
    start = FlatModel(module.to(dtype), layout).tensors()

    def drawn(tensor: Tensor) -> Tensor:
        return tensor + 0.1 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(dtype)

    models = [{name: drawn(tensor) for name, tensor in start.items()} for _ in range(count + major)]
    return BasisSet.from_models(layout, models, major)


def relative(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())
