"""How the bytes of a dataset become numbers: divided by 255, minus a mean, divided by a deviation, per channel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pflbed.errors import InputError

MAX_VALUE = 1e6


@dataclass(frozen=True)
class Normalization:
    """The mean and the standard deviation of every channel, of values between 0 and 1.

    Args:
        mean: The mean of every channel.
        std: The standard deviation of every channel.

    Example:
        >>> Normalization((0.5,), (0.25,)).std
        (0.25,)
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        if len(self.mean) != len(self.std):
            raise InputError(
                f"mean and std must have one number per channel, got {len(self.mean)} and {len(self.std)}; give both"
            )
        if min(self.std, default=1.0) <= 0:
            raise InputError(f"std must be positive in every channel, got {min(self.std)}; change it")


def _numbers(name: str, values: Sequence[float]) -> tuple[float, ...]:
    good = isinstance(values, (list, tuple)) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) for value in values
    )
    if not good or max(map(abs, values), default=math.inf) > MAX_VALUE:
        raise InputError(
            f"{name} must be a list of finite numbers of at most {MAX_VALUE:g}, one per channel, got {values!r:.80}"
        )
    return tuple(map(float, values))
