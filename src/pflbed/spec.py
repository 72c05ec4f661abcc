"""What a benchmark should look like, in a few numbers; checked when made, so that building cannot go wrong late."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from pflbed.errors import InputError


@dataclass(frozen=True)
class Spec:
    """The paper's settings for PACS and Office-Home are the defaults."""

    clients_per_domain: int = 20
    """Participating clients of every domain."""
    new_clients_per_domain: int = 10
    """Clients of every domain that come after training."""
    alpha: float = 0.3
    """Dirichlet concentration: the smaller, the more each client keeps to a few classes."""
    split: tuple[float, float, float, float] = (60, 20, 5, 15)
    """Percent of a domain for participating clients, new clients, validation and test."""
    min_rows: int = 2
    """No client has fewer training images."""
    sizes: Mapping[str, float] = field(default_factory=lambda: {"S": 0.5, "M": 1.0})
    """Fractions of a new client's training images, nested, in increasing order."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("clients_per_domain", 1), ("new_clients_per_domain", 0), ("min_rows", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}; change it")
        if not _number(self.alpha) or self.alpha <= 0:
            raise InputError(f"alpha must be a positive number, got {self.alpha!r}; the paper uses 0.3")
        self._check_split()
        self._check_sizes()

    def _check_split(self) -> None:
        object.__setattr__(self, "split", tuple(self.split))
        good = len(self.split) == 4 and all(_number(part) and part >= 0 for part in self.split)
        if not good or abs(sum(self.split) - 100) > 1e-6:
            raise InputError(
                "split must be four percentages (participating, new, validation, test) that sum to 100, "
                f"got {self.split!r}; the paper uses 60, 20, 5, 15"
            )
        if self.split[0] <= 0 or self.split[3] <= 0:
            raise InputError(
                f"split must leave something to train on and to test on, got {self.split!r}; raise the zero"
            )
        if (self.split[1] > 0) != (self.new_clients_per_domain > 0):
            raise InputError(
                "the new clients' share in split and new_clients_per_domain must both be positive or both be zero, "
                f"got {self.split[1]:g} % and {self.new_clients_per_domain}; change one of them"
            )

    def _check_sizes(self) -> None:
        object.__setattr__(self, "sizes", dict(self.sizes))
        fractions = list(self.sizes.values())
        good = fractions and all(_number(part) and 0 < part <= 1 for part in fractions) and all(self.sizes)
        if not good or any(b <= a for a, b in pairwise(fractions)):
            raise InputError(
                f"sizes must map names to increasing fractions above 0 and up to 1, got {self.sizes!r}; "
                'the paper uses {"S": 0.5, "M": 1.0}'
            )

    def as_json(self) -> dict[str, Any]:
        """Give what JSON can hold; sizes as a list of pairs, because their order counts."""
        return asdict(self) | {"split": list(self.split), "sizes": [[name, part] for name, part in self.sizes.items()]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Spec:
        """Read back what ``as_json`` gave."""
        return cls(**{**value, "split": tuple(value["split"]), "sizes": dict(value["sizes"])})


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
