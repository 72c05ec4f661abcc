"""Clients: a benchmark combined with its pixels. Each has training images and the images it is scored on."""

from __future__ import annotations

import functools
import hashlib
import mmap
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflbed.benchmark import Benchmark
from pflbed.errors import InputError, did_you_mean
from pflbed.normalization import Normalization
from pflbed.table import Rows

MemmapLocation = tuple[str, int, tuple[int, ...]]
"""A memory map: its file, its offset and its shape."""


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Images and their labels: some rows of an array of pixels, which may be memory-mapped.

    Args:
        source: Pixels [N, H, W, C] in uint8, with any number of channels.
        rows: Which rows of ``source`` these images are.
        labels: The class number of every one of these images.

    Example:
        >>> pixels = np.zeros((10, 28, 20, 1), dtype=np.uint8)
        >>> images = Images(pixels, np.array([2, 5]), np.array([0, 1]))
        >>> images
        Images(2 images of 28x20x1, 2 classes)
        >>> images.pixels.shape, images.labels
        ((2, 28, 20, 1), array([0, 1]))
    """

    source: NDArray[np.uint8]
    rows: Rows
    labels: Rows
    origin: Hashable = None
    """The ``key`` of the images that ``source`` is a copy of, if it is a copy."""

    def __post_init__(self) -> None:
        if self.source.ndim != 4 or 0 in self.source.shape[1:] or self.source.dtype != np.uint8:
            raise InputError(
                f"pixels must be uint8 of shape [N, H, W, C], got {self.source.dtype} {self.source.shape}; convert them"
            )
        if self.labels.shape != (len(self.rows),):
            raise InputError(f"There must be one label per image, got {self.labels.shape} for {len(self.rows)} images")

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """The pixels as an array. Every access copies them: store them if they are needed often."""
        return np.asarray(self.source[self.rows])  # indexing copies; asarray drops the memmap class

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.source.shape[1:]))
        return f"Images({len(self)} images of {shape}, {len(np.unique(self.labels))} classes)"

    @property
    def key(self) -> tuple[Hashable, bytes]:
        """Equal for the same images, also for their copies in another process."""
        source = self.origin or _memmap_location(self.source) or id(self.source)
        return source, hashlib.blake2b(self.rows.tobytes(), digest_size=16).digest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a memory map as its file name, any other array as a copy of these images only."""
        location = _memmap_location(self.source)
        if location is None:
            return Images, (self.pixels, np.arange(len(self)), self.labels, self.key)
        return _mapped, (location, self.rows, self.labels)


def _memmap_location(source: NDArray[np.uint8]) -> MemmapLocation | None:
    """The location of an array that is a whole memory map; None for others (a slice does not know its offset)."""
    if isinstance(source, np.memmap) and isinstance(source.base, mmap.mmap) and source.filename is not None:
        return str(source.filename), source.offset, source.shape
    return None


def _mapped(location: MemmapLocation, rows: Rows, labels: Rows) -> Images:
    return Images(_file(location), rows, labels)


@functools.lru_cache(maxsize=8)
def _file(location: MemmapLocation) -> NDArray[np.uint8]:
    path, offset, shape = location
    return np.memmap(path, dtype=np.uint8, mode="r", offset=offset, shape=shape)


@dataclass(frozen=True, eq=False)
class Client:
    """One client: the data that a method may use. Clients with the same ``val`` or ``test`` share one object.

    Example:
        >>> import pflbed
        >>> images, labels = np.zeros((80, 8, 8), dtype=np.uint8), np.arange(80) % 2
        >>> client = pflbed.from_arrays(images, labels, clients=3, new=2)["data/n00"]
        >>> client.id, client.domain, list(client.sizes)
        ('data/n00', 'data', ['S', 'M'])
        >>> len(client.sized("S")) <= len(client.train)
        True
    """

    id: str
    domain: str
    train: Images
    val: Images
    test: Images
    label_distribution: NDArray[np.float64]
    """P_m(y) of the full training set."""
    val_weights: NDArray[np.float64]
    """The weight of every image of ``val`` for this client."""
    test_weights: NDArray[np.float64]
    """The weight of every image of ``test``: by P_m(y), see ``Benchmark.held_weights``."""
    sizes: Mapping[str, Rows]
    """For every size the indices of its images in ``train``."""

    def sized(self, size: str) -> Images:
        """The training images of one size."""
        if size not in self.sizes:
            known = ", ".join(self.sizes) or "none"
            raise InputError(
                f"The size must be one that client {self.id!r} has ({known}), got {size!r}; choose another"
            )
        places = self.sizes[size]
        if len(places) == len(self.train):
            return self.train
        return Images(self.train.source, self.train.rows[places], self.train.labels[places], self.train.origin)


