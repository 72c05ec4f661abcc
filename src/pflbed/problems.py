"""Problems of a dataset: each is an object for machines; for people those of one kind are summed up in a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

FIRST_BAD, FIRST_GAPS = 5, 10


@dataclass(frozen=True)
class Problem:
    """One problem.

    Example:
        >>> problem = Problem("unreadable", "a/b/1.png cannot be read (cut)", ("a/b/1.png",), "cut")
        >>> problem.as_json()["kind"], sentences([problem])
        ('unreadable', ['1 image cannot be read: a/b/1.png (cut)'])
    """

    kind: str
    """One of: unreadable, skipped, empty, missing class, duplicate in domain, duplicate across domains, nested folder,
    other file, similar names, incomplete, tested and trained."""
    text: str
    """A sentence without its full stop."""
    paths: tuple[str, ...] = ()
    """The files that it is about, relative to the data folder."""
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        return {"kind": self.kind, "message": self.text, "paths": list(self.paths)} | (
            {"reason": self.reason} if self.reason else {}
        )


def sentences(problems: Iterable[Problem]) -> list[str]:
    """Sum up problems for people, one sentence per kind where there are many; in the order of the first of each."""
    kinds: dict[str, list[Problem]] = {}
    for problem in problems:
        kinds.setdefault(problem.kind, []).append(problem)
    return [sentence for kind, found in kinds.items() for sentence in _summed_up(kind, found)]


SUMMED_UP = {
    "duplicate in domain": ("picture occurs", "pictures occur", "more than once within a domain"),
    "duplicate across domains": ("picture occurs", "pictures occur", "in more than one domain"),
    "nested folder": ("folder lies", "folders lie", "below a class, and its images are not taken"),
    "other file": ("file is", "files are", "of another kind"),
}
LISTED = {"unreadable": ("image", "images", "cannot be read"), "skipped": ("entry", "entries", "cannot be used")}


def _summed_up(kind: str, found: list[Problem]) -> list[str]:
    if kind in SUMMED_UP:
        one, several, rest = SUMMED_UP[kind]
        return [f"{_count(len(found), one, several)} {rest}, such as {' and '.join(found[0].paths[:2])}"]
    if kind in LISTED:
        one, several, rest = LISTED[kind]
        listed = ", ".join(f"{problem.paths[0]} ({problem.reason})" for problem in found[:FIRST_BAD])
        more = f", and {len(found) - FIRST_BAD:,} more" if len(found) > FIRST_BAD else ""
        return [f"{_count(len(found), one, several)} {rest}: {listed}{more}"]
    texts = [problem.text for problem in found[:FIRST_GAPS]]
    if more_of_them := len(found) - len(texts):
        what = "classes that a domain lacks" if kind == "missing class" else f"of this kind ({kind})"
        texts.append(f"and {more_of_them:,} more {what}")
    return texts


def _count(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"
