"""PFLBed's six steps: each domain lends class-balanced test and validation sets, and the rest is dealt to its clients.

Every choice is seeded by the domain's name and its purpose. So a further domain leaves the others as they were, and the
new clients stay the same whatever the number of participating ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from pflbed.benchmark import Benchmark
from pflbed.errors import InputError
from pflbed.manifest import load_manifest
from pflbed.partition import balanced_holdout, dirichlet, nested_sizes, own_groups, stratified_split
from pflbed.seeding import generator
from pflbed.spec import Spec
from pflbed.table import Rows, Table

__all__ = ["Benchmark", "Spec", "balanced_count", "build", "load_manifest"]

TEST_CAP = 2
"""The test set takes at most one of so many images of a domain's rarest class ..."""
VAL_CAP = 6
"""... and the validation set at most one of so many."""


def build(table: Table, spec: Spec) -> Benchmark:
    """Give every row of the table its place."""
    if not len(table):
        raise InputError("a benchmark must have images, got an empty table; check where the data is read")
    groups = _group_numbers(table)
    split = np.full(len(table), "unused", dtype="<U13")
    smallest = np.full(len(table), "", dtype=f"<U{max(map(len, spec.sizes))}")
    client = np.full(len(table), -1, dtype=np.int64)
    client_ids: list[str] = []
    for number, domain in enumerate(table.domain_names):
        rows = np.flatnonzero(table.domains == number)
        if not len(rows):
            continue
        with _in_domain(domain):
            places = _split_domain(rows, table.labels[rows], groups[rows], spec, domain)
        for name, members in places.items():
            split[members] = name
        for pool, letter, count in (("participating", "p", spec.clients_per_domain),
                                    ("new", "n", spec.new_clients_per_domain)):  # fmt: skip
            members = places[pool]
            if not count:
                continue
            with _in_domain(f"{domain}, {pool} clients"):
                rng = generator(spec.seed, "clients", pool, domain)
                parts = dirichlet(table.labels[members], count, spec.alpha, rng, spec.min_rows)
            for i, part in enumerate(parts):
                mine = members[part]
                client[mine] = len(client_ids)
                client_ids.append(f"{domain}/{letter}{i:02d}")
                if pool == "new":
                    rng = generator(spec.seed, "sizes", client_ids[-1])
                    nested = nested_sizes(mine, table.labels[mine], spec.sizes, rng)
                    for size in reversed(nested):
                        smallest[nested[size]] = size
    return Benchmark(table, spec, split, client, tuple(client_ids), smallest)


def balanced_count(share: float, labels: Rows, cap: int) -> int:
    """How many rows of every class to hold out: the share of the mean class, but at most 1/cap of the rarest."""
    sizes = np.unique(labels, return_counts=True)[1]
    return min(round(share * len(labels) / len(sizes)), int(sizes.min()) // cap)


def _split_domain(rows: Rows, labels: Rows, groups: Rows, spec: Spec, domain: str) -> dict[str, Rows]:
    """Steps 2 and 3: test, validation, and the two pools of one domain."""
    places: dict[str, Rows] = {}
    free = np.arange(len(rows), dtype=np.int64)
    for name, percent, cap in (("test", spec.split[3], TEST_CAP), ("val", spec.split[2], VAL_CAP)):
        count = balanced_count(percent / 100, labels, cap)
        if percent and not count:
            raise InputError(
                f"the {name} set must hold an image of every class, but {percent:g} % of {len(rows)} images, and at "
                f"most 1/{cap} of the rarest class of {np.unique(labels, return_counts=True)[1].min()}, is none; "
                "add images, leave out the rarest class or change the split"
            )
        rng = generator(spec.seed, name, domain)
        chosen, surplus = balanced_holdout(labels[free], _dense(groups[free]), count, rng)
        places[name] = rows[free[chosen]]
        free = np.delete(free, np.concatenate([chosen, surplus]))
    share = spec.split[1] / (spec.split[0] + spec.split[1])
    rng = generator(spec.seed, "pools", domain)
    new, participating = stratified_split(labels[free], _dense(groups[free]), share, rng)
    return places | {"new": rows[free[new]], "participating": rows[free[participating]]}


def _group_numbers(table: Table) -> Rows:
    if table.groups is None:
        return own_groups(len(table))
    numbers = np.unique(np.asarray(table.groups), return_inverse=True)[1].astype(np.int64)
    pairs = np.unique(np.stack([numbers, table.domains]), axis=1)
    if (doubled := np.flatnonzero(np.diff(pairs[0]) == 0)).size:
        group = table.groups[int(np.argmax(numbers == pairs[0, doubled[0]]))]
        raise InputError(f"a group must lie within one domain, but {group!r} stands in two; name it once per domain")
    return numbers


def _dense(groups: Rows) -> Rows:
    """Number the groups 0, 1, ... in their order, so that a draw does not depend on groups elsewhere."""
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


@contextmanager
def _in_domain(name: str) -> Iterator[None]:
    """Say in which domain something went wrong."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{error} (domain {name})") from error
