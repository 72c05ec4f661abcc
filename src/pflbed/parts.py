"""A fixed part of a dataset to tune on, and the rest for tables of results: the part of an image depends on its pixels.

The pixels of an image (upright, RGB on white, at its own size) have a content number: the first eight bytes of their
sha256. Images whose number is divisible by four are the tuning part, about a quarter of a dataset; all others are the
tables part. So no seed, split, path, order, resolution or other image changes an image's part, and two benchmarks of
different parts never share a picture.

Copies of a picture have one number, and are in one part. Images of a group, which must never be in two splits, are in
one part too: that of the smallest number in the group and in the groups that have copies of its images.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pflbed.errors import InputError
from pflbed.spec import ALL, TUNING
from pflbed.table import Contents, Rows, Table

ONE_IN = 4
"""The tuning part is one in so many images."""


def pixel_digest(width: int, height: int, rgb: bytes) -> str:
    """Return the sha256 of an image's size and RGB pixels, row by row."""
    digest = hashlib.sha256(f"{width} {height} ".encode())
    digest.update(rgb)
    return digest.hexdigest()


def content_number(digest: str) -> int:
    """Return the content number of a ``pixel_digest``."""
    return int(digest[:16], 16)


def contents_of(images: NDArray[np.uint8]) -> Contents:
    """Return the content numbers of decoded images [N, H, W, C]; a gray image counts as the RGB image it shows."""
    return np.array([image_number(image) for image in images], dtype=np.uint64)


def image_number(image: NDArray[np.uint8]) -> int:
    """Return the content number of one image [H, W, C]."""
    pixels = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image
    return content_number(pixel_digest(image.shape[1], image.shape[0], np.ascontiguousarray(pixels).tobytes()))


def part_rows(table: Table, part: str) -> Rows:
    """Return the rows of a part of a table, in increasing order.

    Args:
        table: The images; unless ``part`` is "all" it must have contents, as after ``Dataset.checked``.
        part: "all", "tuning" or "tables".

    Returns:
        Row numbers, for ``Table.take``.

    Example:
        >>> table = Table(paths=("a", "b", "c"), labels=np.array([0, 0, 1]), domains=np.array([0, 0, 0]),
        ...               class_names=("cat", "dog"), domain_names=("photo",), digest="", contents=np.array([8, 5, 6]))
        >>> part_rows(table, "tuning"), part_rows(table, "tables")
        (array([0]), array([1, 2]))
    """
    if part == ALL:
        return np.arange(len(table), dtype=np.int64)
    if table.contents is None:
        raise InputError(
            f"The part '{part}' of a dataset is chosen by the pixels of its images, which must have been read, but "
            "they were not; leave --names-only out, or use the table of Dataset.checked()"
        )
    tuning = table.contents % np.uint64(ONE_IN) == 0
    rows = np.flatnonzero(tuning == (part == TUNING)).astype(np.int64)
    if not rows.size:
        raise InputError(
            f"The part '{part}' must have images, but none of these {len(table)} belong to it; use the part 'all'"
        )
    return rows


def shared(contents: Contents, groups: Sequence[str] | None) -> Contents:
    """Give images of one group, and of groups that have copies of each other's images, the smallest of their numbers.

    It must be called with all images of a dataset: which image of a group is missing in a sample must not matter.
    """
    if groups is None:
        return contents
    numberings = [np.unique(values, return_inverse=True)[1] for values in (np.asarray(groups), contents)]
    least, before = contents, None
    while before is None or not np.array_equal(least, before):
        before = least
        for numbering in numberings:
            smallest = np.full(int(numbering.max()) + 1, np.iinfo(np.uint64).max, dtype=np.uint64)
            np.minimum.at(smallest, numbering, least)
            least = smallest[numbering]
    return least
