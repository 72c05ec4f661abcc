"""Split a client's labelled images in two, by holding some of them out."""

from collections.abc import Callable

import torch
from torch import Tensor


def hold_out(
    labels: Tensor, count: Callable[[int], int], permutation: Callable[[int], Tensor], by_class: bool = True
) -> Tensor:
    """Mark rows to hold out.

    Args:
        labels: The class of every row.
        count: From a number of rows to how many of them to hold out.
        permutation: From a number of rows to a random permutation of them.
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
