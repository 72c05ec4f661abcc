"""Split a table into clients: class-balanced test and validation sets per domain, the rest partitioned among clients.

Every random choice is seeded by the name of the domain and its purpose. So adding a domain does not change the others
(unless clients mix domains), and the new clients do not depend on the number of participating clients.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from pflbed.assignment import Assignment, by_domain
from pflbed.benchmark import MIXED, NEW, PARTICIPATING, SPLITS, TEST, VAL, Benchmark
from pflbed.errors import InputError
from pflbed.natural import natural
from pflbed.partition import (
    balanced_holdout,
    dirichlet,
    dirichlet_client,
    iid,
    mixture,
    own_groups,
    parts_of,
    shards,
    stratified_split,
)
from pflbed.parts import part_rows
from pflbed.seeding import generator
from pflbed.spec import Spec
from pflbed.table import Rows, Table

__all__ = ["Benchmark", "Spec", "balanced_count", "build"]

Names = tuple[str, ...]
TEST_CAP = 2
"""The test set takes at most 1/TEST_CAP of the images of a domain's rarest class."""
VAL_CAP = 6
"""The validation set takes at most 1/VAL_CAP of them."""


def build(table: Table, spec: Spec) -> Benchmark:
    """Split a table into participating and new clients, validation and test sets.

    Args:
        table: The images of a dataset, without pixels.
        spec: How to split it. If it names a part, the benchmark's table has the rows of that part alone.

    Returns:
        The benchmark. The same table and spec always give the same one.

    Example:
        >>> table = Table(paths=tuple(f"{i}.png" for i in range(80)), labels=np.arange(80) % 2,
        ...               domains=np.zeros(80, dtype=int), class_names=("cat", "dog"), domain_names=("photo",),
        ...               digest="")
        >>> benchmark = build(table, Spec(clients_per_domain=3, new_clients_per_domain=2))
        >>> benchmark.participating, benchmark.new
        (('photo/p00', 'photo/p01', 'photo/p02'), ('photo/n00', 'photo/n01'))
        >>> len(benchmark.held_rows("photo/n00", "test"))
        12
    """
    if not len(table):
        raise InputError("A benchmark must have images, got an empty table; check where the data is read")
    table = table.take(part_rows(table, spec.part))
    if spec.natural:
        return natural(table, spec)
    assignment = Assignment(table, spec)
    groups = _group_numbers(table)
    pools: dict[int, list[tuple[str, Rows]]] = {PARTICIPATING: [], NEW: []}
    official = np.zeros(len(table), dtype=np.bool_) if table.official_test is None else table.official_test
    if spec.split[3] and all(official[rows].any() for _, rows in by_domain(table)):
        raise InputError(
            f"This dataset has an official test set of {official.sum()} images, so the test share of split must be 0, "
            f"got {spec.split[3]:g}; give it to the clients"
        )
    for domain, rows in by_domain(table):
        with _in_domain(domain):
            held = official[rows]
            for split, members in _split_domain(
                rows, table.labels[rows], groups[rows], held, spec, domain, table.class_names
            ).items():
                assignment.split[members] = split
                if split in pools:
                    pools[split].append((domain, members))
    if spec.partition == "mixture":
        many = len(pools[PARTICIPATING])
        pools = {split: [(MIXED, np.concatenate([rows for _, rows in parts]))] for split, parts in pools.items()}
    else:
        many = 1
    # Clients are listed domain by domain, those that participate first.
    for domain in dict.fromkeys(domain for parts in pools.values() for domain, _ in parts):
        for split, count in ((PARTICIPATING, spec.clients_per_domain), (NEW, spec.new_clients_per_domain)):
            members = dict(pools[split])[domain]
            if count:
                with _in_domain(f"{domain}, {SPLITS[split]} clients"):
                    owners = _partition(table, members, count * many, spec, SPLITS[split], domain)
                for i, part in enumerate(parts_of(owners, count * many)):
                    assignment.add(f"{domain}/{SPLITS[split][0]}{i:02d}", members[part], new=split == NEW)
    return assignment.benchmark()


