"""Random generators derived from the seed and a named purpose; no global generator is used."""

import torch

from pflbed.seeding import generator as numpy_generator
from pflbed.seeding import seed_for

__all__ = ["numpy_generator", "seed_for", "torch_generator"]


def torch_generator(*purpose: str | int) -> torch.Generator:
    """Return the torch generator of a purpose; it is on the CPU, so that the draws are the same on every device."""
    return torch.Generator().manual_seed(seed_for(*purpose))
