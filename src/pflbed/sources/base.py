"""What a dataset's file must say: where its files come from, how they are laid out, and how to read a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from pflbed.cache import Decoded, Progress
from pflbed.spec import Spec
from pflbed.table import Table


@dataclass(frozen=True)
class Source:
    """One dataset, as its makers hand it out."""

    name: str
    """What a user writes: ``--source pacs``."""
    title: str
    home: str
    """What to download, and from which official place."""
    layout: str
    """Which files must lie where below the data folder."""
    scan: Callable[[Path], Table]
    """List the rows of a data folder; opens no image."""
    open_image: Callable[[Path, str], Image.Image]
    """Open a row's image, for the caller to close: the folder that ``folder`` gives, the row's path -> image.

    A function of a module, because other processes import it by its name.
    """
    counts: Mapping[str, int]
    """How many images each domain has, if the dataset is whole."""
    spec: Spec
    """The paper's way to split it."""
    oddities: Callable[[Path], list[str]] = lambda _: []
    """Say what lies in that folder and is not listed: empty folders, other files, names that look alike."""
    decoded: Callable[[Progress | None], Decoded] | None = None
    """All pixels at once, at ``resolution``, for a dataset that is computed and not read from image files."""
    resolution: int | None = None
    """The one resolution that a computed dataset has."""
    folder: Callable[[Path], Path] = Path
    """Where the rows' paths start: the data folder, or the folder in it that the official archive unpacks to."""

    def problems(self, table: Table) -> list[str]:
        """Say where the counts are not those of the whole dataset."""
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
        """The sentence for a folder that does not hold the dataset."""
        return f"{self.title} needs {what}, which {root} lacks; get {self.home}, and put {self.layout}"


def find_folder(root: Path, below: Iterable[str], entries: Iterable[str]) -> Path | None:
    """The data folder or one of its subfolders ``below``, whichever holds the most of the entries, if any does."""
    wanted = tuple(entries)
    places = (Path(root), *(Path(root) / name for name in below))
    held = [sum((place / entry).exists() for entry in wanted) for place in places]
    return places[held.index(max(held))] if max(held) else None
