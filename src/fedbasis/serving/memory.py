"""What a card asks for must fit into this machine's memory; asked before any of it is taken.

A small file can name a large resolution: convolutions fit images of any size, so the tensors alone do not show it.
"""

import math
import os
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedbasis.networks.models import MODELS, Network
from pflbed.errors import InputError

SMALL = 64
"""Pixels of a side of the images that are tried."""


def activations(network: Network) -> int:
    """Count the numbers that the layers of a built-in network make of one image; 0 for a user's own code.

    Those of a large image are in proportion to those of a small one, whose forward pass is cheap. (A pass on the meta
    device makes torch import its compiler, which takes two seconds.)
    """
    if network.source is not None or network.name not in MODELS:
        return 0
    sides = network.input_shape[1:]
    small = min(sides[0], SMALL), min(sides[1], SMALL)
    module, total = replace(network, resolution=small).skeleton("cpu").eval(), 0

    def add(layer: nn.Module, given: object, made: Tensor) -> None:
        nonlocal total
        total += made.numel()

    for layer in module.modules():
        if not list(layer.children()):
            layer.register_forward_hook(add)
    with torch.no_grad():
        module(torch.zeros(1, network.channels, *small))
    return total * math.prod(sides) // math.prod(small)


def require_memory(network: Network, images: int, batch: int) -> None:
    """Refuse to personalize if the decoded images and one training step need more memory than the machine has."""
    channels, height, width = network.input_shape
    needed = images * channels * height * width + 4 * min(batch, images) * activations(network)
    if needed > (most := machine_memory()):
        raise InputError(
            f"Personalizing with {images:,} images of {height} x {width} pixels and a batch of {batch} needs "
            f"{needed / 1e9:,.0f} GB of memory or more, but this machine has {most / 1e9:,.0f} GB; use a smaller batch "
            "or fewer images."
        )


def machine_memory() -> int:
    """The memory of this machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
