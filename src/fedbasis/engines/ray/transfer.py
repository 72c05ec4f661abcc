"""Large objects (images and states) are sent apart from the item of a task, as arrays.

An item is a dataclass; images and states may be in its fields, or in theirs. ``extract`` replaces each by a
placeholder, and ``insert`` puts them back in the worker. So objects that many items share, such as the test images of a
domain, are sent once, and images that are mapped from a file are sent as pixels: the other machine has no such file.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbasis.networks.inputs import Examples
from fedbasis.tensors import packed as pack
from fedbasis.tensors.params import State
from pflbed import Images

LargeObject = Images | Examples | State
CACHE_BYTES = 2**29
"""How many bytes of images stay in the object store for later tasks."""


@dataclass(frozen=True)
class Placeholder:
    """Replaces a large object in an item."""

    number: int


def extract(item: Any) -> tuple[Any, list[LargeObject]]:
    """Return an item with placeholders, and the objects that they replace."""
    objects: list[LargeObject] = []

    def take(thing: LargeObject) -> Placeholder:
        objects.append(thing)
        return Placeholder(len(objects) - 1)

    return _replaced(item, _is_large, take), objects


def insert(item: Any, objects: Sequence[LargeObject]) -> Any:
    """Return an item with the objects in place of the placeholders."""
    return _replaced(
        item, lambda thing: isinstance(thing, Placeholder), lambda placeholder: objects[placeholder.number]
    )


def to_arrays(objects: LargeObject) -> Any:
    """Turn images or a state into arrays."""
    if isinstance(objects, Images):
        return objects.pixels, objects.labels, objects.key
    if isinstance(objects, Examples):
        return objects.pixels.numpy(), objects.labels.numpy(), None
    return pack.packed(objects)


def from_arrays(arrays: Any) -> LargeObject:
    """Turn arrays back into images or a state; writable parts are copies, because processes share the arrays."""
    if isinstance(arrays, np.ndarray):
        return pack.unpacked(arrays.copy())
    pixels, labels, key = arrays
    if key is None:
        return Examples(torch.from_numpy(pixels.copy()), torch.from_numpy(labels.copy()))
    return Images(pixels, np.arange(len(labels)), labels.copy(), key)  # its pixels are copied whenever they are read


class ObjectCache:
    """References to images that ``put`` has stored, by the images' key; the least recently used are dropped."""

    def __init__(self, put: Callable[[Any], Any], limit: int = CACHE_BYTES) -> None:
        self._put, self._limit, self._bytes = put, limit, 0
        self._held: OrderedDict[Hashable, tuple[Any, int, LargeObject]] = OrderedDict()
        """The reference, the size, and the images themselves, so that no other object gets their id."""

    def sent(self, objects: LargeObject) -> Any:
        """Store an object unless it is already stored; return the reference."""
        if isinstance(objects, dict):
            return self._put(to_arrays(objects))  # a client's state is needed once
        key: Hashable = objects.key if isinstance(objects, Images) else id(objects)
        if key not in self._held:
            arrays = to_arrays(objects)
            self._held[key] = self._put(arrays), arrays[0].nbytes, objects
            self._bytes += arrays[0].nbytes
        self._held.move_to_end(key)
        while self._bytes > self._limit and len(self._held) > 1:
            _, (_, size, _) = self._held.popitem(last=False)
            self._bytes -= size
        return self._held[key][0]

    def clear(self) -> None:
        """Drop all references."""
        self._held.clear()
        self._bytes = 0


def _is_large(thing: Any) -> bool:
    if isinstance(thing, dict):
        groups = list(thing.values())
        return bool(groups) and all(
            isinstance(group, dict) and all(isinstance(tensor, Tensor) for tensor in group.values()) for group in groups
        )
    return isinstance(thing, Images | Examples)


def _replaced(thing: Any, chosen: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """Replace the chosen objects in an object and, recursively, in the fields of dataclasses."""
    if chosen(thing):
        return change(thing)
    if not is_dataclass(thing) or isinstance(thing, type):
        return thing
    before = {field.name: getattr(thing, field.name) for field in fields(thing) if field.init}
    after = {name: _replaced(value, chosen, change) for name, value in before.items()}
    changed = {name: value for name, value in after.items() if value is not before[name]}
    return replace(thing, **changed) if changed else thing
