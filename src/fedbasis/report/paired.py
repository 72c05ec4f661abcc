"""Student's paired t-test of two models over the same clients, with the confidence interval of the difference.

Clients differ far more from each other than methods do, so scores are compared client by client. The test is
two-sided. With a single client there is no test: p is 1.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.special import stdtr, stdtrit

LEVEL = 0.05
"""The significance level."""
SAME = 1e-12
"""Scores that differ by less than this are equal up to rounding."""

Client = TypeVar("Client", bound=Hashable)


@dataclass(frozen=True)
class Paired:
    """The second score minus the first, over clients."""

    clients: int
    mean: float
    low: float | None
    """The 95 % confidence interval of the mean; nothing for a single client."""
    high: float | None
    p: float
    wins: int
    """Clients on which the second is better."""
    ties: int
    losses: int


def paired(first: Mapping[Client, float], second: Mapping[Client, float]) -> Paired:
    """Compare two models that served exactly the same clients, at least one."""
    if first.keys() != second.keys() or not first:
        raise ValueError("a paired test needs the same clients on both sides, at least one")
    gaps = np.array([second[client] - first[client] for client in first], dtype=np.float64)
    gaps[np.abs(gaps) < SAME] = 0.0
    count, mean = len(gaps), float(gaps.mean())
    signs = (int((gaps > 0).sum()), int((gaps == 0).sum()), int((gaps < 0).sum()))
    if count < 2:
        return Paired(count, mean, None, None, 1.0, *signs)
    error = float(gaps.std(ddof=1) / np.sqrt(count))
    if error < SAME:  # every client gains the same
        return Paired(count, mean, mean, mean, 1.0 if mean == 0 else 0.0, *signs)
    reach = float(stdtrit(count - 1, 1 - LEVEL / 2)) * error
    p = 2 * float(stdtr(count - 1, -abs(mean) / error))
    return Paired(count, mean, mean - reach, mean + reach, p, *signs)


def leaders(scores: Sequence[Mapping[Client, float]]) -> list[bool]:
    """Mark the best mean and every row that is not significantly worse on the same clients.

    Empty rows are never marked, nor are rows on other clients than the best one's.
    """
    means = [float(np.mean(list(mine.values()))) if mine else -np.inf for mine in scores]
    if not any(scores):
        return [False] * len(scores)
    best = scores[int(np.argmax(means))]
    return [mine.keys() == best.keys() and paired(mine, best).p >= LEVEL for mine in scores]
