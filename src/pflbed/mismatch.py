"""Label mismatch: does the class distribution of every client's test set equal that of its training set?

With PFLBed's weighted test set it does by construction; with a random half of each client's own images it does not.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pflbed.benchmark import Benchmark
from pflbed.errors import InputError
from pflbed.score import label_mismatch
from pflbed.seeding import generator
from pflbed.table import Table


@dataclass(frozen=True)
class Mismatch:
    """``(1/M) sum_m ||P_train,m - P_test,m||_1``: 0 is best, 2 is worst."""

    here: float
    """Of this benchmark, as it is scored."""
    conventional: float
    """Of the same clients if each were tested on a random half of its own images."""
    unscored: int
    """Clients without a test image of a class they train on; they are not in the means."""


def mismatch(benchmark: Benchmark) -> Mismatch | None:
    """Compare the two over all clients that can be scored; None if none can."""
    scored = [name for name in benchmark.client_ids if benchmark.held_weights(name, "test").sum() > 0]
    if not scored:
        return None
    chunk = max(1, 10_000_000 // len(benchmark.table.class_names))
    here = conventional = 0.0
    for start in range(0, len(scored), chunk):  # a hundred thousand clients of a thousand classes do not fit at once
        names = scored[start : start + chunk]
        trained = [benchmark.label_distribution(name) for name in names]
        here += len(names) * label_mismatch(trained, [benchmark.held_distribution(name) for name in names])
        parts = [halves(benchmark, name) for name in names]
        conventional += len(names) * label_mismatch([half for half, _ in parts], [half for _, half in parts])
    left = len(benchmark.client_ids) - len(scored)
    return Mismatch(here / len(scored), conventional / len(scored), left)


def halves(benchmark: Benchmark, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The class distributions of two random halves of a client's images; a single image is in both."""
    table = benchmark.table
    return _halves(table.labels[benchmark.rows(name)], name, benchmark.spec.seed, len(table.class_names))


def halved_users(table: Table, seed: int = 0) -> tuple[float, int]:
    """The mismatch of all users of a table, each with its own images halved at random, and how many users there are."""
    if table.users is None:
        raise InputError("The mismatch of users needs the user of every image, but this table names no users.")
    order = np.argsort(table.users, kind="stable")
    users, starts = np.unique(table.users[order], return_index=True)
    total = 0.0
    for user, rows in zip(users.tolist(), np.split(order, starts[1:]), strict=True):
        first, second = _halves(table.labels[rows], table.user_names[user], seed, len(table.class_names))
        total += label_mismatch([first], [second])
    return total / len(users), len(users)


def _halves(
    labels: NDArray[np.int64], name: str, seed: int, classes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    shuffled = generator(seed, "halves", name).permutation(labels)
    middle = len(shuffled) // 2
    parts = (shuffled[middle:], shuffled[:middle] if middle else shuffled)
    first, second = (np.bincount(half, minlength=classes) / len(half) for half in parts)
    return first, second
