"""Random generators derived from a seed and a purpose, independent of what ran before."""

import hashlib

import numpy as np


def seed_for(*purpose: str | int) -> int:
    """Derive a 63-bit seed from a purpose such as ``(seed, "split", "sketch")``, the same on every machine."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in purpose)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(*purpose: str | int) -> np.random.Generator:
    """Create the numpy generator of a purpose."""
    return np.random.Generator(np.random.PCG64(seed_for(*purpose)))
