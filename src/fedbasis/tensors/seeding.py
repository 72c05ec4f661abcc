"""Random generators derived from the seed and a named purpose; global generators are seeded for a block only."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pflbed.seeding import generator as numpy_generator
from pflbed.seeding import seed_for

__all__ = ["numpy_generator", "seed_for", "seeded_globally", "torch_generator"]


def torch_generator(*purpose: str | int) -> torch.Generator:
    """Return the torch generator of a purpose; it is on the CPU, so that the draws are the same on every device."""
    return torch.Generator().manual_seed(seed_for(*purpose))


@contextmanager
def seeded_globally(*purpose: str | int) -> Iterator[None]:
    """Seed torch's global generators for a purpose inside this block, and restore that of the CPU afterwards.

    Where there is no accelerator only the CPU's generator is seeded: ``torch.manual_seed`` would also keep, for every
    kind of accelerator and every call, a description of the whole stack of calls.
    """
    seed = seed_for(*purpose)
    with torch.random.fork_rng(devices=[]):
        if torch.accelerator.is_available():
            torch.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)
        yield
