"""Paths of rows may come from untrusted files, so they must not refer to anything outside the data folder."""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pflbed.errors import InputError

# Empty, absolute, with a drive letter, a backslash, a ".." component or a control character. These characters are
# literal in the pattern, because Python and pyarrow, which searches millions of rows, write escapes differently.
UNSAFE = r"^$|^/|^[A-Za-z]:|\\|(^|/)\.\.(/|$)|" + f"[{chr(0)}-{chr(31)}{chr(127)}-{chr(159)}]"
_UNSAFE = re.compile(UNSAFE + "|[\ud800-\udfff]")  # what is no Unicode text cannot be written down either
FEW = 10_000
"""For at most so many rows Python is fast enough, and pyarrow is not imported."""


def check_relative(paths: Sequence[str]) -> None:
    """Refuse paths that are empty, absolute, contain ``..``, or mean something else on another system."""
    if len(paths) <= FEW:
        row = next((i for i, path in enumerate(paths) if _UNSAFE.search(path)), None)
    else:
        import pyarrow as pa

        try:
            row = first_unsafe(pa.array(paths, pa.large_string()))
        except UnicodeEncodeError:
            row = next(i for i, path in enumerate(paths) if _UNSAFE.search(path))
    if row is not None:
        raise unsafe(paths[row], row)


def is_safe(name: str) -> bool:
    """Whether a path, or one component of it, can be a row of a table."""
    return not _UNSAFE.search(name)


def first_unsafe(column: Any) -> int | None:
    """The same for a text column of pyarrow: the first row that is not safe, if any."""
    import pyarrow.compute as pc

    row = pc.index(pc.match_substring_regex(column, UNSAFE), True).as_py()
    return None if row < 0 else int(row)


def unsafe(path: str, row: int, where: str = "") -> InputError:
    """The error for an unsafe path; rows are counted from 1."""
    return InputError(
        "A path must be relative to the data folder, /-separated, and free of .. and control characters, "
        f"got {path[:200]!r} in row {row + 1}{where}; write it as folder/image.jpg"
    )


class UnsafePathError(InputError):
    """The path of one row leaves the data folder, or leads nowhere; that row alone cannot be read."""


def inside(root: Path, path: str) -> Path:
    """Join folder and path, resolve links, and refuse a result outside the folder."""
    base = _resolved(Path(root).absolute())
    try:
        if "\0" in path:
            raise ValueError("embedded null byte")
        folder, _, name = path.rpartition("/")
        found = _resolved(base / folder) / name
        if name in ("", ".", "..") or found.is_symlink():
            found = (base / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL
        raise UnsafePathError(
            f"A path must name a file, got {path[:200]!r} in {root} ({error}); check the path"
        ) from error
    if found == base or not found.is_relative_to(base):
        raise UnsafePathError(
            f"A path must stay inside the data folder, also through links, got {path[:200]!r}, which leaves {root}; "
            "copy the file into the folder instead"
        )
    return found


@lru_cache(maxsize=4096)
def _resolved(folder: Path) -> Path:
    """Resolve a folder once, not once per image."""
    return folder.resolve()
