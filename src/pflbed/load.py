"""A benchmark and its pixels become clients: each with its own training images and its domain's shared test images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pflbed.benchmark import Benchmark
from pflbed.errors import InputError
from pflbed.table import Rows


@dataclass(frozen=True, eq=False)
class Images:
    """Pixels [N, H, W, 3] in uint8 and their labels [N]."""

    pixels: NDArray[np.uint8]
    labels: Rows

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.shape[3] != 3 or self.pixels.dtype != np.uint8:
            raise InputError(f"pixels must be uint8 of shape [N, H, W, 3], got {self.pixels.dtype} {self.pixels.shape}")
        if self.labels.shape != (len(self.pixels),):
            raise InputError(
                f"there must be one label per image, got {self.labels.shape} for {len(self.pixels)} images"
            )

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Client:
    """All that a method may see of one client; ``val`` and ``test`` are one object for all clients of a domain."""

    id: str
    domain: str
    train: Images
    val: Images
    test: Images
    label_distribution: NDArray[np.float64]
    """P_m(y) of the full training set."""
    sizes: Mapping[str, Rows]
    """For every size the places of its images within ``train``."""

    def sized(self, size: str) -> Images:
        """The training images of one size."""
        if size not in self.sizes:
            known = ", ".join(self.sizes) or "none"
            raise InputError(
                f"the size must be one that client {self.id!r} has ({known}), got {size!r}; choose another"
            )
        places = self.sizes[size]
        return self.train if len(places) == len(self.train) else _gather(self.train.pixels, self.train.labels, places)


def clients(benchmark: Benchmark, pixels: NDArray[np.uint8]) -> dict[str, Client]:
    """Gather every client of a benchmark; a row of ``pixels`` is a row of the benchmark's table."""
    labels = benchmark.table.labels
    if len(pixels) != len(labels):
        raise InputError(
            f"there must be one image per row of the benchmark, got {len(pixels)} images for {len(labels)} rows; "
            "build the benchmark from the table that came with the images"
        )
    shared = {
        (domain, split): _gather(pixels, labels, benchmark.shared_rows(domain, split))
        for domain in benchmark.table.domain_names
        for split in ("val", "test")
    }
    made: dict[str, Client] = {}
    new = set(benchmark.new)
    for name in benchmark.client_ids:
        domain, rows = benchmark.domain_of(name), benchmark.rows(name)
        sizes = [size for size, part in benchmark.spec.sizes.items() if name in new or part == 1.0]
        made[name] = Client(
            id=name,
            domain=domain,
            train=_gather(pixels, labels, rows),
            val=shared[domain, "val"],
            test=shared[domain, "test"],
            label_distribution=benchmark.label_distribution(name),
            sizes={size: np.searchsorted(rows, benchmark.rows(name, size)) for size in sizes},
        )
    return made


def _gather(pixels: NDArray[np.uint8], labels: Rows, rows: Rows) -> Images:
    """Copy rows out of what may be a memory map."""
    return Images(np.array(pixels[rows]), labels[rows])
