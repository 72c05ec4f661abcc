"""Who gets which row: pure functions from labels and a generator to row numbers, which know no file and no domain."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pflbed.errors import InputError
from pflbed.table import Rows

TRIES = 1000


def own_groups(count: int) -> Rows:
    """Give every row a group of its own."""
    return np.arange(count, dtype=np.int64)


def balanced_holdout(
    labels: Rows, groups: Rows | None, count_per_class: int, rng: np.random.Generator
) -> tuple[Rows, Rows]:
    """Take the same number of rows of every class, group by group; return them and the surplus of the groups cut.

    A group that was begun belongs to this holdout: its rows beyond the count are surplus, not to be used elsewhere.
    Without groups there is no surplus.
    """
    groups = own_groups(len(labels)) if groups is None else groups
    rank = rng.permutation(int(groups.max(initial=-1)) + 1)[groups]
    order = np.lexsort((rng.permutation(len(labels)), rank))
    begun: Rows = np.zeros(0, dtype=np.int64)
    chosen: Rows = np.zeros(0, dtype=np.int64)
    for label in _rarest_first(labels):
        rows = order[labels[order] == label]
        if len(rows) < count_per_class:
            raise InputError(
                f"class number {label} must have {count_per_class} images to hold out, got {len(rows)} that are free; "
                "add images of this class or hold out a smaller share"
            )
        fresh = ~np.isin(groups[rows], begun)
        rows = rows[np.argsort(fresh, kind="stable")][:count_per_class]
        chosen = np.concatenate([chosen, rows])
        begun = np.union1d(begun, groups[rows])
    surplus = np.setdiff1d(np.flatnonzero(np.isin(groups, begun)), chosen)
    return np.sort(chosen), surplus.astype(np.int64)


def stratified_split(labels: Rows, groups: Rows | None, share: float, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Cut the rows in two so that the first part holds the share of every class, to the nearest whole group."""
    groups = own_groups(len(labels)) if groups is None else groups
    rank = rng.permutation(int(groups.max(initial=-1)) + 1)
    side = np.full(len(rank), -1, dtype=np.int64)
    for label in _rarest_first(labels):
        present, sizes = np.unique(groups[labels == label], return_counts=True)
        target = share * sizes.sum()
        filled = float(sizes[side[present] == 0].sum())
        for i in np.argsort(rank[present]):
            if side[present[i]] < 0:
                side[present[i]] = 0 if filled + sizes[i] / 2 <= target else 1
                filled += sizes[i] if side[present[i]] == 0 else 0
    return np.flatnonzero(side[groups] == 0), np.flatnonzero(side[groups] == 1)


def dirichlet(labels: Rows, clients: int, alpha: float, rng: np.random.Generator, min_rows: int = 2) -> list[Rows]:
    """Deal every class to the clients in proportions drawn from Dirichlet(alpha): labels and sizes are both skewed.

    Every row goes to exactly one client. A draw that leaves a client with fewer than ``min_rows`` is drawn again.
    """
    if len(labels) < clients * min_rows:
        raise InputError(
            f"{clients} clients of at least {min_rows} images need {clients * min_rows} images, got {len(labels)}; "
            "ask for fewer clients or a smaller min_rows"
        )
    classes, sizes = np.unique(labels, return_counts=True)
    for _ in range(TRIES):
        shares = rng.dirichlet(np.full(clients, alpha), size=len(classes))
        ends = np.rint(np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64)
        ends[:, -1] = sizes
        counts = np.diff(ends, axis=1, prepend=0)
        if counts.sum(axis=0).min() >= min_rows:
            break
    else:
        raise InputError(
            f"every client must get at least {min_rows} images, but none of {TRIES} draws of Dirichlet({alpha:g}) "
            f"dealt {len(labels)} images of {len(classes)} classes to {clients} clients so; "
            "ask for fewer clients, a larger alpha or a smaller min_rows"
        )
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    for label, end in zip(classes, ends, strict=True):
        shuffled = rng.permutation(np.flatnonzero(labels == label))
        for part, rows in zip(parts, np.split(shuffled, end[:-1]), strict=True):
            part.append(rows)
    return [np.sort(np.concatenate(part)) for part in parts]


def nested_sizes(rows: Rows, labels: Rows, fractions: Mapping[str, float], rng: np.random.Generator) -> dict[str, Rows]:
    """Take a fraction of the rows for every size, the smaller inside the larger, each with the mixture of the whole.

    The rows of every class are shuffled and spread evenly from 0 to 1; a size is what lies before its fraction.
    """
    place = np.zeros(len(rows), dtype=np.float64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        place[rng.permutation(members)] = (np.arange(len(members)) + 0.5) / len(members)
    order = np.lexsort((rng.permutation(len(rows)), place))
    return {name: np.sort(rows[order[: _at_least_one(part, len(rows))]]) for name, part in fractions.items()}


def _at_least_one(fraction: float, count: int) -> int:
    return min(count, max(1, int(fraction * count + 0.5)))


def _rarest_first(labels: Rows) -> NDArray[np.int64]:
    """Order the classes so that the one with the least choice chooses first."""
    classes, sizes = np.unique(labels, return_counts=True)
    return classes[np.argsort(sizes, kind="stable")]
