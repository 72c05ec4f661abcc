"""Synthetic tables for the tests."""

import numpy as np

from pflbed import Table

PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
PACS = {
    "art_painting": (379, 255, 285, 184, 201, 295, 449),
    "cartoon": (389, 457, 346, 135, 324, 288, 405),
    "photo": (189, 202, 182, 186, 199, 280, 432),
    "sketch": (772, 740, 753, 608, 816, 80, 160),
}


def counted(counts: dict[str, tuple[int, ...]], classes: tuple[str, ...], per_group: int | None = None) -> Table:
    """A table with so many rows of every domain and class, in groups of so many rows of a class if asked."""
    rows = [
        (domain, label, i)
        for domain, sizes in sorted(counts.items())
        for label, size in enumerate(sizes)
        for i in range(size)
    ]
    names = tuple(sorted(counts))
    return Table(
        paths=tuple(f"{domain}/{classes[label]}/{i}.jpg" for domain, label, i in rows),
        labels=np.array([label for _, label, _ in rows], dtype=np.int64),
        domains=np.array([names.index(domain) for domain, _, _ in rows], dtype=np.int64),
        class_names=classes,
        domain_names=names,
        groups=None if per_group is None else tuple(f"{d}/{label}/{i // per_group}" for d, label, i in rows),
        digest="0" * 64,
    )


def pacs() -> Table:
    """PACS's real counts without its images."""
    return counted(PACS, PACS_CLASSES)
