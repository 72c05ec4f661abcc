"""Clients in one call: from the embedded Digits-4, or from arrays of images and labels. Nothing is written to disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pflbed.client_data import Clients
from pflbed.dataset import EMBEDDED, find
from pflbed.errors import InputError, did_you_mean
from pflbed.parts import contents_of, part_rows
from pflbed.spec import ALL, Spec
from pflbed.split import build
from pflbed.table import Contents, Rows, Table, in_order, limited_rows

DOMAIN = "data"
"""The one domain of images whose domains are not given."""
HASHED = 64 * 2**20
"""Bytes of pixels that are hashed at once, so that a memory-mapped array is not loaded as a whole."""


def digits4(
    clients: int = 20, new: int = 10, *, alpha: float = 0.3, seed: int = 0, limit: int | None = None, **spec: Any
) -> Clients:
    """Split the embedded Digits-4 (ten digits in four domains, 28x28 RGB) into clients.

    The images are generated once from installed packages and cached; nothing is downloaded. The split is that of
    ``build(find("digits4").table, Spec(...))``.

    Args:
        clients: Participating clients per domain.
        new: New clients per domain.
        alpha: Dirichlet concentration over classes; smaller is more skewed.
        seed: Another seed gives another split.
        limit: Use at most this many images of every class of every domain; None uses all.
        **spec: Further fields of ``Spec``, such as ``partition="iid"`` or ``part="tuning"``.

    Returns:
        The clients by name, such as "mnist/p00" (participating) and "mnist/n00" (new).

    Example:
        >>> clients = digits4(clients=2, new=1, limit=20)
        >>> clients
        Clients(8 participating and 4 new clients, 800 images of 28x28x3, 10 classes)
        >>> list(clients.new)
        ['mnist/n00', 'uci/n00', 'photo/n00', 'typeset/n00']
    """
    chosen = _spec(clients, new, seed, {"alpha": alpha, **spec})
    dataset = find(EMBEDDED)
    if chosen.part != ALL:
        dataset = dataset.checked()[0].part(chosen.part)
    decoded = dataset.decode(28)
    table, images = decoded.table, decoded.images
    if limit is not None:
        rows = limited_rows(table, limit, seed)
        table, images = table.take(rows), images[rows]
    return Clients(build(table, chosen), images)


def from_arrays(
    images: ArrayLike,
    labels: ArrayLike,
    *,
    domains: Sequence[str] | None = None,
    users: Sequence[Any] | None = None,
    classes: Sequence[str] | None = None,
    clients: int = 20,
    new: int = 10,
    seed: int = 0,
    **spec: Any,
) -> Clients:
    """Split arrays of images and labels into clients.

    Args:
        images: uint8 pixels [N, H, W, C], or [N, H, W] for gray images. The array is not copied.
        labels: One label per image: whole numbers or names.
        domains: One domain name per image; None for a single domain "data".
        users: One user per image. Every client is then one user (a natural partition).
        classes: The names of the classes in order. A whole number is an index into them. None takes the labels that
            occur, sorted.
        clients: Participating clients per domain.
        new: New clients per domain.
        seed: Another seed gives another split.
        **spec: Further fields of ``Spec``, such as ``alpha``, ``partition`` or ``part``.

    Returns:
        The clients by name, such as "data/p00" (participating) and "data/n00" (new).

    Example:
        >>> images = np.zeros((80, 32, 24), dtype=np.uint8)
        >>> clients = from_arrays(images, ["cat", "dog"] * 40, clients=3, new=2, alpha=1.0)
        >>> clients
        Clients(3 participating and 2 new clients, 80 images of 32x24x1, 2 classes)
        >>> clients["data/n00"].train.pixels.shape[1:]
        (32, 24, 1)
    """
    return split_arrays(images, labels, domains, users, classes, spec_of(clients, new, seed, users is not None, spec))


def spec_of(clients: int, new: int, seed: int, by_user: bool, given: Mapping[str, Any]) -> Spec:
    """Return the spec of a call; where users are known, every client is one of them."""
    return _spec(clients, new, seed, ({"partition": "natural"} if by_user else {}) | dict(given))


def split_arrays(
    images: ArrayLike,
    labels: ArrayLike,
    domains: Sequence[str] | None,
    users: Sequence[Any] | None,
    classes: Sequence[str] | None,
    chosen: Spec,
    contents: Contents | None = None,
) -> Clients:
    """Split arrays by a spec; ``contents`` are the content numbers of the images before they were scaled."""
    pixels = _pixels(images)
    class_names, numbers = _labels(labels, classes, len(pixels))
    domain_names, places = _encoded("domains", [DOMAIN] * len(pixels) if domains is None else domains, len(pixels))
    user_names, owners = ((), None) if users is None else _encoded("users", users, len(pixels))
    width = len(str(len(pixels)))
    table = Table(
        paths=tuple(f"{row:0{width}d}" for row in range(len(pixels))),
        labels=numbers,
        domains=places,
        class_names=class_names,
        domain_names=domain_names,
        digest=_digest(pixels, [numbers, places, owners], [class_names, domain_names, user_names]),
        users=owners,
        user_names=user_names,
        contents=contents_of(pixels) if contents is None and chosen.part != ALL else contents,
    )
    if chosen.part != ALL:
        rows = part_rows(table, chosen.part)
        table, pixels = table.take(rows), pixels[rows]
    return Clients(build(table, chosen), pixels)


def _spec(clients: int, new: int, seed: int, given: Mapping[str, Any]) -> Spec:
    """The spec of a call; a name that ``Spec`` does not have is refused."""
    valid = [field.name for field in fields(Spec) if field.name not in ("clients_per_domain", "new_clients_per_domain")]
    for name in given:
        if name not in valid:
            raise InputError(f"A setting of the split must be a field of Spec, got {name!r}{did_you_mean(name, valid)}")
    counts = {"clients_per_domain": clients, "new_clients_per_domain": new}
    return Spec().changed({**given, **counts}, seed)


def _pixels(images: ArrayLike) -> NDArray[np.uint8]:
    array = images if isinstance(images, np.ndarray) else np.asarray(images)
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.dtype != np.uint8 or 0 in array.shape:
        raise InputError(
            f"images must be uint8 of shape [N, H, W, C] or [N, H, W], got {array.dtype} {array.shape}; scale floats "
            "to 0..255 and convert them, or use from_dataset"
        )
    return array


def _labels(labels: ArrayLike, classes: Sequence[str] | None, count: int) -> tuple[tuple[str, ...], Rows]:
    """The names of the classes and the number of every image's class."""
    array = np.asarray(labels)
    if array.shape != (count,):
        raise InputError(f"There must be one label per image, got shape {array.shape} for {count} images")
    if array.dtype.kind not in "iuUO" or not (array.dtype.kind != "O" or all(isinstance(v, str) for v in array)):
        raise InputError(f"labels must be whole numbers or names, got {array.dtype}; convert them")
    if classes is None:
        return _encoded("labels", array, count)
    names = tuple(map(str, classes))
    if array.dtype.kind in "iu":
        if not 0 <= array.min() <= array.max() < len(names):
            raise InputError(
                f"labels must be indices into the {len(names)} classes, got {array.min()}..{array.max()}; name every "
                "class"
            )
        return names, array.astype(np.int64)
    index = {name: i for i, name in enumerate(names)}
    for name in array:
        if name not in index:
            raise InputError(f"Every label must be one of classes, got {name!r}{did_you_mean(name, names)}")
    return names, np.array([index[name] for name in array], dtype=np.int64)


def _encoded(what: str, values: Any, count: int) -> tuple[tuple[str, ...], Rows]:
    """The distinct values as sorted names, and the number of every row's name."""
    texts = [str(value) for value in values]
    if len(texts) != count:
        raise InputError(f"There must be one of {what} per image, got {len(texts)} for {count} images")
    names = tuple(in_order(set(texts)))
    index = {name: i for i, name in enumerate(names)}
    return names, np.array([index[text] for text in texts], dtype=np.int64)


def _digest(pixels: NDArray[np.uint8], numbers: Sequence[Rows | None], names: Sequence[tuple[str, ...]]) -> str:
    """Identify the pixels and everything that is known about them."""
    digest = hashlib.sha256(json.dumps([pixels.shape, names]).encode())
    step = max(1, HASHED // max(1, int(np.prod(pixels.shape[1:]))))
    for first in range(0, len(pixels), step):
        digest.update(np.ascontiguousarray(pixels[first : first + step]).tobytes())
    for column in numbers:
        digest.update(b"-" if column is None else column.astype("<i8").tobytes())
    return digest.hexdigest()
