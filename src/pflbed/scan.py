"""A folder ``root/<domain>/<class>/<image>`` is read as a table by its names and sizes alone; no image is opened."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pflbed.errors import InputError
from pflbed.table import Table

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"})
CLIENT_DOMAIN = "client"


def scan(root: Path) -> Table:
    """List ``root/<domain>/<class>/<image>`` in sorted order; hidden files and files of other kinds are left out."""
    root = _folder(Path(root))
    found = [
        (domain.name, label.name, image)
        for domain in _folders(root, root)
        for label in _folders(domain, root)
        for image in _images(label, root)
    ]
    if not found:
        flat = any(True for label in _folders(root, root) for _ in _images(label, root))
        hint = "these look like root/<class>/<image>, put them one folder deeper" if flat else "check the path"
        raise InputError(f"a dataset must hold images as <domain>/<class>/<image>, got none in {root}; {hint}")
    classes = {label for _, label, _ in found}
    if len(classes) < 2:
        raise InputError(
            f"a dataset must have at least two classes, got only {classes.pop()!r} in {root}; "
            "lay the images out as <domain>/<class>/<image>"
        )
    return _table(root, found)


def scan_client(root: Path) -> Table:
    """List one client's ``root/<class>/<image>``; whether a single class is enough is for the caller to say."""
    root = _folder(Path(root))
    found = [(CLIENT_DOMAIN, label.name, image) for label in _folders(root, root) for image in _images(label, root)]
    if not found:
        raise InputError(f"a client's folder must hold images as <class>/<image>, got none in {root}; check the path")
    return _table(root, found)


def _table(root: Path, found: list[tuple[str, str, Path]]) -> Table:
    class_names = tuple(sorted({label for _, label, _ in found}))
    domain_names = tuple(sorted({domain for domain, _, _ in found}))
    class_index = {name: i for i, name in enumerate(class_names)}
    domain_index = {name: i for i, name in enumerate(domain_names)}
    paths = tuple(image.relative_to(root).as_posix() for _, _, image in found)
    digest = hashlib.sha256()
    for path, (_, _, image) in zip(paths, found, strict=True):
        try:
            digest.update(f"{path}\0{image.stat().st_size}\n".encode())
        except UnicodeEncodeError as error:
            raise InputError(f"file names must be Unicode text, got {path!a} in {root}; rename the file") from error
    return Table(
        paths=paths,
        labels=np.array([class_index[label] for _, label, _ in found], dtype=np.int64),
        domains=np.array([domain_index[domain] for domain, _, _ in found], dtype=np.int64),
        class_names=class_names,
        domain_names=domain_names,
        groups=None,
        digest=digest.hexdigest(),
    )


def _folder(root: Path) -> Path:
    if not root.exists():
        raise InputError(f"the data folder must exist, got {root}, which does not; check the path")
    if not root.is_dir():
        raise InputError(f"the data must be a folder, got the file {root}; unpack it first and give the folder")
    return root


def _folders(parent: Path, root: Path) -> list[Path]:
    return [entry for entry in _entries(parent, root) if entry.is_dir()]


def _images(parent: Path, root: Path) -> list[Path]:
    return [entry for entry in _entries(parent, root) if entry.suffix.lower() in SUFFIXES and entry.is_file()]


def _entries(parent: Path, root: Path) -> Iterator[Path]:
    """Sorted visible entries, each certain to lie inside root."""
    for entry in sorted(parent.iterdir(), key=lambda path: path.name):
        if entry.name.startswith("."):
            continue
        if entry.is_symlink() and not entry.resolve().is_relative_to(root.resolve()):
            raise InputError(f"links must stay inside the data folder, but {entry} leaves it; copy the file instead")
        yield entry
