"""Limit the size of a received message before Flower allocates memory for it.

Flower sends arrays in chunks of some megabytes, and an array may list the same chunk many times. So a small message can
grow to any size when Flower assembles it, before an app can check it. Within ``limited``, the total size of a message's
arrays is computed first, and a message that is too large is refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import get_object_body

from pflbed.errors import InputError
from pflbed.foreign import parse_json

_inflate = Array.inflate


class _Counted:
    """Replaces ``Array.inflate`` while one message is assembled."""

    def __init__(self, largest: int) -> None:
        self._largest, self._left = largest, largest

    def __call__(self, content: bytes, children: dict[str, Any] | None = None) -> Array:
        sizes = [len(piece.data) for piece in (children or {}).values()]
        places = parse_json(get_object_body(content, Array), "it")["arraychunk_ids"]
        claimed = sum(sizes[place] for place in places)
        self._left -= claimed
        if self._left < 0:
            raise InputError(f"it must have at most {self._largest} bytes, but one array has {claimed}.")
        return _inflate(content, children)


@contextmanager
def limited(largest: int) -> Iterator[None]:
    """Raise an ``InputError`` for any message whose arrays have more than ``largest`` bytes."""
    Array.inflate = _Counted(largest)
    try:
        yield
    finally:
        Array.inflate = _inflate
