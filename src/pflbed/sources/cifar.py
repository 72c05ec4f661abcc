"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 60,000 photographs of 32x32 pixels, in the official binary version.

A file is a row of records: the label (CIFAR-100: the coarse label, then the fine one) in a byte each, then the red, the
green and the blue plane of 1,024 bytes. All is one domain, and the official test set is used.
"""

import hashlib
import re
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pflbed.errors import InputError
from pflbed.foreign import read_bytes
from pflbed.safe_paths import inside
from pflbed.sources.base import Source, find_folder
from pflbed.spec import Spec
from pflbed.table import Table

MAX_NAMES = 2**20
PIXELS = 3 * 32 * 32
AGAIN = "download the binary version again"


class Version(NamedTuple):
    """How one of the datasets is written."""

    name: str
    title: str
    domain: str
    below: str
    """The folder that the archive unpacks to."""
    files: tuple[str, ...]
    """The last one is the test set."""
    names: str
    classes: int
    label_bytes: int
    label_byte: int
    """Which of the label bytes counts."""


TEN = Version(
    "cifar10", "CIFAR-10", "cifar10", "cifar-10-batches-bin",
    (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"), "batches.meta.txt", 10, 1, 0,
)  # fmt: skip
FINE = Version(
    "cifar100", "CIFAR-100", "cifar100", "cifar-100-binary",
    ("train", "test"), "fine_label_names.txt", 100, 2, 1,
)  # fmt: skip
COARSE = FINE._replace(name="cifar100-coarse", names="coarse_label_names.txt", classes=20, label_byte=0)


def scan(version: Version, root: Path) -> Table:
    """List the records; the digest is over all that is read, so fine and coarse labels have different ones."""
    names = _names(version, root)
    digest = hashlib.sha256("\n".join(names).encode())
    paths: list[str] = []
    labels: list[NDArray[np.uint8]] = []
    for stem in version.files:
        records = _records(version, root, stem)
        found = np.array(records[:, version.label_byte])
        if found.max() >= version.classes:
            first = int(np.argmax(found >= version.classes))
            raise InputError(
                f"A label must lie in 0..{version.classes - 1}, got {found[first]} in record {first} of {stem}.bin in "
                f"{root}; {AGAIN}"
            )
        digest.update(f"\0{stem} {len(records)}\0".encode())
        digest.update(records.data)
        paths += [f"{stem}/{i:05d}" for i in range(len(records))]
        labels.append(found)
    return Table(
        paths=tuple(paths),
        labels=np.concatenate(labels).astype(np.int64),
        domains=np.zeros(len(paths), dtype=np.int64),
        class_names=names,
        domain_names=(version.domain,),
        digest=digest.hexdigest(),
        official_test=np.arange(len(paths)) >= len(paths) - len(labels[-1]),
    )


def open10(root: Path, path: str) -> Image.Image:
    """Read the record of CIFAR-10 that a path such as ``data_batch_1/00042`` names."""
    return _open(TEN, root, path)


def open100(root: Path, path: str) -> Image.Image:
    """Read the record of CIFAR-100 that a path such as ``train/00042`` names; both kinds of label share the pixels."""
    return _open(FINE, root, path)


def _open(version: Version, root: Path, path: str) -> Image.Image:
    stem, _, number = path.partition("/")
    if stem not in version.files or not re.fullmatch("[0-9]{5}", number):
        raise InputError(f"A row must be named like {version.files[0]}/00042, got {path[:200]!r}; scan the files again")
    records = _records(version, root, stem)
    if int(number) >= len(records):
        raise InputError(f"{stem}.bin in {root} must hold record {number}, got only {len(records)} records; {AGAIN}")
    planes = records[int(number), version.label_bytes :].reshape(3, 32, 32)
    return Image.fromarray(np.array(planes.transpose(1, 2, 0), order="C"))


def folder(version: Version, root: Path) -> Path:
    """The folder that contains the files."""
    found = find_folder(root, (version.below,), (f"{version.files[0]}.bin",))
    return Path(root) if found is None else found


def _file(version: Version, root: Path, name: str) -> Path:
    file = inside(folder(version, root), name)
    if not file.is_file():
        raise InputError(source(version).missing(root, f"the file {name}"))
    return file


def _names(version: Version, root: Path) -> tuple[str, ...]:
    file = _file(version, root, version.names)
    text = read_bytes(file, "The list of classes", MAX_NAMES).decode("utf-8", errors="replace")
    lines = (line.strip() for line in text.splitlines())
    names = tuple(line for line in lines if line)
    if len(names) != version.classes or len(set(names)) != version.classes:
        raise InputError(
            f"{version.names} must name {version.classes} classes, one a line, got {len(set(names))} in {file}; {AGAIN}"
        )
    return names


def _records(version: Version, root: Path, stem: str) -> NDArray[np.uint8]:
    file = _file(version, root, f"{stem}.bin")
    status, size = file.stat(), version.label_bytes + PIXELS
    if not status.st_size or status.st_size % size:
        raise InputError(
            f"{stem}.bin must be whole records of {size:,} bytes, got {status.st_size:,} bytes in {file}; {AGAIN}"
        )
    return _map(file, size, (status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=8)
def _map(file: Path, size: int, _stamp: tuple[int, int]) -> NDArray[np.uint8]:
    """Memory-map a file once; a changed file is mapped again."""
    return np.memmap(file, dtype=np.uint8, mode="r").reshape(-1, size)


def source(version: Version) -> Source:
    """The description of one of the datasets."""
    files = ", ".join([f"{stem}.bin" for stem in version.files] + [version.names])
    return Source(
        name=version.name,
        title=version.title,
        home=f"the {version.title} binary version from https://www.cs.toronto.edu/~kriz/cifar.html",
        layout=f"its files {files} into the data folder or its subfolder {version.below}",
        scan=partial(scan, version),
        open_image=open10 if version is TEN else open100,
        counts={version.domain: 60_000},
        spec=Spec(
            partition="shards",
            clients_per_domain=80,
            new_clients_per_domain=20,
            classes_per_client=5,
            split=(76, 19, 5, 0),
            sizes={"M": 1.0},
        ),
        folder=partial(folder, version),
    )


SOURCES = tuple(source(version) for version in (TEN, FINE, COARSE))
