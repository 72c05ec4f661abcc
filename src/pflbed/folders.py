"""A folder ``root/<domain>/<class>/<image>`` is read as a table, from file names and sizes only; no image is opened."""

import hashlib
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pflbed.errors import InputError
from pflbed.safe_paths import check_relative
from pflbed.table import Table, in_order

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"})
CLIENT_DOMAIN = "client"


def scan(root: Path) -> Table:
    """List the images of a folder ``root/<domain>/<class>/<image>``. No image is opened.

    Args:
        root: The folder. Hidden files and files that are not images are left out.

    Returns:
        The table, with rows in sorted order.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("photo/cat/1.jpg", "photo/dog/1.jpg", "art/cat/1.jpg"):
        ...         (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
        ...         (Path(folder) / name).touch()
        ...     table = scan(Path(folder))
        >>> table.paths
        ('art/cat/1.jpg', 'photo/cat/1.jpg', 'photo/dog/1.jpg')
        >>> table.class_names, table.domain_names
        (('cat', 'dog'), ('art', 'photo'))
    """
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
    """List the images of one client's folder ``root/<class>/<image>``. No image is opened.

    Args:
        root: The folder. A single class is allowed.

    Returns:
        The table, with one domain named "client".

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     (Path(folder) / "cat").mkdir()
        ...     (Path(folder) / "cat" / "1.jpg").touch()
        ...     scan_client(Path(folder)).class_names
        ('cat',)
    """
    root = _folder(Path(root))
    found = [(CLIENT_DOMAIN, label.name, image) for label in _folders(root, root) for image in _images(label, root)]
    if not found:
        raise InputError(f"a client's folder must hold images as <class>/<image>, got none in {root}; check the path")
    return _table(root, found)


def oddities(root: Path) -> list[str]:
    """List problems of a folder ``<domain>/<class>/<image>``: ignored entries, and names that are almost the same."""
    problems: list[str] = []
    names: list[tuple[str, str]] = []
    deeper, others = [], []
    for domain in _folders(Path(root), Path(root)):
        labels = _folders(domain, Path(root))
        names += [("domain", domain.name), *(("class", label.name) for label in labels)]
        if not any(_images(label, Path(root)) for label in labels):
            problems.append(f"the domain folder {domain.name!r} holds no images as <class>/<image>")
            continue
        problems += [
            f"the class folder {domain.name}/{label.name} is empty" for label in labels if not any(label.iterdir())
        ]
        for label in labels:
            for entry in _entries(label, Path(root)):
                if entry.is_dir():
                    deeper.append(entry)
                elif entry.suffix.lower() not in SUFFIXES:
                    others.append(entry)
    for what, found in (
        ("folders below a class, whose images are not taken", deeper),
        ("files of other kinds", others),
    ):
        if found:
            problems.append(f"there are {len(found):,} {what}, such as {found[0].relative_to(root).as_posix()}")
    alike: dict[tuple[str, str], set[str]] = {}
    for kind, name in names:
        alike.setdefault((kind, unicodedata.normalize("NFKC", name).casefold()), set()).add(name)
    for (kind, _), spellings in alike.items():
        if len(spellings) > 1:
            listed = " and ".join(ascii(name) for name in sorted(spellings))
            problems.append(
                f"the names {listed} count as different: each is a {kind} of its own; rename one if they are not"
            )
    return problems


def _table(root: Path, found: list[tuple[str, str, Path]]) -> Table:
    class_names = tuple(in_order({label for _, label, _ in found}))
    domain_names = tuple(in_order({domain for domain, _, _ in found}))
    class_index = {name: i for i, name in enumerate(class_names)}
    domain_index = {name: i for i, name in enumerate(domain_names)}
    paths = tuple(image.relative_to(root).as_posix() for _, _, image in found)
    check_relative(paths)  # a path that a manifest cannot hold is refused here
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
    """The visible entries in sorted order; a link that leaves ``root`` is refused."""
    for entry in sorted(parent.iterdir(), key=lambda path: path.name):
        if entry.name.startswith("."):
            continue
        if entry.is_symlink() and not entry.resolve().is_relative_to(root.resolve()):
            raise InputError(f"links must stay inside the data folder, but {entry} leaves it; copy the file instead")
        yield entry
