"""A partitioner for flwr-datasets that assigns rows to clients exactly as a benchmark's manifest does.

Import it only where flwr-datasets is installed. That package sends telemetry unless FLWR_TELEMETRY_ENABLED=0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pflbed.benchmark import Benchmark
from pflbed.errors import InputError
from pflbed.table import Rows

if TYPE_CHECKING:
    from datasets import Dataset  # type: ignore[import-untyped]

try:
    from flwr_datasets.partitioner import Partitioner  # type: ignore[import-untyped]
except ImportError as error:
    raise InputError(
        f"A partitioner for Flower needs flwr-datasets, which cannot be imported here ({error}); "
        "pip install 'fedbasis[flower-datasets]'"
    ) from error


class ManifestPartitioner(Partitioner):  # type: ignore[misc]
    """Partition i holds the training (or validation, or test) images of client ``client_ids[i]``.

    Rows are matched by the column ``row`` that ``pflbed export --to flower`` writes, in any order. A dataset without
    that column must have exactly the manifest's rows in their order, so it must not be shuffled
    (``FederatedDataset(..., shuffle=False)``).

    Args:
        benchmark: The benchmark, for instance from ``load_manifest("export/benchmark")``.
        role: "participating" or "new".
        split: "train", "val" or "test".
        size: For new clients, the size of the training set.

    Example:
        >>> import datasets, pflbed
        >>> clients = pflbed.from_arrays(np.zeros((80, 8, 8), dtype=np.uint8), np.arange(80) % 2, clients=3, new=2)
        >>> partitioner = ManifestPartitioner(clients.benchmark)
        >>> partitioner.dataset = datasets.Dataset.from_dict({"label": [i % 2 for i in range(80)]})
        >>> partitioner.load_partition(0).num_rows == len(clients["data/p00"].train)
        True
    """

    def __init__(
        self, benchmark: Benchmark, role: str = "participating", split: str = "train", size: str | None = None
    ) -> None:
        super().__init__()
        if role not in ("participating", "new"):
            raise InputError(f'role must be "participating" or "new", got {role!r}; choose one of these')
        if split not in ("train", "val", "test"):
            raise InputError(f'split must be "train", "val" or "test", got {split!r}; choose one of these')
        self._benchmark, self._split, self._size = benchmark, split, size
        self._ids = benchmark.new if role == "new" else benchmark.participating
        if not self._ids:
            raise InputError(f"The benchmark must have {role} clients, got none; choose the other role")
        if size is not None and split == "train":
            benchmark.rows(self._ids[0], size)  # a size that this role does not have is refused now
        self._found: Rows | None = None

    @property
    def client_ids(self) -> tuple[str, ...]:
        """The clients, in the order of the partitions."""
        return self._ids

    @property
    def num_partitions(self) -> int:
        """The number of clients."""
        return len(self._ids)

    def load_partition(self, partition_id: int) -> Dataset:
        """Return the rows of one client, in the order of the manifest."""
        if not 0 <= partition_id < len(self._ids):
            raise InputError(
                f"A partition must be one of 0 to {len(self._ids) - 1}, got {partition_id}; see client_ids"
            )
        places = self._places()[self._rows(self._ids[partition_id])]
        return self.dataset.select(places)

    def _rows(self, name: str) -> Rows:
        bench = self._benchmark
        return bench.rows(name, self._size) if self._split == "train" else bench.held_rows(name, self._split)

    def _places(self) -> Rows:
        """The index in the dataset of every row of the manifest, or -1; computed and checked once."""
        if self._found is None:
            table = self._benchmark.table
            has_rows = "row" in self.dataset.column_names
            given = _column(self.dataset, "row") if has_rows else self._all_rows()
            if given.dtype.kind not in "iu" or (len(given) and not 0 <= given.min() <= given.max() < len(table)):
                raise InputError(
                    f"The column 'row' must hold rows of the manifest, 0 to {len(table) - 1}, but does not; "
                    "load the export of this very benchmark"
                )
            if len(np.unique(given)) != len(given):
                raise InputError("The column 'row' must name a row once, but one occurs twice; load each split once")
            places = np.full(len(table), -1, dtype=np.int64)
            places[given] = np.arange(len(given))
            needed = np.unique(np.concatenate([self._rows(name) for name in self._ids]))
            if (missing := needed[places[needed] < 0]).size:
                raise InputError(
                    f"The dataset must hold all {len(needed):,} rows of the clients, but lacks {len(missing):,}, the "
                    f"first being row {missing[0]} ({table.paths[missing[0]]}); give the split of this role, exported "
                    "from this very benchmark"
                )
            self._require_same_labels(needed, places[needed])
            self._found = places
        return self._found

    def _all_rows(self) -> Rows:
        """The rows of a dataset that does not number them."""
        table = self._benchmark.table
        if len(self.dataset) != len(table):
            raise InputError(
                f"A dataset without the column 'row' must have the manifest's {len(table):,} rows in their order, got "
                f"{len(self.dataset):,}; use what 'pflbed export --to flower' writes"
            )
        if getattr(self.dataset, "_indices", None) is not None:  # set by shuffle, select and sort
            raise InputError(
                "A dataset without the column 'row' must have its rows in the manifest's order, but it was shuffled or "
                "selected from; give FederatedDataset shuffle=False"
            )
        return np.arange(len(table), dtype=np.int64)

    def _require_same_labels(self, rows: Rows, places: Rows) -> None:
        """If the label names are those of the manifest, the labels must be equal, too."""
        table, feature = self._benchmark.table, self.dataset.features.get("label")
        if tuple(getattr(feature, "names", None) or ()) != table.class_names:
            return
        wrong = np.flatnonzero(_column(self.dataset, "label")[places] != table.labels[rows])
        if wrong.size:
            raise InputError(
                f"The dataset's labels must be the manifest's, but row {rows[wrong[0]]} "
                f"({table.paths[rows[wrong[0]]]}) has another; load the export of this very benchmark, or the images "
                "in the manifest's order"
            )


def _column(dataset: Any, name: str) -> Any:
    """One column, without decoding any image."""
    return np.asarray(dataset.select_columns([name]).with_format("numpy")[:][name])
