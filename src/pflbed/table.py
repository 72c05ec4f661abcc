"""A dataset before any split is a table: one row per image, with its label and domain, and no pixels."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pflbed.errors import InputError
from pflbed.seeding import generator

Rows = NDArray[np.int64]
Contents = NDArray[np.uint64]
_WHOLE = re.compile(r"-?[0-9]{1,18}")
MAX_CLASSES = 100_000
"""Every client has a distribution over all classes; with paths mistaken for classes it would fill the memory."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """The rows of a dataset, one per image. Arrays are copied and made read-only, so the digest stays valid.

    Args:
        paths: A unique path or id per image.
        labels: The class of every image, an index into ``class_names``.
        domains: The domain of every image, an index into ``domain_names``.
        class_names: The names of the classes.
        domain_names: The names of the domains.
        digest: A hash that identifies the data.
        groups: Images of the same group are never in two splits; None if every image is its own group.
        users: The user of every image, an index into ``user_names``; None if unknown.
        user_names: The names of the users.
        official_test: Which images are the dataset's official test set; None if it has none.
        contents: A number per image that depends on its pixels alone; None if no image was opened.

    Example:
        >>> table = Table(paths=("1.png", "2.png"), labels=np.array([0, 1]), domains=np.array([0, 0]),
        ...               class_names=("cat", "dog"), domain_names=("photo",), digest="")
        >>> len(table), table.take([1]).paths
        (2, ('2.png',))
    """

    paths: tuple[str, ...]
    """Relative and "/"-separated, or a source's own id such as ``mnist/0123``; unique."""
    labels: Rows
    """Index into ``class_names``."""
    domains: Rows
    """Index into ``domain_names``."""
    class_names: tuple[str, ...]
    domain_names: tuple[str, ...]
    digest: str
    """A sha256 that identifies the data."""
    groups: tuple[str, ...] | None = None
    """Rows of the same group (one source glyph, one picture saved twice) are never in two splits."""
    users: Rows | None = None
    """Index into ``user_names``; None if the users are unknown."""
    user_names: tuple[str, ...] = ()
    official_test: NDArray[np.bool_] | None = None
    """Which rows are the official test set, if the dataset has one."""
    contents: Contents | None = None
    """The content numbers of ``pflbed.parts``, which a group shares; None if no image was opened."""

    def __post_init__(self) -> None:
        count = len(self.paths)
        if len(self.class_names) > MAX_CLASSES:
            raise InputError(
                f"A dataset can have at most {MAX_CLASSES:,} classes, got {len(self.class_names):,}; is the right "
                "column or level of folders the class?"
            )
        for name in ("paths", "class_names", "domain_names", "user_names"):
            values = tuple(getattr(self, name))
            if len(set(values)) != len(values):
                raise InputError(
                    f"{name} must be unique, got {Counter(values).most_common(1)[0][0]!r} twice; rename one"
                )
            object.__setattr__(self, name, values)
        object.__setattr__(self, "labels", _indices("labels", self.labels, count, self.class_names))
        object.__setattr__(self, "domains", _indices("domains", self.domains, count, self.domain_names))
        if self.users is not None:
            object.__setattr__(self, "users", _indices("users", self.users, count, self.user_names))
        if self.groups is not None:
            object.__setattr__(self, "groups", tuple(self.groups))
            if len(self.groups) != count:
                raise InputError(
                    f"groups must name one group per path, got {len(self.groups)} groups for {count} paths; "
                    "give None if every row is its own group"
                )
        if self.official_test is not None:
            held = np.array(self.official_test, dtype=np.bool_)
            if held.shape != (count,):
                raise InputError(f"official_test must hold one bool per path, got shape {held.shape} for {count} paths")
            held.setflags(write=False)
            object.__setattr__(self, "official_test", held)
        if self.contents is not None:
            contents = np.array(self.contents, dtype=np.uint64)
            if contents.shape != (count,):
                raise InputError(
                    f"contents must hold one number per path, got shape {contents.shape} for {count} paths"
                )
            contents.setflags(write=False)
            object.__setattr__(self, "contents", contents)

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: ArrayLike) -> Table:
        """Select rows in the given order; the numbers of classes and domains stay, the digest changes."""
        rows = np.asarray(indices, dtype=np.int64)
        if rows.ndim != 1 or (rows.size and not (rows.min() >= 0 and rows.max() < len(self))):
            raise InputError(f"rows to take must be a list of numbers from 0 to {len(self) - 1}, got {indices!r}")
        if np.array_equal(rows, np.arange(len(self))):
            return self
        return replace(
            self,
            paths=tuple(self.paths[i] for i in rows),
            labels=self.labels[rows],
            domains=self.domains[rows],
            digest=hashlib.sha256(self.digest.encode() + rows.astype("<i8").tobytes()).hexdigest(),
            groups=None if self.groups is None else tuple(self.groups[i] for i in rows),
            users=None if self.users is None else self.users[rows],
            official_test=None if self.official_test is None else self.official_test[rows],
            contents=None if self.contents is None else self.contents[rows],
        )


def limited_rows(table: Table, limit: int, seed: int) -> list[int]:
    """Draw at most ``limit`` rows of every class of every domain.

    Args:
        table: The rows to draw from.
        limit: How many rows of a class of a domain to keep at most.
        seed: Another seed draws other rows.

    Returns:
        Row numbers in increasing order, for ``Table.take``.

    Example:
        >>> table = Table(paths=("a", "b", "c"), labels=np.array([0, 0, 1]), domains=np.array([0, 0, 0]),
        ...               class_names=("cat", "dog"), domain_names=("photo",), digest="")
        >>> rows = limited_rows(table, limit=1, seed=0)
        >>> len(rows), table.take(rows).labels
        (2, array([0, 1]))
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise InputError(f"limit must be a whole number of at least 1, got {limit!r}; leave it out to take every image")
    cells = table.labels + len(table.class_names) * table.domains
    drawn = generator(seed, "limit").permutation(len(table))
    return sorted(int(row) for cell in np.unique(cells) for row in drawn[cells[drawn] == cell][:limit])


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names as text, or as numbers if all of them are whole numbers, so that class 10 comes after class 9."""
    chosen = list(names)
    if all(_WHOLE.fullmatch(name) for name in chosen):
        return sorted(chosen, key=lambda name: (int(name), name))
    return sorted(chosen)


def _indices(name: str, values: ArrayLike, count: int, names: Sequence[str]) -> Rows:
    """Check that there is one number per row and that it names something; return a read-only copy."""
    array = np.asarray(values)
    if array.shape != (count,):
        raise InputError(f"{name} must hold one number per path, got shape {array.shape} for {count} paths")
    if count and array.dtype.kind not in "iu":
        raise InputError(f"{name} must be whole numbers, got dtype {array.dtype}; give indices, not names")
    array = array.astype(np.int64)
    if count and not (array.min() >= 0 and array.max() < len(names)):
        raise InputError(
            f"{name} must lie in 0..{len(names) - 1}, got {array.min()}..{array.max()}; every number needs a name"
        )
    array.setflags(write=False)
    return array
