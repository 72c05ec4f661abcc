"""Atomic writes: a file or folder is written under a temporary name in the same folder, then renamed."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a unique temporary path; on success it is renamed to ``path``, else it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())  # the content must be on disk before the name
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def hidden_beside(place: Path) -> Iterator[Path]:
    """Yield a new folder beside ``place``, to be renamed by the caller; what is left of it is removed."""
    place.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name[:40]}.", suffix=".tmp"))
    try:
        folder = hidden / "new"
        folder.mkdir()  # unlike mkdtemp, this gives the mode that folders have here
        yield folder
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys, so that the same value gives the same bytes."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
    """Hash a file without loading it into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _umask() -> int:
    """The process's file mode mask; it can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
