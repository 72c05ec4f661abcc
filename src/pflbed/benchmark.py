"""A benchmark assigns every row of a table to a split, a client and a size. It holds no pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pflbed.errors import InputError, did_you_mean
from pflbed.spec import Spec
from pflbed.table import Rows, Table

SPLITS = ("participating", "new", "val", "test", "unused")
PARTICIPATING, NEW, VAL, TEST, UNUSED = range(len(SPLITS))
MIXED = "mixed"
"""The domain name of a client that has images of several domains."""


@dataclass(frozen=True, eq=False)
class Benchmark:
    """The rows of every client. The same table and spec always give the same benchmark.

    Example:
        >>> import pflbed
        >>> images, labels = np.zeros((80, 8, 8), dtype=np.uint8), np.arange(80) % 2
        >>> benchmark = pflbed.from_arrays(images, labels, clients=3, new=2).benchmark
        >>> benchmark.participating, benchmark.role_of("data/n00")
        (('data/p00', 'data/p01', 'data/p02'), 'new')
        >>> set(benchmark.rows("data/n00", "S")) <= set(benchmark.rows("data/n00", "M"))
        True
    """

    table: Table
    spec: Spec
    split: NDArray[np.int8]
    """Per row an index into ``SPLITS``; unused rows are the surplus of a holdout's groups, or of no client."""
    client: Rows
    """Per row an index into ``client_ids``, or -1 for a row that belongs to no client alone."""
    client_ids: tuple[str, ...]
    """``<domain>/p00`` participates, ``<domain>/n00`` is new; in a natural partition ``<domain>/<user>``."""
    smallest: NDArray[np.int8]
    """Per row of a new client the smallest size (an index into the spec's) it belongs to, so "S" is in M; else -1."""

    @property
    def participating(self) -> tuple[str, ...]:
        """The clients that train together."""
        return self._roles[PARTICIPATING]

    @property
    def new(self) -> tuple[str, ...]:
        """The clients that arrive after training."""
        return self._roles[NEW]

    def role_of(self, client_id: str) -> str:
        """Either "participating" or "new"."""
        return "new" if self.split[self.rows(client_id)[0]] == NEW else "participating"

    def domain_of(self, client_id: str) -> str:
        """The one domain that a client's images come from, or "mixed"."""
        if self.spec.partition == "mixture":
            self._index(client_id)
            return MIXED
        name: str = self.table.domain_names[int(self.table.domains[self.rows(client_id)[0]])]
        return name

    def rows(self, client_id: str, size: str | None = None) -> Rows:
        """The rows a client trains on: all of them, or those of one size if it is new."""
        mine = self._rows_of(self._index(client_id))
        mine = mine[self.split[mine] <= NEW]
        if size is None:
            return mine
        if size not in self.spec.sizes:
            raise InputError(f"size must be one of {', '.join(self.spec.sizes)}, got {size!r}; choose one of these")
        if self.split[mine[0]] == PARTICIPATING:
            if self.spec.sizes[size] == 1.0:
                return mine
            raise InputError(f"Only new clients have sizes, but {client_id!r} participates; leave the size out")
        number = list(self.spec.sizes).index(size)
        return mine[(self.smallest[mine] >= 0) & (self.smallest[mine] <= number)]

    def shared_rows(self, domain: str, split: str) -> Rows:
        """The validation ("val") or test rows that all clients of a domain share."""
        if domain not in (names := self.table.domain_names):
            raise InputError(f"domain must be one of the table's, got {domain!r}{did_you_mean(domain, names)}")
        return self._shared[_held(split)][names.index(domain)]

    def held_rows(self, client_id: str, split: str) -> Rows:
        """The validation ("val") or test rows of a client: its own, its domain's, or those of all domains."""
        if self.spec.natural:
            mine = self._rows_of(self._index(client_id))
            held: Rows = mine[self.split[mine] == _held(split)]
            return held
        if self.spec.partition == "mixture":
            self._index(client_id)
            return self._all_shared[_held(split)]
        return self.shared_rows(self.domain_of(client_id), split)

    def held_weights(self, client_id: str, split: str) -> NDArray[np.float64]:
        """The weight of each of ``held_rows`` for a client: how frequent its class (and domain) is in training.

        A class-balanced test set of one domain is weighted by P_m(y), as in the paper. Where the test set is not
        balanced (clients that mix domains, official test sets) the weight of a class is divided among its images. A
        client's own test images have its distribution already and are weighted equally.
        """
        held = self.held_rows(client_id, split)
        if self.spec.natural or not len(held):
            return np.ones(len(held), dtype=np.float64)
        cells = len(self.table.class_names) * len(self.table.domain_names)
        trained = np.bincount(self._cell(self.rows(client_id)), minlength=cells)
        present = np.bincount(self._cell(held), minlength=cells)
        share = trained / trained.sum() * (present.max() / np.maximum(present, 1))  # the factor is 1 where balanced
        return np.asarray(share[self._cell(held)], dtype=np.float64)

    def counts(self, client_id: str) -> Rows:
        """How many images of every class a client trains on, at its full size."""
        labels = self.table.labels[self.rows(client_id)]
        return np.bincount(labels, minlength=len(self.table.class_names)).astype(np.int64)

    def label_distribution(self, client_id: str) -> NDArray[np.float64]:
        """P_m(y) over ``class_names``, always that of the client's full training set."""
        counts = self.counts(client_id).astype(np.float64)
        return np.asarray(counts / counts.sum(), dtype=np.float64)

    def held_distribution(self, client_id: str, split: str = "test") -> NDArray[np.float64]:
        """The weighted class distribution that a client is scored on; compare with ``label_distribution``."""
        rows, weights = self.held_rows(client_id, split), self.held_weights(client_id, split)
        sums = np.bincount(self.table.labels[rows], weights=weights, minlength=len(self.table.class_names))
        return np.asarray(sums / max(sums.sum(), np.finfo(np.float64).tiny), dtype=np.float64)

    def save(self, folder: Path) -> None:
        """Write ``manifest.parquet`` and ``card.json``; the same benchmark gives the same bytes."""
        from pflbed.manifest import save

        save(self, folder)

    @cached_property
    def client_numbers(self) -> Mapping[str, int]:
        """The index of every client in ``client_ids``."""
        return {name: i for i, name in enumerate(self.client_ids)}

    @cached_property
    def _sorted(self) -> tuple[Rows, Rows]:
        """Rows sorted by client, and the start of every client, for fast lookup."""
        order = np.argsort(self.client, kind="stable")
        return order, np.searchsorted(self.client[order], np.arange(len(self.client_ids) + 1))

    @cached_property
    def _roles(self) -> dict[int, tuple[str, ...]]:
        trains = np.zeros(len(self.client_ids), dtype=np.bool_)
        trains[self.client[(self.split == PARTICIPATING) & (self.client >= 0)]] = True
        chosen = {PARTICIPATING: trains, NEW: ~trains}
        return {role: tuple(self.client_ids[i] for i in np.flatnonzero(mine)) for role, mine in chosen.items()}

    @cached_property
    def _shared(self) -> dict[int, list[Rows]]:
        domains = range(len(self.table.domain_names))
        alone = self.client < 0
        return {
            split: [np.flatnonzero(alone & (self.split == split) & (self.table.domains == d)) for d in domains]
            for split in (VAL, TEST)
        }

    @cached_property
    def _all_shared(self) -> dict[int, Rows]:
        return {split: np.sort(np.concatenate(parts)) for split, parts in self._shared.items()}

    def _cell(self, rows: Rows) -> Rows:
        """The class of every row, or its class within its domain if clients mix domains."""
        if self.spec.partition != "mixture":
            return self.table.labels[rows]
        return self.table.labels[rows] + self.table.domains[rows] * len(self.table.class_names)

    def _rows_of(self, number: int) -> Rows:
        order, starts = self._sorted
        return order[starts[number] : starts[number + 1]]

    def _index(self, client_id: str) -> int:
        if client_id not in self.client_numbers:
            raise InputError(
                f"Client must be one of the {len(self.client_ids)} from {self.client_ids[0]!r} to "
                f"{self.client_ids[-1]!r}, got {client_id!r}; see client_ids"
            )
        return self.client_numbers[client_id]


def _held(split: str) -> int:
    if split not in ("val", "test"):
        raise InputError(f'The shared splits are "val" and "test", got {split!r}; choose one of these')
    return SPLITS.index(split)
