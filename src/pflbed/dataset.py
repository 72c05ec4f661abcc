"""Where images come from: an image folder, a csv or parquet table, an array, a known dataset, or Digits-4."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflbed.cache import Decoded, Progress, decode
from pflbed.errors import InputError, did_you_mean
from pflbed.images import Resolution, open_file
from pflbed.parts import contents_of, part_rows, shared
from pflbed.problems import Problem, sentences
from pflbed.sources import SOURCES
from pflbed.sources.arrays import ArrayCard, is_array_folder, require_image
from pflbed.sources.base import Source
from pflbed.spec import Spec
from pflbed.table import Contents, Table

if TYPE_CHECKING:
    from pflbed.check import Findings

EMBEDDED = "digits4"
TABLES = (".csv", ".parquet")


@dataclass(frozen=True)
class Dataset:
    """A table, the folder of its images, and how to open one. ``find`` creates it.

    Example:
        >>> dataset = find("digits4")
        >>> dataset.source.name, dataset.decode(28).images.shape[1:]
        ('digits4', (28, 28, 3))
    """

    source: Source
    root: Path
    """The folder that the table's paths are relative to; nothing outside it is read."""
    table: Table
    place: dict[str, Any]
    """The arguments of ``find`` that give this dataset again on this machine."""

    def decode(
        self,
        resolution: Resolution,
        table: Table | None = None,
        progress: Progress | None = None,
        channels: int = 3,
    ) -> Decoded:
        """Decode all rows, or those of ``table``, which is a part of this dataset's; see ``pflbed.decode``."""
        chosen = self.table if table is None else table
        if self.source.decoded is not None:
            whole = self.source.decoded(self.root, progress)
            sides = resolution if isinstance(resolution, tuple) else (resolution, resolution)
            if (*sides, channels) == whole.images.shape[1:]:
                return _part(whole, chosen)
            require_image(whole.images, self.root)
        return decode(self.root, chosen, resolution, progress, self.source.open_image, channels=channels)

    def problems(self, findings: Findings | None = None) -> list[str]:
        """Describe the problems for people, one sentence per kind; see ``every_problem``."""
        return sentences(self.every_problem(findings))

    def every_problem(self, findings: Findings | None = None) -> list[Problem]:
        """List the problems of the folder, names and counts and, if ``findings`` are given, of the images."""
        from pflbed.check import Findings, problems_of

        named = self.source.oddities(self.root)
        named += [Problem("incomplete", text) for text in self.source.problems(self.table)]
        return named + problems_of(self.table, findings or Findings([], []))

    def checked(self, progress: Progress | None = None) -> tuple[Dataset, Findings, list[str]]:
        """Read every image; leave out unreadable ones, group duplicates, and return the findings and problems."""
        from pflbed.check import check, content_groups, copies_in

        if self.source.decoded is not None:
            findings = copies_in(self.table, _contents(_part(self.source.decoded(self.root, progress), self.table)))
        else:
            findings = check(self.root, self.table, self.source.open_image, progress)
        problems = self.problems(findings)
        bad = {path for path, _ in findings.bad}
        contents = findings.contents if self.table.contents is None else self.table.contents
        table = replace(self.table, contents=contents)
        table = table.take([i for i, path in enumerate(table.paths) if path not in bad])
        groups = content_groups(table, findings)
        assert table.contents is not None
        table = replace(table, groups=groups, contents=shared(table.contents, groups))
        return replace(self, table=table), findings, problems

    @property
    def card(self) -> ArrayCard:
        """What a dataset of arrays says about itself; that of images says nothing."""
        return ArrayCard() if self.source.card is None else self.source.card(self.root)

    def part(self, name: str) -> Dataset:
        """Return a part of this dataset, which must have been ``checked``; see ``pflbed.parts``."""
        return replace(self, table=self.table.take(part_rows(self.table, name)))


def find(
    data: Path | str, source: str | None = None, images: Path | None = None, progress: Progress | None = None
) -> Dataset:
    """List the images of a dataset. No image file is opened.

    Args:
        data: A folder ``<domain>/<class>/<image>``, a csv or parquet table, a folder of arrays, the folder of a known
            dataset, or "digits4" for the embedded data.
        source: The name of a known dataset, such as "pacs" or "cifar10"; None for any folder.
        images: The folder that the paths of a table are relative to; None for the table's own folder.
        progress: Called with (images done, images in all) while "digits4" is generated.

    Returns:
        The dataset: its table, and how to decode its images.

    Example:
        >>> dataset = find("digits4")
        >>> dataset.table.domain_names
        ('mnist', 'uci', 'photo', 'typeset')
        >>> dataset.decode(28).images.shape == (len(dataset.table), 28, 28, 3)
        True
    """
    if not str(data):
        raise InputError(
            "The data must be a folder, a table or 'digits4', got an empty name; '.' is the current folder"
        )
    place = {"data": str(Path(data).absolute()) if str(data) != EMBEDDED else EMBEDDED, "source": source}
    if images is not None:
        place["images"] = str(Path(images).absolute())
    if str(data) == EMBEDDED and source in (None, EMBEDDED):
        from pflbed.sources import digits4

        return Dataset(digits4.SOURCE, Path(), digits4.make(progress=progress).table, place)
    path = Path(data)
    if path.suffix.lower() in TABLES and not path.is_dir():
        if source is not None:
            raise InputError(f"A table such as {path} needs no source, got {source!r}; leave --source out")
        return _table_file(path, images, place)
    if images is not None:
        raise InputError(f"A folder of images goes with a csv or parquet table, but {path} is none; leave it out")
    if source is not None and source not in SOURCES:
        hint = did_you_mean(source, list(SOURCES), cutoff=0.6)
        raise InputError(f"source must be a known dataset, got {source!r}{hint}; leave it out for any folder")
    chosen = SOURCES[source or ("arrays" if is_array_folder(path) else "folder")]
    table = chosen.scan(path)
    return Dataset(chosen, chosen.folder(path), table, place)


def _contents(decoded: Decoded) -> Contents:
    """The content numbers of computed images, found once in a process: a table's digest covers them."""
    key = decoded.table.digest, decoded.table.paths
    if key not in _KNOWN:
        _KNOWN.clear()
        _KNOWN[key] = contents_of(decoded.images)
    return _KNOWN[key].copy()


_KNOWN: dict[tuple[str, tuple[str, ...]], Contents] = {}


def _part(decoded: Decoded, table: Table) -> Decoded:
    """The rows of a table, in its order, of decoded images."""
    if table.paths == decoded.table.paths:
        return Decoded(table, decoded.images, [])
    row_of = {path: row for row, path in enumerate(decoded.table.paths)}
    return Decoded(table, decoded.images[[row_of[path] for path in table.paths]], [])


def _table_file(path: Path, images: Path | None, place: dict[str, Any]) -> Dataset:
    from pflbed.table_file import read_table

    root = path.parent if images is None else Path(images)
    return listed(read_table(path, root), root, place, path.name)


def listed(table: Table, root: Path, place: dict[str, Any], title: str = "this table") -> Dataset:
    """The dataset of a table whose paths are relative to ``root``."""
    if not root.is_dir():
        raise InputError(f"The images of a table must be in a folder, got {root}, which is none; check the path")
    source = Source(
        name="table", title=title, home="its images", layout="them where its paths say", scan=lambda _: table,
        open_image=open_file, counts={}, spec=Spec(),
    )  # fmt: skip
    return Dataset(source, root, table, place)
