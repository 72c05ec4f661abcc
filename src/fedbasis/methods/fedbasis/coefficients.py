"""Combination coefficients: psi -> alpha = softmax(psi / tau) -> c, and the gradient back.

``psi`` and ``alpha`` have one row per block and one column per basis; ``psi`` is unconstrained. With a major basis,
``c = (1/2, alpha/2)`` with the major basis first; without it ``c = alpha``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def alpha(psi: Tensor, tau: float = 1.0) -> Tensor:
    """Return the convex weights of the bases; a small ``tau`` sharpens them towards the largest."""
    return torch.softmax(psi / tau, dim=-1)


def combination(weights: Tensor, major: bool) -> Tensor:
    """Return the coefficients of all rows of the basis matrix, the major basis first, from convex weights."""
    if not major:
        return weights
    half = torch.full_like(weights[:, :1], 0.5)
    return torch.cat([half, weights / 2], dim=1)


def convex(weights: Tensor) -> Tensor:
    """Turn received weights into convex weights: not negative, with sum one per block."""
    positive = weights.clamp(0, 1)
    return positive.add(1e-12) / positive.add(1e-12).sum(dim=-1, keepdim=True)


def pull_back(psi: Tensor, gradient_of_c: Tensor, major: bool, tau: float = 1.0) -> Tensor:
    """Turn d loss / d c into d loss / d psi through the softmax (its Jacobian is diag(alpha) - alpha alpha^T)."""
    weights = alpha(psi, tau)
    gradient = gradient_of_c[:, 1:] / 2 if major else gradient_of_c
    return weights * (gradient - (weights * gradient).sum(dim=-1, keepdim=True)) / tau


def entropy(weights: Tensor) -> Tensor:
    """Return the entropy of every block's weights, in nats: 0 for a single basis, ln K for the uniform mixture."""
    entropies: Tensor = torch.special.entr(weights).sum(dim=-1)
    return entropies


def describe(blocks: Sequence[str], weights: Tensor) -> dict[str, float]:
    """Return every block's entropy and how much it uses each basis, as numbers for the log."""
    numbers = {}
    for block, row in zip(blocks, weights, strict=True):
        numbers[f"entropy/{block}"] = float(entropy(row))
        numbers |= {f"usage/{block}/{k}": float(used) for k, used in enumerate(row)}
    return numbers
