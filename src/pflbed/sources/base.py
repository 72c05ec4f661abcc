"""The description of a known dataset: where to get it, its files, and how to read an image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from pflbed.cache import Decoded, Progress
from pflbed.problems import Problem
from pflbed.spec import Spec
from pflbed.table import Table

if TYPE_CHECKING:
    from pflbed.sources.arrays import ArrayCard


@dataclass(frozen=True)
class Source:
    """One dataset in its official form."""

    name: str
    """The name for users, as in ``--source pacs``."""
    title: str
    home: str
    """What to download, and from where."""
    layout: str
    """Which files must be where in the data folder."""
    scan: Callable[[Path], Table]
    """List the rows of a data folder; opens no image."""
    open_image: Callable[[Path, str], Image.Image]
    """Open a row's image, for the caller to close: the folder that ``folder`` gives, the row's path -> image.

    A function of a module, because other processes import it by its name.
    """
    counts: Mapping[str, int]
    """The number of images of each domain in the complete dataset."""
    spec: Spec
    """The paper's split of it."""
    oddities: Callable[[Path], list[Problem]] = lambda _: []
    """Describe entries of that folder that are not listed: empty folders, other files, almost equal names."""
    decoded: Callable[[Path, Progress | None], Decoded] | None = None
    """All pixels at once, in their own shape, for a dataset that is computed or an array, not image files."""
    resolution: int | None = None
    """The one resolution that a computed dataset has."""
    card: Callable[[Path], ArrayCard] | None = None
    """What a dataset of arrays says about itself."""
    folder: Callable[[Path], Path] = Path
    """The folder that paths are relative to: the data folder, or the folder in it that the archive unpacks to."""

    def problems(self, table: Table) -> list[str]:
        """Describe domains whose counts are not those of the complete dataset."""
        found = {name: int((table.domains == i).sum()) for i, name in enumerate(table.domain_names)}
        wrong = [
            f"{name} must have {count:,} images, got {found.get(name, 0):,}"
            for name, count in self.counts.items()
            if found.get(name, 0) != count
        ]
        wrong += [f"{name} is no part of {self.title}" for name in found if self.counts and name not in self.counts]
        if not wrong:
            return []
        return [f"this is not the whole {self.title}: {'; '.join(wrong)}. Get {self.home}"]

    def missing(self, root: Path, what: str) -> str:
        """The error message for a folder without the dataset."""
        return f"{self.title} needs {what}, which {root} lacks; get {self.home}, and put {self.layout}"


def find_folder(root: Path, below: Iterable[str], entries: Iterable[str]) -> Path | None:
    """The data folder or one of its subfolders ``below``, whichever holds the most of the entries, if any does."""
    wanted = tuple(entries)
    places = (Path(root), *(Path(root) / name for name in below))
    held = [sum((place / entry).exists() for entry in wanted) for place in places]
    return places[held.index(max(held))] if max(held) else None
