"""Personalized accuracy: a test image is weighted by the probability P_m(y) of its class for the client.

So one large test set per domain is enough for all its clients, and each is scored on its own class distribution.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pflbed.errors import InputError


def personalized_accuracy(predicted: ArrayLike, labels: ArrayLike, label_distribution: ArrayLike) -> float:
    """The accuracy of one client on its own class distribution: ``sum_j P(y_j) [correct_j] / sum_j P(y_j)``.

    Args:
        predicted: The predicted class numbers.
        labels: The true class numbers.
        label_distribution: P_m(y): the probability of every class for the client.

    Returns:
        The accuracy, from 0 to 1.

    Example:
        >>> personalized_accuracy([0, 1, 1], [0, 0, 1], label_distribution=[0.25, 0.75])
        0.8
    """
    _, truth = _compared(predicted, labels)
    share = _distribution(label_distribution)
    if share.ndim != 1 or truth.min() < 0 or truth.max() >= len(share):
        raise InputError(
            f"label_distribution must have one entry per class, got shape {share.shape} for labels {truth.min()}.."
            f"{truth.max()}; give P_m(y) over all classes of the benchmark"
        )
    return weighted_accuracy(predicted, labels, share[truth])


def weighted_accuracy(predicted: ArrayLike, labels: ArrayLike, weights: ArrayLike) -> float:
    """The accuracy with a weight per image: ``sum_j w_j [correct_j] / sum_j w_j``.

    Args:
        predicted: The predicted class numbers.
        labels: The true class numbers.
        weights: One weight per image, such as ``Client.test_weights``.

    Returns:
        The accuracy, from 0 to 1.

    Example:
        >>> weighted_accuracy([0, 1], [0, 0], weights=[3.0, 1.0])
        0.75
    """
    correct, truth = _compared(predicted, labels)
    weight = _distribution(weights)
    if weight.shape != truth.shape:
        raise InputError(f"There must be one weight per label, got shapes {weight.shape} and {truth.shape}")
    if weight.sum() <= 0:
        raise InputError(
            "The test labels must include a class that the client has, but P_m(y) is zero for all of them; "
            "test on the client's own domain"
        )
    return float((weight * correct).sum() / weight.sum())


def global_accuracy(predicted: ArrayLike, labels: ArrayLike) -> float:
    """The fraction of correct predictions.

    Args:
        predicted: The predicted class numbers.
        labels: The true class numbers.

    Returns:
        The accuracy, from 0 to 1.

    Example:
        >>> global_accuracy([0, 1, 1, 1], [0, 0, 1, 1])
        0.75
    """
    correct, _ = _compared(predicted, labels)
    return float(correct.mean())


def label_mismatch(p_train: ArrayLike, p_test: ArrayLike) -> float:
    """How much the class distributions of training and test differ: ``(1/M) sum_m || P_train,m - P_test,m ||_1``.

    Args:
        p_train: One row per client, one column per class.
        p_test: The same for the test sets.

    Returns:
        The mean L1 distance: 0 if all are equal, 2 at most.

    Example:
        >>> label_mismatch([[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]])
        1.0
    """
    train, test = np.atleast_2d(_distribution(p_train)), np.atleast_2d(_distribution(p_test))
    if train.shape != test.shape or not train.size:
        raise InputError(
            f"Both distributions must be a row per client and a column per class, got shapes {train.shape} and "
            f"{test.shape}; use the same clients and classes for both"
        )
    return float(np.abs(train - test).sum(axis=1).mean())


def bootstrap_interval(
    values: ArrayLike, rng: np.random.Generator, level: float = 0.95, draws: int = 10_000
) -> tuple[float, float]:
    """A confidence interval of the mean over clients, by the percentile bootstrap.

    Args:
        values: One score per client.
        rng: The random generator.
        level: The confidence level.
        draws: The number of resamples.

    Returns:
        The lower and the upper bound.

    Example:
        >>> low, high = bootstrap_interval([0.5, 0.7, 0.9], np.random.default_rng(0))
        >>> 0.5 <= low < 0.7 < high <= 0.9
        True
    """
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not scores.size or not np.isfinite(scores).all():
        raise InputError(f"An interval needs a finite score per client, got an array of shape {scores.shape}")
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
        raise InputError(f"There must be one prediction per label, got shapes {guess.shape} and {truth.shape}")
    if not guess.size:
        raise InputError("accuracy needs at least one prediction, got none; check that the test set is not empty")
    if truth.dtype.kind not in "iu" or guess.dtype.kind not in "iu":
        raise InputError(f"predictions and labels must be class numbers, got {guess.dtype} and {truth.dtype}")
    return (guess == truth).astype(np.float64), truth.astype(np.int64)


def _distribution(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all() or (array < 0).any():
        raise InputError(
            "A label distribution must hold finite numbers of at least 0, got others; count the labels again"
        )
    return array
