"""Personalized accuracy: a test image counts by how likely its class is for the client, by P_m(y).

So one large test set per domain serves every client, and each is scored on its own mixture of classes.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pflbed.errors import InputError


def personalized_accuracy(predicted: ArrayLike, labels: ArrayLike, label_distribution: ArrayLike) -> float:
    """``sum_j P(y_j) [correct_j] / sum_j P(y_j)`` for one client."""
    _, truth = _compared(predicted, labels)
    share = _distribution(label_distribution)
    if share.ndim != 1 or truth.min() < 0 or truth.max() >= len(share):
        raise InputError(
            f"label_distribution must have one entry per class, got shape {share.shape} for labels {truth.min()}.."
            f"{truth.max()}; give P_m(y) over all classes of the benchmark"
        )
    return weighted_accuracy(predicted, labels, share[truth])


def weighted_accuracy(predicted: ArrayLike, labels: ArrayLike, weights: ArrayLike) -> float:
    """``sum_j w_j [correct_j] / sum_j w_j``, with a weight per image such as ``Client.test_weights``."""
    correct, truth = _compared(predicted, labels)
    weight = _distribution(weights)
    if weight.shape != truth.shape:
        raise InputError(f"there must be one weight per label, got shapes {weight.shape} and {truth.shape}")
    if weight.sum() <= 0:
        raise InputError(
            "the test labels must include a class that the client has, but P_m(y) is zero for all of them; "
            "test on the client's own domain"
        )
    return float((weight * correct).sum() / weight.sum())


def global_accuracy(predicted: ArrayLike, labels: ArrayLike) -> float:
    """The fraction of predictions that are right, every image counting the same."""
    correct, _ = _compared(predicted, labels)
    return float(correct.mean())


def label_mismatch(p_train: ArrayLike, p_test: ArrayLike) -> float:
    """``(1/M) sum_m || P_train,m - P_test,m ||_1`` over clients in rows; 0 is faithful, 2 the worst."""
    train, test = np.atleast_2d(_distribution(p_train)), np.atleast_2d(_distribution(p_test))
    if train.shape != test.shape or not train.size:
        raise InputError(
            f"both distributions must be a row per client and a column per class, got shapes {train.shape} and "
            f"{test.shape}; use the same clients and classes for both"
        )
    return float(np.abs(train - test).sum(axis=1).mean())


def bootstrap_interval(
    values: ArrayLike, rng: np.random.Generator, level: float = 0.95, draws: int = 10_000
) -> tuple[float, float]:
    """Where the mean over clients lies with a probability of ``level``: the percentile bootstrap over clients."""
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not scores.size or not np.isfinite(scores).all():
        raise InputError(f"an interval needs a finite score per client, got an array of shape {scores.shape}")
    means = np.empty(draws, dtype=np.float64)
    batch = max(1, 10_000_000 // len(scores))  # of resamples held in memory at once
    for start in range(0, draws, batch):
        count = min(batch, draws - start)
        means[start : start + count] = scores[rng.integers(0, len(scores), (count, len(scores)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _compared(predicted: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    guess, truth = np.asarray(predicted), np.asarray(labels)
    if guess.ndim != 1 or guess.shape != truth.shape:
        raise InputError(f"there must be one prediction per label, got shapes {guess.shape} and {truth.shape}")
    if not guess.size:
        raise InputError("accuracy needs at least one prediction, got none; check that the test set is not empty")
    if truth.dtype.kind not in "iu" or guess.dtype.kind not in "iu":
        raise InputError(f"predictions and labels must be class numbers, got {guess.dtype} and {truth.dtype}")
    return (guess == truth).astype(np.float64), truth.astype(np.int64)


def _distribution(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all() or (array < 0).any():
        raise InputError(
            "a label distribution must hold finite numbers of at least 0, got others; count the labels again"
        )
    return array
