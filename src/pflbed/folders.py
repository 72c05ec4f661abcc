"""A folder ``root/<domain>/<class>/<image>`` is read as a table, from file names and sizes only; no image is opened.

What cannot be used (a link that leaves the folder or leads nowhere, a folder that may not be read, a name that is no
text) is left out of the table, and ``oddities`` lists it with its path.
"""

import hashlib
import os
import stat
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pflbed.errors import InputError, did_you_mean
from pflbed.foreign import reason_of
from pflbed.problems import Problem
from pflbed.safe_paths import check_relative, is_safe
from pflbed.table import Table, in_order

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff"})
CLIENT_DOMAIN = "client"
Skipped = Callable[[Path, str], None]
"""Called with an entry that cannot be used, and the reason."""


def scan(root: Path) -> Table:
    """List the images of a folder ``root/<domain>/<class>/<image>``. No image is opened.

    Args:
        root: The folder. Hidden files, files that are not images, and entries that cannot be used are left out.

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
        for domain in _folders(root, root, _left_out)
        for label in _folders(domain, root, _left_out)
        for image in _images(label, root, _left_out)
    ]
    if not found:
        raise InputError(
            f"A dataset must hold images as <domain>/<class>/<image>, got none in {root}; {_where_else(root)}"
        )
    classes = {label for _, label, _ in found}
    if len(classes) < 2:
        raise InputError(
            f"A dataset must have at least two classes, got only {classes.pop()!r} in {root}; "
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
    found = [
        (CLIENT_DOMAIN, label.name, image)
        for label in _folders(root, root, _refused)
        for image in _images(label, root, _refused)
    ]
    if not found:
        hint = _where_else(root, client=True)
        raise InputError(f"A client's folder must hold images as <class>/<image>, got none in {root}; {hint}")
    return _table(root, found)


def oddities(root: Path) -> list[Problem]:
    """List problems of a folder ``<domain>/<class>/<image>``: entries left out, and names that are almost the same."""
    root = Path(root)
    problems: list[Problem] = []
    names: list[tuple[str, str]] = []

    def skipped(entry: Path, reason: str) -> None:
        path = _name(entry, root)
        problems.append(Problem("skipped", f"{path} cannot be used ({reason})", (path,), reason))

    for domain in _folders(root, root, skipped):
        labels = list(_folders(domain, root, skipped))
        names += [("domain", domain.name), *(("class", label.name) for label in labels)]
        entries = [(label, list(_entries(label, root, skipped))) for label in labels]
        if not any(_is_image(entry) for _, found in entries for entry in found):
            text = f"the domain folder {domain.name!r} holds no images as <class>/<image>"
            problems.append(Problem("empty", text, (domain.name,)))
            continue
        for label, found in entries:
            if not found and not any(label.iterdir()):
                text = f"the class folder {domain.name}/{label.name} is empty"
                problems.append(Problem("empty", text, (f"{domain.name}/{label.name}",)))
            for entry in found:
                path = _name(entry, root)
                if entry.is_dir():
                    problems.append(Problem("nested folder", f"the images of {path} are not taken", (path,)))
                elif entry.suffix.lower() not in SUFFIXES:
                    problems.append(Problem("other file", f"{path} is a file of another kind", (path,)))
                elif not entry.is_file():
                    skipped(entry, "it is not a regular file")
    alike: dict[tuple[str, str], set[str]] = {}
    for kind, name in names:
        alike.setdefault((kind, unicodedata.normalize("NFKC", name).casefold()), set()).add(name)
    for (kind, _), spellings in alike.items():
        if len(spellings) > 1:
            listed = " and ".join(ascii(name) for name in sorted(spellings))
            text = f"the names {listed} count as different: each is a {kind} of its own; rename one if they are not"
            problems.append(Problem("similar names", text, tuple(sorted(spellings))))
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
        digest.update(f"{path}\0{image.stat().st_size}\n".encode())
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
        raise InputError(f"The data folder must exist, got {root}, which does not; check the path")
    if not root.is_dir():
        raise InputError(f"The data must be a folder, got the file {root}; unpack it first and give the folder")
    return root


def _folders(parent: Path, root: Path, skipped: Skipped) -> Iterator[Path]:
    return (entry for entry in _entries(parent, root, skipped) if entry.is_dir())


def _images(parent: Path, root: Path, skipped: Skipped) -> Iterator[Path]:
    return (entry for entry in _entries(parent, root, skipped) if _is_image(entry))


def _is_image(entry: Path) -> bool:
    return entry.suffix.lower() in SUFFIXES and entry.is_file()


def _entries(parent: Path, root: Path, skipped: Skipped) -> Iterator[Path]:
    """The visible entries that can be used, in sorted order; ``skipped`` gets each of the others."""
    try:
        entries = sorted(parent.iterdir(), key=lambda path: path.name)
    except OSError as error:
        skipped(parent, f"the folder cannot be read: {reason_of(error)}")
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if reason := _unusable(entry, root):
            skipped(entry, reason)
        else:
            yield entry


def _unusable(entry: Path, root: Path) -> str:
    """Why an entry cannot be in a table, or nothing."""
    if not is_safe(entry.name):
        text = max(entry.name) < "\ud800" or max(entry.name) > "\udfff"
        wrong = "has a control character, a backslash or a drive" if text else "is not text in UTF-8"
        return f"its name {wrong}; rename it"
    try:
        if entry.is_symlink() and not entry.resolve(strict=True).is_relative_to(root.resolve()):
            return "it is a link that leaves the data folder; copy the file instead"
        mode = entry.stat().st_mode
        if stat.S_ISDIR(mode) and not os.access(entry, os.R_OK | os.X_OK):
            return "the folder cannot be read: Permission denied"
    except FileNotFoundError:
        return "it is a link to nothing; remove it"
    except (OSError, RuntimeError) as error:  # links that form a loop, no permission
        loop = isinstance(error, RuntimeError) or "levels of symbolic links" in str(error)
        return "it is a link in a loop; remove it" if loop else f"it cannot be read: {reason_of(error)}"
    return ""


def _left_out(entry: Path, reason: str) -> None:
    """``oddities`` lists it."""


def _refused(entry: Path, reason: str) -> None:
    raise InputError(f"Every entry of a client's folder must be usable, but {str(entry)!a} is not: {reason}")


def _name(entry: Path, root: Path) -> str:
    """The path below the data folder as text that can be printed and written down."""
    name = entry.relative_to(root).as_posix() if entry != root else "."
    return name.encode("utf-8", "backslashreplace").decode()


def _where_else(root: Path, client: bool = False) -> str:
    """Look where the images of a folder without any at the right level might be."""

    def below(parent: Path, depth: int) -> Path | None:
        """The first folder that holds an image ``depth`` levels down."""
        if depth == 0:
            return parent if next(_images(parent, root, _left_out), None) else None
        found = (below(folder, depth - 1) for folder in _folders(parent, root, _left_out))
        return next((folder for folder in found if folder is not None), None)

    if below(root, 0):
        return f"these look like images without folders, put them into {'<class>' if client else '<domain>/<class>'}/"
    if client and (found := below(root, 2)):
        return f"these look like <domain>/<class>/<image>, give one domain, such as {found.parent}"
    if not client and (found := below(root, 3)):
        return f"these look like images one folder deeper, give {found.parents[1]}"
    if not client and below(root, 1):
        return "these look like root/<class>/<image>, put them one folder deeper, as <domain>/<class>/<image>"
    return "check the path"


def find_images(paths: Sequence[Path], classes: Sequence[str] | None = None) -> list[Path]:
    """List image files, those in folders too.

    Args:
        paths: Files and folders.
        classes: If given, every image's folder must be one of these.

    Returns:
        The files; those of a folder in the order of their names.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
            if not inside:
                raise InputError(f"The folder {path} must hold images, but it has none.")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise InputError(f"The image {path} must exist, but it does not.")
    for path in found if classes is not None else ():
        if (name := path.absolute().parent.name) not in (classes or ()):
            raise InputError(
                f"With --labelled an image's folder must be a class of the model, but '{name}' of {path} is not"
                f"{did_you_mean(name, list(classes or ()), cutoff=0.6)}; rename it."
            )
    return found
