"""Large objects travel apart from the item they belong to: images and states, as arrays.

An item is a dataclass; images and states may be in its fields, or in theirs. ``extract`` leaves a placeholder for each,
and ``insert`` puts them back where the task is done. So objects that many items share, such as the test images of a
domain, travel only once, and images that are mapped from a file travel as pixels: the other machine has no such file.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbasis.networks.train import Examples
from fedbasis.tensors import packed as pack
from fedbasis.tensors.params import State
from pflbed import Images

LargeObject = Images | Examples | State
CACHE_BYTES = 2**29
"""So many bytes of images stay in the store for later tasks."""


@dataclass(frozen=True)
class Placeholder:
    """What stands in an item in place of a large object."""

    number: int


def extract(item: Any) -> tuple[Any, list[LargeObject]]:
    """Return an item with placeholders, and the objects that they stand for."""
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
    """Turn arrays back; other processes may share these, so whatever a task could write to is a copy."""
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
        """The reference, the size and the images themselves: while these live, no others have their key."""

    def sent(self, objects: LargeObject) -> Any:
        """Store an object unless it is stored already; return the reference."""
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
    """Change what is chosen among an object and the fields of dataclasses below it."""
    if chosen(thing):
        return change(thing)
    if not is_dataclass(thing) or isinstance(thing, type):
        return thing
    before = {field.name: getattr(thing, field.name) for field in fields(thing) if field.init}
    after = {name: _replaced(value, chosen, change) for name, value in before.items()}
    changed = {name: value for name, value in after.items() if value is not before[name]}
    return replace(thing, **changed) if changed else thing
