"""The settings of a split. They are checked when a ``Spec`` is created."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from pflbed.errors import InputError, did_you_mean

PARTITIONS = {
    "dirichlet": "every class of a domain is divided by Dirichlet(alpha): labels and sizes are skewed (default)",
    "dirichlet-client": "every client draws its classes from Dirichlet(alpha); all are equally large (Hsu et al. 2019)",
    "shards": "every client has classes_per_client classes, each an equal share of that class",
    "natural": "one client per user of the table, tested on images of its own",
    "iid": "every client is a random sample of its domain, all equally large",
    "mixture": "clients mix domains by Dirichlet(domain_alpha), and classes by Dirichlet(alpha)",
}
ALL, TUNING, TABLES = "all", "tuning", "tables"
PARTS = {
    ALL: "every image (default)",
    TUNING: "about a quarter of the images, chosen by their pixels alone: to choose settings on",
    TABLES: "all others: for results whose settings were chosen on the tuning part",
}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """How to split a dataset into clients. The defaults are the paper's settings for PACS and Office-Home.

    Args:
        clients_per_domain: Participating clients of every domain.
        new_clients_per_domain: Clients of every domain that arrive after training.
        alpha: Dirichlet concentration over classes; smaller is more skewed.
        split: Percent of a domain for participating clients, new clients, validation and test.
        min_rows: The least number of training images of a client.
        sizes: Named, nested fractions of a new client's training images.
        seed: Another seed gives another split.
        partition: How images are assigned to clients; one of ``PARTITIONS``.
        classes_per_client: For the partition "shards".
        domain_alpha: For the partition "mixture": smaller is more skewed towards one domain.
        part: The part of the dataset that is split; one of ``PARTS``.

    Example:
        >>> spec = Spec(clients_per_domain=5, partition="iid")
        >>> spec.split, spec.sizes
        ((60, 20, 5, 15), {'S': 0.5, 'M': 1.0})
    """

    clients_per_domain: int = 20
    """Participating clients of every domain."""
    new_clients_per_domain: int = 10
    """Clients of every domain that arrive after training."""
    alpha: float = 0.3
    """Dirichlet concentration: the smaller, the fewer classes a client mostly has."""
    split: tuple[float, float, float, float] = (60, 20, 5, 15)
    """Percent of a domain for participating clients, new clients, validation and test.

    A dataset with an official test set is tested on that: then the test share is 0. In a natural partition these are
    percents of every client's own images: the last two are what a participating client holds out, and a new client
    trains on its largest size, validates on the third share and is tested on the rest.
    """
    min_rows: int = 2
    """No client has fewer training images."""
    sizes: Mapping[str, float] = field(default_factory=lambda: {"S": 0.5, "M": 1.0})
    """Fractions of a new client's training images (natural: of all its images), nested, in increasing order."""
    seed: int = 0
    partition: str = "dirichlet"
    """How images are assigned to clients; one of ``PARTITIONS``."""
    classes_per_client: int = 5
    """For shards."""
    domain_alpha: float = 0.3
    """For mixtures: the smaller, the more a client's images are from one domain."""
    part: str = ALL
    """The part of the dataset that is split; one of ``PARTS``. An image's part depends on its pixels alone."""

    def __post_init__(self) -> None:
        for name, least in (("clients_per_domain", 1), ("new_clients_per_domain", 0), ("min_rows", 1), ("seed", 0),
                            ("classes_per_client", 1)):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}; change it")
        for name in ("alpha", "domain_alpha"):
            if not _number(value := getattr(self, name)) or value <= 0:
                raise InputError(f"{name} must be a positive number, got {value!r}; the paper uses 0.3")
        if self.partition not in PARTITIONS:
            hint = did_you_mean(str(self.partition), list(PARTITIONS))
            raise InputError(f"partition must be a known one, got {self.partition!r}{hint}; choose one of these")
        if self.part not in PARTS:
            hint = did_you_mean(str(self.part), list(PARTS))
            raise InputError(f"part must be one of {', '.join(PARTS)}, got {self.part!r}{hint}; choose one of these")
        self._check_split()
        self._check_sizes()

    def changed(self, given: Mapping[str, Any], seed: int) -> Spec:
        """Replace the given fields; switching to or from a natural partition also takes its default split and sizes."""
        base = self
        if "partition" in given and (given["partition"] == "natural") != self.natural:
            base = replace(NATURAL if given["partition"] == "natural" else Spec(), partition=given["partition"])
        if given.get("new_clients_per_domain") == 0 and "split" not in given and not base.natural:
            kept = base.split
            given = {**given, "split": (kept[0] + kept[1], 0.0, kept[2], kept[3])}
        return replace(base, **given, seed=seed)

    @property
    def natural(self) -> bool:
        """Whether every client is a user of the dataset; then it is tested on its own images, not on its domain's."""
        return self.partition == "natural"

    def _check_split(self) -> None:
        object.__setattr__(self, "split", tuple(self.split))
        good = len(self.split) == 4 and all(_number(part) and part >= 0 for part in self.split)
        if not good or abs(sum(self.split) - 100) > 1e-6:
            raise InputError(
                "split must be four percentages (participating, new, validation, test) that sum to 100, "
                f"got {self.split!r}; the paper uses 60, 20, 5, 15"
            )
        if self.split[0] <= 0:
            raise InputError(f"split must leave something to train on, got {self.split!r}; raise the first share")
        if not self.natural and (self.split[1] > 0) != (self.new_clients_per_domain > 0):
            raise InputError(
                "The new clients' share in split and new_clients_per_domain must both be positive or both be zero, "
                f"got {self.split[1]:g} % and {self.new_clients_per_domain}; change one of them"
            )

    def _check_sizes(self) -> None:
        object.__setattr__(self, "sizes", dict(self.sizes))
        fractions = list(self.sizes.values())
        good = (
            fractions
            and all(_number(part) and 0 < part <= 1 for part in fractions)
            and all(name and isinstance(name, str) for name in self.sizes)
        )
        if not good or any(b <= a for a, b in pairwise(fractions)):
            raise InputError(
                f"sizes must map names to increasing fractions above 0 and up to 1, got {self.sizes!r}; "
                'the paper uses {"S": 0.5, "M": 1.0}'
            )
        if self.natural and self.new_clients_per_domain and fractions[-1] + self.split[2] / 100 >= 1:
            raise InputError(
                "In a natural partition the largest size and the validation share must leave images of a new client "
                f"to test on, got {fractions[-1]:g} and {self.split[2]:g} %; the paper uses 0.4 and 20 %"
            )

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types; sizes become a list of pairs, because their order matters."""
        return asdict(self) | {"split": list(self.split), "sizes": [[name, part] for name, part in self.sizes.items()]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Spec:
        """Convert back from ``as_json``."""
        try:
            if len(dict(value["sizes"])) != len(value["sizes"]):
                raise InputError(f"Every size of a benchmark must have a name of its own, got {value['sizes']!r:.200}")
            return cls(**{**value, "split": tuple(value["split"]), "sizes": dict(value["sizes"])})
        except (TypeError, KeyError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"The specification of a benchmark must have its fields, got {value!r:.200} ({error})"
            ) from None


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


NATURAL = Spec(partition="natural", split=(80, 0, 20, 0), sizes={"S": 0.1, "M": 0.2, "L": 0.4}, min_rows=1)
"""The paper's settings for users as clients (GLD23k), except for their number."""
