"""Every random choice has a name: torch generators derived from the seed and the purpose; nothing is global."""

import torch

from pflbed.seeding import generator as numpy_generator
from pflbed.seeding import seed_for

__all__ = ["numpy_generator", "seed_for", "torch_generator"]


def torch_generator(*purpose: str | int) -> torch.Generator:
    """Make the torch generator (on the CPU, so that every device draws the same) that belongs to a purpose."""
    return torch.Generator().manual_seed(seed_for(*purpose))
