"""Hold out some of a client's images: the one way in which a set of labelled rows is split in two."""

from collections.abc import Callable

import torch
from torch import Tensor


def hold_out(
    labels: Tensor, count: Callable[[int], int], permutation: Callable[[int], Tensor], by_class: bool = True
) -> Tensor:
    """Mark rows to hold out.

    Args:
        labels: The class of every row.
        count: How many of so many rows to hold out.
        permutation: Draws a random order of so many rows.
        by_class: Whether to draw from every class on its own, or from all rows at once.

    Returns:
        A boolean mask over the rows.

    Example:
        >>> held = hold_out(torch.tensor([0, 0, 1, 1]), lambda rows: rows // 2, torch.arange)
        >>> held.tolist()
        [True, False, True, False]
    """
    held = torch.zeros(len(labels), dtype=torch.bool)
    groups = [torch.arange(len(labels))]
    if by_class:
        groups = [(labels == label).nonzero().squeeze(1) for label in sorted(set(labels.tolist()))]
    for rows in groups:
        held[rows[permutation(len(rows))[: count(len(rows))]]] = True
    return held
