"""A message may claim to be huge: Flower is made to count before it believes.

Arrays travel in pieces of some megabytes, and an array may name one piece as often as it likes, so a small message can
grow to any size when Flower puts it together, before an app can look at it. Within ``limited`` it first adds up what
the arrays of a message would take, and refuses the message if that is too much.
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
    """Stands in for ``Array.inflate`` while one message is put together."""

    def __init__(self, largest: int) -> None:
        self._largest, self._left = largest, largest

    def __call__(self, content: bytes, children: dict[str, Any] | None = None) -> Array:
        sizes = [len(piece.data) for piece in (children or {}).values()]
        places = parse_json(get_object_body(content, Array), "it")["arraychunk_ids"]
        claimed = sum(sizes[place] for place in places)
        self._left -= claimed
        if self._left < 0:
            raise InputError(f"it must have at most {self._largest} bytes, but it claims {claimed} at once.")
        return _inflate(content, children)


@contextmanager
def limited(largest: int) -> Iterator[None]:
    """Refuse, as an error of input, any message whose arrays take more than this."""
    Array.inflate = _Counted(largest)
    try:
        yield
    finally:
        Array.inflate = _inflate
