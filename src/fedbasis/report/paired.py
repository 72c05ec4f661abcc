"""Student's paired t-test of two models over the same clients, with the confidence interval of the difference.

Clients differ far more from each other than methods do, so scores are compared client by client; a client of another
seed is another client. The test is two-sided. With a single client there is no test: p is 1. Where one row is compared
with many, p is corrected by Holm's step-down procedure, so that the chance of any wrong "significant" in the family is
at most the level. Clients of one seed share a training, so the test speaks about clients of these trainings: it
does not replace more seeds.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy.special import stdtr, stdtrit

LEVEL = 0.05
"""The significance level."""
SAME = 1e-12
"""Scores that differ by less than this are equal up to rounding."""

CROWD = 4
"""Where so many times more rows share the first place than do not, none is bold."""

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
    adjusted: float = 1.0
    """p after the correction for the other tests of its family; p itself for a single test."""

    @property
    def significant(self) -> bool:
        """Whether the two differ, after the correction."""
        return self.adjusted < LEVEL


def paired(first: Mapping[Client, float], second: Mapping[Client, float], level: float = LEVEL) -> Paired:
    """Compare two models that served exactly the same clients, at least one; the interval is of ``1 - level``."""
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
        p = 1.0 if mean == 0 else 0.0
        return Paired(count, mean, mean, mean, p, *signs, p)
    reach = float(stdtrit(count - 1, 1 - level / 2)) * error
    p = 2 * float(stdtr(count - 1, -abs(mean) / error))
    return Paired(count, mean, mean - reach, mean + reach, p, *signs, p)


def holm(ps: Sequence[float]) -> list[float]:
    """Return p values corrected by Holm 1979: the i-th smallest of m is multiplied by m - i + 1, and kept in order."""
    adjusted, largest = [1.0] * len(ps), 0.0
    for place, index in enumerate(_ascending(ps)):
        largest = max(largest, min(1.0, (len(ps) - place) * ps[index]))
        adjusted[index] = largest
    return adjusted


def holm_levels(ps: Sequence[float]) -> list[float]:
    """Return the level at which each test is decided in Holm's procedure.

    Tests are decided one by one at LEVEL / (m - i + 1) until one is not significant; the rest shares that one's level.
    So an interval at this level has zero inside exactly if the test is not significant.
    """
    levels, stopped = [LEVEL] * len(ps), 0.0
    for place, index in enumerate(_ascending(ps)):
        levels[index] = stopped or LEVEL / (len(ps) - place)
        if ps[index] >= levels[index]:
            stopped = levels[index]
    return levels


def _ascending(ps: Sequence[float]) -> list[int]:
    return sorted(range(len(ps)), key=lambda index: ps[index])


def family(
    first: Mapping[Client, float], others: Sequence[Mapping[Client, float]], holms_intervals: bool = False
) -> list[Paired | None]:
    """Compare one row with many, each minus the first, corrected for their number; nothing for one on other clients.

    The intervals are of 95 % each; ``holms_intervals`` widens them to the level at which Holm decides the test.
    """
    tests = [paired(first, other) if other.keys() == first.keys() and other else None for other in others]
    ps = [test.p for test in tests if test is not None]
    if holms_intervals:
        levels = iter(holm_levels(ps))
        tests = [
            None if test is None else paired(first, other, next(levels))
            for test, other in zip(tests, others, strict=True)
        ]
    adjusted = iter(holm(ps))
    return [None if test is None else replace(test, adjusted=next(adjusted)) for test in tests]


def leaders(scores: Sequence[Mapping[Client, float]]) -> list[bool]:
    """Mark the best mean and every row that is not significantly worse on the same clients, by Holm's correction.

    Empty rows are never marked, nor are rows on other clients than the best one's.
    """
    if not any(scores):
        return [False] * len(scores)
    means = [float(np.mean(list(mine.values()))) if mine else -np.inf for mine in scores]
    best = int(np.argmax(means))
    others = [number for number in range(len(scores)) if number != best]
    tests = dict(zip(others, family(scores[best], [scores[number] for number in others]), strict=True))
    return [
        number == best or ((test := tests[number]) is not None and not test.significant)
        for number in range(len(scores))
    ]


def bold(scores: Sequence[Mapping[Client, float]]) -> list[bool]:
    """Return the leaders, or none where nearly every row is one: bold type would then say nothing."""
    marks = leaders(scores)
    worse = sum(bool(mine) and not mark for mine, mark in zip(scores, marks, strict=True))
    return marks if sum(marks) <= max(1, CROWD * worse) else [False] * len(marks)
