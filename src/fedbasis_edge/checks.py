"""Checks of values that somebody else wrote; what does not hold is a ``ValueError``."""

from collections.abc import Sequence
from math import prod
from typing import Any

MAX_SIDE = 8192
"""Pixels of an image's side."""


def require_some(value: Any, most: int) -> Sequence[Any]:
    """Return a list that is neither empty nor longer than ``most``."""
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise ValueError("a list is empty or too long")
    return value


def require_name(value: Any) -> str:
    """Return a short printable text."""
    if not isinstance(value, str) or not 1 <= len(value) <= 300 or not value.isprintable():
        raise ValueError("a name is empty, too long or not printable")
    return value


def require_whole(value: Any, low: int, high: int) -> int:
    """Return a whole number within bounds."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{str(value)[:50]} is not a whole number from {low} to {high}")
    return value


def require_number(value: Any, low: float, high: float) -> float:
    """Return a number within bounds."""
    if type(value) not in (int, float) or not low <= value <= high:
        raise ValueError(f"{str(value)[:50]} is not a number from {low} to {high}")
    return float(value)


def require_numbers(value: Any, count: int, low: float, high: float) -> tuple[float, ...]:
    """Return ``count`` numbers within bounds."""
    if len(require_some(value, count)) != count:
        raise ValueError(f"there are {len(value)} numbers instead of {count}")
    return tuple(require_number(one, low, high) for one in value)


def require_shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor."""
    if not isinstance(value, list) or len(value) > 8:
        raise ValueError("a shape is no list")
    shape = tuple(require_whole(side, 1, 2**31) for side in value)
    if prod(shape) > 2**33:
        raise ValueError("a shape is too large")
    return shape


def require_pair(value: Any) -> tuple[int, int]:
    """Return a height and a width."""
    height, width = (require_whole(side, 1, MAX_SIDE) for side in require_some(value, 2))
    return height, width


def require_one_of(value: Any, choices: Sequence[str]) -> str:
    """Return one of some texts."""
    if value not in choices:
        raise ValueError(f"'{str(value)[:50]}' is none of {', '.join(choices)}")
    return str(value)
