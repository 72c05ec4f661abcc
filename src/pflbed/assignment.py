"""The assignment of rows to splits and clients while a benchmark is built."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from pflbed.benchmark import UNUSED, Benchmark
from pflbed.errors import InputError
from pflbed.partition import nested_sizes
from pflbed.seeding import generator
from pflbed.spec import Spec
from pflbed.table import Rows, Table


class Assignment:
    """Split, client and size of every row; a row that is not assigned is unused."""

    def __init__(self, table: Table, spec: Spec) -> None:
        self.table, self.spec = table, spec
        self.split = np.full(len(table), UNUSED, dtype=np.int8)
        self.client = np.full(len(table), -1, dtype=np.int64)
        self.smallest = np.full(len(table), -1, dtype=np.int8)
        self.ids: list[str] = []

    def add(self, name: str, rows: Rows, new: bool) -> None:
        """Add a client with its training rows; for a new client also draw its nested sizes."""
        self.client[rows] = len(self.ids)
        self.ids.append(name)
        if new:
            rng = generator(self.spec.seed, "sizes", name)
            nested = list(nested_sizes(rows, self.table.labels[rows], self.spec.sizes, rng).values())
            for number, part in reversed(list(enumerate(nested))):
                self.smallest[part] = number

    def benchmark(self) -> Benchmark:
        """Return the finished benchmark."""
        if len(set(self.ids)) != len(self.ids):
            twice = next(name for name, count in Counter(self.ids).items() if count > 1)
            raise InputError(f"Every client must have a name of its own, got {twice!r} twice; rename a user")
        return Benchmark(self.table, self.spec, self.split, self.client, tuple(self.ids), self.smallest)


def by_domain(table: Table) -> Iterator[tuple[str, Rows]]:
    """Iterate over the domains that have rows."""
    for number, domain in enumerate(table.domain_names):
        rows = np.flatnonzero(table.domains == number)
        if len(rows):
            yield domain, rows
