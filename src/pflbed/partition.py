"""Partitions: pure functions from labels and a random generator to the client number of every row.

Every row gets exactly one number, so no row can be assigned twice or left out.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from pflbed.errors import InputError
from pflbed.table import Rows

TRIES = 1000


def own_groups(count: int) -> Rows:
    """A separate group for every row."""
    return np.arange(count, dtype=np.int64)


def balanced_holdout(
    labels: Rows, groups: Rows | None, count_per_class: int, rng: np.random.Generator
) -> tuple[Rows, Rows]:
    """Take the same number of rows of every class, group by group; return them and the surplus rows.

    A group of which a row is taken belongs to this holdout: its other rows are surplus and must not be used elsewhere.
    Without groups there is no surplus.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    if (scarce := np.flatnonzero(sizes < count_per_class)).size:
        raise InputError(
            f"class number {classes[scarce[0]]} must have {count_per_class} images to hold out, got "
            f"{sizes[scarce[0]]} that are free; add images of this class or hold out a smaller share"
        )
    alone = groups is None or len(np.unique(groups)) == len(groups)
    groups = own_groups(len(labels)) if groups is None else groups
    rank = rng.permutation(int(groups.max(initial=-1)) + 1)[groups]
    tie = rng.permutation(len(labels))
    if alone:
        return np.sort(np.flatnonzero(_place_in_class(labels, rank) < count_per_class)), np.zeros(0, dtype=np.int64)
    order = np.lexsort((tie, rank))
    begun: Rows = np.zeros(0, dtype=np.int64)
    chosen: Rows = np.zeros(0, dtype=np.int64)
    for label in _rarest_first(labels):
        rows = order[labels[order] == label]
        fresh = ~np.isin(groups[rows], begun)
        rows = rows[np.argsort(fresh, kind="stable")][:count_per_class]
        chosen = np.concatenate([chosen, rows])
        begun = np.union1d(begun, groups[rows])
    surplus = np.setdiff1d(np.flatnonzero(np.isin(groups, begun)), chosen)
    return np.sort(chosen), surplus.astype(np.int64)