class Clients(Mapping[str, Client]):
    """The clients of a benchmark by name. A client is created when it is accessed, so many clients cost no memory.

    Args:
        benchmark: Which rows every client has.
        pixels: The images, uint8 [N, H, W, C]; row i belongs to row i of the benchmark's table.
        normalization: How bytes become numbers, if the dataset says so.

    Example:
        >>> import pflbed
        >>> images, labels = np.zeros((80, 8, 8, 3), dtype=np.uint8), np.arange(80) % 2
        >>> clients = pflbed.from_arrays(images, labels, clients=3, new=2)
        >>> list(clients.new)
        ['data/n00', 'data/n01']
        >>> clients.classes, clients.image_shape
        (('0', '1'), (8, 8, 3))
        >>> clients["data/n00"].domain
        'data'
    """

    def __init__(
        self, benchmark: Benchmark, pixels: NDArray[np.uint8], normalization: Normalization | None = None
    ) -> None:
        if len(pixels) != len(benchmark.table):
            raise InputError(
                f"There must be one image per row of the benchmark, got {len(pixels)} images for "
                f"{len(benchmark.table)} rows; build the benchmark from the table that came with the images"
            )
        self.benchmark, self.pixels, self.normalization = benchmark, pixels, normalization
        self._shared: dict[tuple[str, str], Images] = {}

    def __getitem__(self, name: str) -> Client:
        benchmark = self.benchmark
        rows, new = benchmark.rows(name), benchmark.role_of(name) == "new"
        sizes = [size for size, part in benchmark.spec.sizes.items() if new or part == 1.0]
        return Client(
            id=name,
            domain=benchmark.domain_of(name),
            train=self._images(rows),
            val=self._held(name, "val"),
            test=self._held(name, "test"),
            label_distribution=benchmark.label_distribution(name),
            val_weights=benchmark.held_weights(name, "val"),
            test_weights=benchmark.held_weights(name, "test"),
            sizes={size: np.searchsorted(rows, benchmark.rows(name, size)) for size in sizes},
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.benchmark.client_ids)

    def __len__(self) -> int:
        return len(self.benchmark.client_ids)

    def __contains__(self, name: object) -> bool:
        return name in self.benchmark.client_numbers

    def __repr__(self) -> str:
        roles = f"{len(self.participating)} participating and {len(self.new)} new clients"
        shape = "x".join(map(str, self.image_shape))
        return f"Clients({roles}, {len(self.pixels)} images of {shape}, {len(self.classes)} classes)"

    @cached_property
    def participating(self) -> ClientView:
        """The clients that train together."""
        return ClientView(self, self.benchmark.participating)

    @cached_property
    def new(self) -> ClientView:
        """The clients that arrive after training."""
        return ClientView(self, self.benchmark.new)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; a label is an index into them."""
        return self.benchmark.table.class_names

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        height, width, channels = self.pixels.shape[1:]
        return height, width, channels

    def _images(self, rows: Rows) -> Images:
        return Images(self.pixels, rows, self.benchmark.table.labels[rows])

    def _held(self, name: str, split: str) -> Images:
        if self.benchmark.spec.natural:
            return self._images(self.benchmark.held_rows(name, split))
        key = self.benchmark.domain_of(name), split
        if key not in self._shared:
            self._shared[key] = self._images(self.benchmark.held_rows(name, split))
        return self._shared[key]


class ClientView(Mapping[str, Client]):
    """Some of the clients, by name. Like ``Clients``, it creates a client when it is accessed.

    Args:
        clients: All clients.
        names: The clients of this view, in order.
    """

    def __init__(self, clients: Clients, names: Sequence[str]) -> None:
        self.clients, self._names = clients, dict.fromkeys(names)

    def __getitem__(self, name: str) -> Client:
        if name not in self._names:
            raise InputError(
                f"Client must be one of the {len(self)} of this view, got {name!r}{did_you_mean(name, list(self))}; "
                "choose one of these"
            )
        return self.clients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __repr__(self) -> str:
        return f"ClientView({len(self)} of {len(self.clients)} clients)"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; a label is an index into them."""
        return self.clients.classes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        return self.clients.image_shape


def clients(benchmark: Benchmark, pixels: NDArray[np.uint8], normalization: Normalization | None = None) -> Clients:
    """Combine a benchmark with its pixels.

    Args:
        benchmark: Which rows every client has.
        pixels: The images, uint8 [N, H, W, C]; row i belongs to row i of the benchmark's table.
        normalization: How bytes become numbers, if the dataset says so.

    Returns:
        The clients by name.

    Example:
        >>> import pflbed
        >>> data = pflbed.find("digits4")
        >>> benchmark = pflbed.build(data.table, pflbed.Spec(clients_per_domain=2, new_clients_per_domain=1))
        >>> everyone = pflbed.clients(benchmark, data.decode(28).images)
        >>> everyone["mnist/n00"].train.pixels.shape[1:]
        (28, 28, 3)
    """
    return Clients(benchmark, pixels, normalization)
