"""Personalized accuracy: a test image counts by how likely its class is for the client, by P_m(y).

So one large test set per domain serves every client, and each is scored on its own mixture of classes.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pflbed.errors import InputError


def personalized_accuracy(predicted: ArrayLike, labels: ArrayLike, label_distribution: ArrayLike) -> float:
    """``sum_j P(y_j) [correct_j] / sum_j P(y_j)`` for one client."""
    correct, truth = _compared(predicted, labels)
    share = _distribution(label_distribution)
    if share.ndim != 1 or truth.min() < 0 or truth.max() >= len(share):
        raise InputError(
            f"label_distribution must have one entry per class, got shape {share.shape} for labels {truth.min()}.."
            f"{truth.max()}; give P_m(y) over all classes of the benchmark"
        )
    weights = share[truth]
    if weights.sum() <= 0:
        raise InputError(
            "the test labels must include a class that the client has, but P_m(y) is zero for all of them; "
            "test on the client's own domain"
        )
    return float((weights * correct).sum() / weights.sum())


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
