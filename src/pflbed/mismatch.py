"""Label mismatch: does the class distribution of every client's test set equal that of its training set?

With PFLBed's weighted test set it does by construction; with a random half of each client's own images it does not.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pflbed.benchmark import Benchmark
from pflbed.score import label_mismatch
from pflbed.seeding import generator


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
    labels = benchmark.table.labels[benchmark.rows(name)]
    shuffled = generator(benchmark.spec.seed, "halves", name).permutation(labels)
    middle = len(shuffled) // 2
    parts = (shuffled[middle:], shuffled[:middle] if middle else shuffled)
    first, second = (np.bincount(half, minlength=len(benchmark.table.class_names)) / len(half) for half in parts)
    return first, second