def stratified_split(labels: Rows, groups: Rows | None, share: float, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Split the rows in two; the first part has the given share of every class, rounded to whole groups."""
    alone = groups is None or len(np.unique(groups)) == len(groups)
    groups = own_groups(len(labels)) if groups is None else groups
    rank = rng.permutation(int(groups.max(initial=-1)) + 1)
    if alone:
        sizes = np.bincount(labels, minlength=int(labels.max(initial=-1)) + 1)
        first = _place_in_class(labels, rank[groups]) + 0.5 <= share * sizes[labels]
        return np.flatnonzero(first), np.flatnonzero(~first)
    side = np.full(len(rank), -1, dtype=np.int64)
    for label in _rarest_first(labels):
        present, counts = np.unique(groups[labels == label], return_counts=True)
        target = share * counts.sum()
        filled = float(counts[side[present] == 0].sum())
        for i in np.argsort(rank[present]):
            if side[present[i]] < 0:
                side[present[i]] = 0 if filled + counts[i] / 2 <= target else 1
                filled += counts[i] if side[present[i]] == 0 else 0
    return np.flatnonzero(side[groups] == 0), np.flatnonzero(side[groups] == 1)


def dirichlet(labels: Rows, clients: int, alpha: float, rng: np.random.Generator, min_rows: int = 2) -> Rows:
    """Divide every class among the clients by proportions from Dirichlet(alpha): labels and sizes are skewed.

    A client that would get fewer than ``min_rows`` draws its share of every class again.
    """
    classes, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    shares = rng.dirichlet(np.full(clients, alpha), size=len(classes))

    def renew(poor: Rows) -> NDArray[np.float64]:
        """Dirichlet shares are Gamma draws over their sum, which is independent of them: draw that, too, for scale."""
        drawn = rng.gamma(alpha, size=(len(classes), len(poor)))
        return np.asarray(drawn / rng.gamma(alpha * clients, size=(len(classes), 1)), dtype=np.float64)

    return _divide(labels, sizes, shares, renew, f"Dirichlet({alpha:g})", rng, min_rows)


def mixture(
    labels: Rows, domains: Rows, clients: int, alpha: float, domain_alpha: float, rng: np.random.Generator,
    min_rows: int = 2,
) -> Rows:  # fmt: skip
    """Divide every class of every domain as ``dirichlet`` does, weighted by the clients' domain proportions.

    The domain proportions of a client are drawn from Dirichlet(domain_alpha); if they are uniform, this is
    ``dirichlet``.
    """
    cells, cell, sizes = np.unique(np.stack([domains, labels]), axis=1, return_inverse=True, return_counts=True)
    kinds, domain = np.unique(cells[0], return_inverse=True)
    proportions = rng.dirichlet(np.full(len(kinds), domain_alpha), size=clients)
    weight = proportions.T[domain]  # of every cell by every client

    def renew(poor: Rows) -> NDArray[np.float64]:
        return np.asarray(rng.gamma(alpha, size=(len(sizes), len(poor))) * weight[:, poor], dtype=np.float64)

    weights = renew(np.arange(clients))
    return _divide(cell.ravel().astype(np.int64), sizes, weights, renew, f"Dirichlet({alpha:g})", rng, min_rows)


def dirichlet_client(labels: Rows, clients: int, alpha: float, rng: np.random.Generator, min_rows: int = 2) -> Rows:
    """Draw a class distribution q ~ Dirichlet(alpha * prior) per client and its images by it; equal sizes.

    Hsu, Qi and Brown 2019 (arXiv:1909.06335). The prior is the class distribution of all rows and sums to 1, so with C
    classes an alpha here is as skewed as alpha / C in ``dirichlet``. When a class is used up, a client draws from the
    others in proportion to q.
    """
    _enough(len(labels), clients, min_rows)
    classes, labels, left = np.unique(labels, return_inverse=True, return_counts=True)
    prior = alpha * left / left.sum()
    counts = np.zeros((len(classes), clients), dtype=np.int64)
    for client in range(clients):
        mixture_of_client = rng.dirichlet(prior)
        wanted = (len(labels) * (client + 1)) // clients - (len(labels) * client) // clients
        while wanted:
            weights = np.where(left > 0, mixture_of_client + 1e-12, 0.0)
            drawn = np.minimum(rng.multinomial(wanted, weights / weights.sum()), left)
            left, wanted = left - drawn, wanted - int(drawn.sum())
            counts[:, client] += drawn
    return _owners(labels, counts, rng)


def shards(labels: Rows, clients: int, classes_per_client: int, rng: np.random.Generator, min_rows: int = 2) -> Rows:
    """Divide every class into shards and give every client one shard of each of ``classes_per_client`` classes.

    With 10 equal classes, 80 clients and 5 classes each, a class has 40 shards and every client is equally large.
    """
    classes, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if classes_per_client > len(classes):
        raise InputError(
            f"classes_per_client must be at most the number of classes, got {classes_per_client} of {len(classes)}; "
            "ask for a smaller classes_per_client"
        )
    if clients * classes_per_client < len(classes):
        raise InputError(
            f"The clients' classes must cover all {len(classes)}, but {clients} clients of {classes_per_client} cover "
            f"{clients * classes_per_client}; ask for more clients or a larger classes_per_client"
        )
    left = _apportion(sizes, clients * classes_per_client, clients)
    cut = np.concatenate([np.diff((size * np.arange(n + 1)) // max(n, 1)) for size, n in zip(sizes, left, strict=True)])
    next_shard = np.concatenate([[0], np.cumsum(left)])[:-1]
    counts = np.zeros((len(classes), clients), dtype=np.int64)
    for client in range(clients):
        # A class with as many shards as there are clients left must be taken; then the rest always works out.
        forced = np.flatnonzero(left == clients - client)
        free = np.flatnonzero((left > 0) & (left < clients - client))
        more = classes_per_client - len(forced)
        taken = forced
        if more:
            chosen = rng.choice(free, more, replace=False, p=left[free] / left[free].sum())
            taken = np.concatenate([forced, chosen])
        counts[taken, client] = cut[next_shard[taken]]
        next_shard[taken] += 1
        left[taken] -= 1
    smallest = int(counts.sum(axis=0).min())
    if smallest < min_rows:
        raise InputError(
            f"Every client must get at least {min_rows} images, but {clients} clients of {classes_per_client} classes "
            f"leave one with {smallest} of {len(labels)}; ask for fewer clients, a smaller classes_per_client or a "
            "smaller min_rows"
        )
    return _owners(labels, counts, rng)


def iid(count: int, clients: int, rng: np.random.Generator, min_rows: int = 2) -> Rows:
    """Shuffle the rows and divide them equally."""
    _enough(count, clients, min_rows)
    owners = np.empty(count, dtype=np.int64)
    owners[rng.permutation(count)] = (np.arange(count) * clients) // count
    return owners


def nested_sizes(rows: Rows, labels: Rows, fractions: Mapping[str, float], rng: np.random.Generator) -> dict[str, Rows]:
    """Select a fraction of the rows for every size, nested, each with the class distribution of all rows.

    The rows of every class are shuffled and spread evenly from 0 to 1; a size is the rows before its fraction.
    """
    order = spread(labels, rng)
    return {name: np.sort(rows[order[: _at_least_one(part, len(rows))]]) for name, part in fractions.items()}


def spread(labels: Rows, rng: np.random.Generator) -> Rows:
    """Order the rows so that every prefix has about the class distribution of all rows."""
    place = np.zeros(len(labels), dtype=np.float64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        place[rng.permutation(members)] = (np.arange(len(members)) + 0.5) / len(members)
    return np.lexsort((rng.permutation(len(labels)), place))


def parts_of(owners: Rows, clients: int) -> list[Rows]:
    """List the rows of every client, in order."""
    order = np.argsort(owners, kind="stable")
    return np.split(order, np.searchsorted(owners[order], np.arange(1, clients)))


def _divide(
    labels: Rows, sizes: Rows, weights: NDArray[np.float64], renew: Callable[[Rows], NDArray[np.float64]], what: str,
    rng: np.random.Generator, min_rows: int,
) -> Rows:  # fmt: skip
    """Convert the clients' weights per class to counts; ``renew`` draws new weights for clients with too few rows."""
    clients = weights.shape[1]
    _enough(len(labels), clients, min_rows)
    for _ in range(TRIES):
        safe = weights + np.finfo(np.float64).tiny  # a class with all weights 0 is still assigned
        ends = np.rint(np.cumsum(safe / safe.sum(axis=1, keepdims=True), axis=1) * sizes[:, None]).astype(np.int64)
        ends[:, -1] = sizes
        counts = np.diff(ends, axis=1, prepend=0)
        poor = np.flatnonzero(counts.sum(axis=0) < min_rows)
        if not poor.size:
            return _owners(labels, counts, rng)
        weights = weights.copy()
        weights[:, poor] = renew(poor)
    raise InputError(
        f"Every client must get at least {min_rows} images, but {TRIES} draws of {what} did not give that for "
        f"{len(labels)} images of {len(sizes)} classes and {clients} clients; "
        "ask for fewer clients, a larger alpha or a smaller min_rows"
    )


def _owners(labels: Rows, counts: Rows, rng: np.random.Generator) -> Rows:
    """Assign ``counts[class, client]`` random rows of every class to every client."""
    by_class = np.argsort(labels, kind="stable")
    owners = np.empty(len(labels), dtype=np.int64)
    end = 0
    for count in counts:
        start, end = end, end + int(count.sum())
        owners[rng.permutation(by_class[start:end])] = np.repeat(np.arange(len(count)), count)
    return owners


def _apportion(sizes: Rows, total: int, most: int) -> Rows:
    """Divide a total in proportion to the sizes, in whole numbers from 1 to ``most``."""
    ideal = total * sizes / sizes.sum()
    given: Rows = np.clip(np.floor(ideal), 1, most).astype(np.int64)
    while (missing := total - int(given.sum())) != 0:
        step = 1 if missing > 0 else -1
        lack = np.where(given < most if step > 0 else given > 1, step * (ideal - given), -np.inf)  # who lacks most
        given[np.argmax(lack)] += step
    return given


def _place_in_class(labels: Rows, rank: Rows) -> Rows:
    """How many rows of the same class come before each row, by rank."""
    order = np.lexsort((rank, labels))
    starts = np.searchsorted(labels[order], labels[order], side="left")
    place = np.empty(len(labels), dtype=np.int64)
    place[order] = np.arange(len(labels)) - starts
    return place


def _enough(count: int, clients: int, min_rows: int) -> None:
    if count < clients * min_rows:
        raise InputError(
            f"{clients} clients of at least {min_rows} images need {clients * min_rows} images, got {count}; "
            "ask for fewer clients or a smaller min_rows"
        )


def _at_least_one(fraction: float, count: int) -> int:
    return min(count, max(1, int(fraction * count + 0.5)))


def _rarest_first(labels: Rows) -> NDArray[np.int64]:
    """The classes, the rarest first."""
    classes, sizes = np.unique(labels, return_counts=True)
    return classes[np.argsort(sizes, kind="stable")]
