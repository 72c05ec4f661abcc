"""A benchmark says where every row of a table stands: in which split, with which client, in which size. No pixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pflbed.errors import InputError
from pflbed.spec import Spec
from pflbed.table import Rows, Table

SPLITS = ("participating", "new", "val", "test", "unused")


@dataclass(frozen=True, eq=False)
class Benchmark:
    """The exact rows of every client; the same table and spec always give the same one."""

    table: Table
    spec: Spec
    split: NDArray[np.str_]
    """Per row one of ``SPLITS``; unused rows are the surplus of groups that a holdout cut."""
    client: Rows
    """Per row an index into ``client_ids``, or -1 for a row that no client trains on."""
    client_ids: tuple[str, ...]
    """``<domain>/p00`` participates, ``<domain>/n00`` is new."""
    smallest: NDArray[np.str_]
    """Per row of a new client the smallest size it belongs to, so that "S" rows are in M as well; else empty."""

    @property
    def participating(self) -> tuple[str, ...]:
        """The clients that train together."""
        return tuple(name for name in self.client_ids if name.rpartition("/")[2].startswith("p"))

    @property
    def new(self) -> tuple[str, ...]:
        """The clients that come after training."""
        return tuple(name for name in self.client_ids if name.rpartition("/")[2].startswith("n"))

    def domain_of(self, client_id: str) -> str:
        """The one domain that a client's images come from."""
        self._index(client_id)
        return client_id.rpartition("/")[0]

    def rows(self, client_id: str, size: str | None = None) -> Rows:
        """The rows a client trains on: all of them, or those of one size if it is new."""
        mine = np.flatnonzero(self.client == self._index(client_id))
        if size is None:
            return mine
        if size not in self.spec.sizes:
            raise InputError(f"size must be one of {', '.join(self.spec.sizes)}, got {size!r}; choose one of these")
        if self.spec.sizes[size] == 1.0:
            return mine
        if client_id not in self.new:
            raise InputError(f"only new clients have sizes, but {client_id!r} participates; leave the size out")
        names = list(self.spec.sizes)
        return mine[np.isin(self.smallest[mine], names[: names.index(size) + 1])]

    def shared_rows(self, domain: str, split: str) -> Rows:
        """The validation ("val") or test rows that all clients of a domain share."""
        if domain not in self.table.domain_names:
            known = ", ".join(self.table.domain_names)
            raise InputError(f"domain must be one of {known}, got {domain!r}; choose one of these")
        if split not in ("val", "test"):
            raise InputError(f'the shared splits are "val" and "test", got {split!r}; choose one of these')
        here = self.table.domains == self.table.domain_names.index(domain)
        return np.flatnonzero(here & (self.split == split))

    def counts(self, client_id: str) -> Rows:
        """How many images of every class a client trains on, at its full size."""
        labels = self.table.labels[self.rows(client_id)]
        return np.bincount(labels, minlength=len(self.table.class_names)).astype(np.int64)

    def label_distribution(self, client_id: str) -> NDArray[np.float64]:
        """P_m(y) over ``class_names``, always that of the client's full training set."""
        counts = self.counts(client_id).astype(np.float64)
        return np.asarray(counts / counts.sum(), dtype=np.float64)

    def save(self, folder: Path) -> None:
        """Write ``manifest.parquet`` and ``card.json``; the same benchmark is the same bytes."""
        from pflbed.manifest import save

        save(self, folder)

    def _index(self, client_id: str) -> int:
        if client_id not in self.client_ids:
            raise InputError(
                f"client must be one of the {len(self.client_ids)} from {self.client_ids[0]!r} to "
                f"{self.client_ids[-1]!r}, got {client_id!r}; see client_ids"
            )
        return self.client_ids.index(client_id)