def balanced_count(share: float, labels: Rows, cap: int) -> int:
    """How many rows of every class to hold out: a share of the mean class size, at most 1/cap of the rarest class."""
    sizes = np.unique(labels, return_counts=True)[1]
    return min(round(share * len(labels) / len(sizes)), int(sizes.min()) // cap)


def _partition(table: Table, rows: Rows, clients: int, spec: Spec, pool: str, domain: str) -> Rows:
    """Partition the rows of a pool among its clients, as the spec says."""
    rng, labels = generator(spec.seed, "clients", pool, domain), table.labels[rows]
    match spec.partition:
        case "dirichlet":
            return dirichlet(labels, clients, spec.alpha, rng, spec.min_rows)
        case "dirichlet-client":
            return dirichlet_client(labels, clients, spec.alpha, rng, spec.min_rows)
        case "shards":
            return shards(labels, clients, spec.classes_per_client, rng, spec.min_rows)
        case "iid":
            return iid(len(rows), clients, rng, spec.min_rows)
        case _:
            return mixture(labels, table.domains[rows], clients, spec.alpha, spec.domain_alpha, rng, spec.min_rows)


def _split_domain(
    rows: Rows, labels: Rows, groups: Rows, official_test: NDArray[np.bool_], spec: Spec, domain: str, names: Names
) -> dict[int, Rows]:
    """The test set, the validation set, and the two pools of clients of one domain."""
    parts: dict[int, Rows] = {}
    free = np.flatnonzero(~official_test)
    wanted = [(VAL, spec.split[2], VAL_CAP)]
    if official_test.any():
        parts[TEST] = rows[official_test]
        free = free[~np.isin(groups[free], groups[official_test])]  # nobody trains on copies of test images
    elif spec.split[3] <= 0:
        raise InputError(
            f"split must leave something to test on, got a test share of {spec.split[3]:g}; raise the last share"
        )
    else:
        wanted.insert(0, (TEST, spec.split[3], TEST_CAP))
    everything = labels[free]
    for split, percent, cap in wanted:
        count = balanced_count(percent / 100, everything, cap)
        if percent and not count:
            classes, sizes = np.unique(everything, return_counts=True)
            raise InputError(
                f"The {SPLITS[split]} set must hold an image of every class, but {percent:g} % of {len(everything)} "
                f"images, and at most 1/{cap} of the {sizes.min()} of class {names[classes[sizes.argmin()]]!r}, is "
                "none; add images of it, take its folder out or change the split"
            )
        rng = generator(spec.seed, SPLITS[split], domain)
        chosen, surplus = balanced_holdout(labels[free], _dense(groups[free]), count, rng)
        parts[split] = rows[free[chosen]]
        free = np.delete(free, np.concatenate([chosen, surplus]))
    share = spec.split[1] / (spec.split[0] + spec.split[1])
    rng = generator(spec.seed, "pools", domain)
    new, participating = stratified_split(labels[free], _dense(groups[free]), share, rng)
    return parts | {NEW: rows[free[new]], PARTICIPATING: rows[free[participating]]}


def _group_numbers(table: Table) -> Rows:
    if table.groups is None:
        return own_groups(len(table))
    numbers = np.unique(np.asarray(table.groups), return_inverse=True)[1].astype(np.int64)
    pairs = np.unique(np.stack([numbers, table.domains]), axis=1)
    if (doubled := np.flatnonzero(np.diff(pairs[0]) == 0)).size:
        group = table.groups[int(np.argmax(numbers == pairs[0, doubled[0]]))]
        raise InputError(f"A group must be within one domain, but {group!r} is in two; use another name per domain")
    return numbers


def _dense(groups: Rows) -> Rows:
    """Number the groups 0, 1, ... in their order, so that a draw does not depend on groups elsewhere."""
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


@contextmanager
def _in_domain(name: str) -> Iterator[None]:
    """Add the name of the domain to an error."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{error} (domain {name})") from error
