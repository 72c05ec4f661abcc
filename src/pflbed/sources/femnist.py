"""FEMNIST: letters and digits by thousands of writers, each writer a client, as LEAF's preprocess.sh writes them.

LEAF may have cut every writer's images (``-t sample``) or the writers (``-t user``) into train and test. Neither counts
here: all files are read together, and the natural partition draws each client's test images from its own.
"""

import hashlib
import string
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pflbed.errors import InputError
from pflbed.foreign import parse_json, read_bytes
from pflbed.safe_paths import check_relative, inside
from pflbed.sources.base import Source, find_folder
from pflbed.spec import Spec
from pflbed.table import Table, in_order

CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""In LEAF's numbering."""
MAX_FILE = 2 * 2**30
"""Bytes of one of LEAF's files, which hold some hundred megabytes."""
STEPS = (("train", "test"), ("rem_user_data",), ("sampled_data",), ("all_data",))
"""The folders of LEAF's steps, the last step first: as in LEAF, what was made last counts."""


class Writers(NamedTuple):
    """One of LEAF's files."""

    digest: str
    pixels: Mapping[str, NDArray[np.uint8]]
    """By writer, [N, 28, 28]; 255 is paper."""
    labels: Mapping[str, NDArray[np.int64]]


def folder(root: Path) -> Path:
    """The folder that contains LEAF's folders."""
    found = find_folder(root, ("data",), [name for step in STEPS for name in step])
    if found is None:
        raise InputError(SOURCE.missing(root, "the folders train and test, or all_data"))
    return found


def scan(root: Path) -> Table:
    """List every writer's images; this reads the files, because only they say how many there are."""
    files = _files(root)
    check_relative(list(files))
    digest = hashlib.sha256()
    paths: list[str] = []
    users: list[str] = []
    labels: list[NDArray[np.int64]] = []
    for stem, file in files.items():
        writers = _read(file, _stamp(file))
        digest.update(f"{stem}\0{writers.digest}\n".encode())
        for user, own in writers.labels.items():
            paths += [f"{stem}/{user}/{i}" for i in range(len(own))]
            users += [user] * len(own)
            labels.append(own)
    check_relative(paths)
    if not paths:
        raise InputError(SOURCE.missing(root, "at least one image"))
    names = in_order(set(users))
    number = {name: i for i, name in enumerate(names)}
    return Table(
        paths=tuple(paths),
        labels=np.concatenate(labels),
        domains=np.zeros(len(paths), dtype=np.int64),
        class_names=CLASSES,
        domain_names=("femnist",),
        digest=digest.hexdigest(),
        users=np.array([number[user] for user in users], dtype=np.int64),
        user_names=tuple(names),
    )


def open_image(root: Path, path: str) -> Image.Image:
    """Read the image that ``<file>/<writer>/<number>`` names; the file stays in memory for the next one."""
    stem, _, rest = path.partition("/")
    user, _, number = rest.rpartition("/")
    base, step = _last_step(root)
    found = [file for name in step if (file := inside(base, f"{name}/{stem}.json")).is_file()]
    pixels = _read(found[0], _stamp(found[0])).pixels.get(user) if found else None
    if pixels is None or not (number.isascii() and number.isdigit() and int(number) < len(pixels)):
        raise InputError(f"A row must name a file, a writer and an image of {root}, got {path[:200]!r}; scan it again")
    return Image.fromarray(pixels[int(number)]).convert("RGB")


def _last_step(root: Path) -> tuple[Path, tuple[str, ...]]:
    base = folder(root)
    return base, next(step for step in STEPS if any((base / name).exists() for name in step))


def _files(root: Path) -> dict[str, Path]:
    """LEAF's files by their names, in sorted order."""
    base, step = _last_step(root)
    found: dict[str, Path] = {}
    for name in step:
        files = sorted((base / name).glob("*.json"))
        if not files:
            raise InputError(SOURCE.missing(root, f"json files in {name}"))
        for file in files:
            if file.stem in found:
                raise InputError(f"LEAF's files must have different names, got {file.name} twice in {base}; rename one")
            found[file.stem] = inside(base, f"{name}/{file.name}")
    return dict(sorted(found.items()))


def _stamp(file: Path) -> tuple[int, int]:
    """What changes with the file, so that a new one is not taken for the one in memory."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=2)
def _read(file: Path, _stamp: tuple[int, int]) -> Writers:
    """Read and check a file; a writer's pixels are made small at once, as a file is some hundred megabytes of text."""
    content = read_bytes(file, "LEAF's file", MAX_FILE)
    data = parse_json(content, f"LEAF's file {file}")
    try:
        listed = list(zip(data["users"], data["num_samples"], strict=True))
        own = {user: data["user_data"][user] for user, _ in listed}
        raw = {user: (own[user]["x"], own[user]["y"]) for user in own}
    except (ValueError, KeyError, TypeError) as error:
        raise _wrong(file, "hold users, num_samples and user_data, with x and y for each user", repr(error)) from error
    if len(own) != len(listed) or not all(isinstance(user, str) and user and "/" not in user for user in own):
        raise _wrong(file, "name every user once, without a slash", "a user twice, empty or with a slash")
    for user, count in listed:
        if not (isinstance(raw[user][0], list) and isinstance(raw[user][1], list)):
            raise _wrong(file, "give x and y as lists", f"something else for user {user!r}")
        if not len(raw[user][0]) == len(raw[user][1]) == count:
            got = f"{len(raw[user][0])} x, {len(raw[user][1])} y and num_samples {count!r} for user {user!r}"
            raise _wrong(file, "have as many x and y as num_samples says", got)
    pixels = {user: _pixels(file, user, x) for user, (x, _) in raw.items()}
    labels = {user: _labels(file, user, y) for user, (_, y) in raw.items()}
    return Writers(hashlib.sha256(content).hexdigest(), pixels, labels)


def _pixels(file: Path, user: str, x: list[Any]) -> NDArray[np.uint8]:
    values = _numbers(x, "fiu")
    if values is None or values.size != 784 * len(x) or (len(x) and values.shape != (len(x), 784)):
        raise _wrong(file, "give every image as 784 numbers", f"something else for user {user!r}")
    if values.size and not (values.min() >= 0 and values.max() <= 1):  # also refuses NaN
        raise _wrong(file, "have pixels from 0 to 1", f"{values.min():g}..{values.max():g} for user {user!r}")
    pixels: NDArray[np.uint8] = np.rint(values * 255).astype(np.uint8)
    return pixels.reshape(-1, 28, 28)


def _labels(file: Path, user: str, y: list[Any]) -> NDArray[np.int64]:
    values = _numbers(y, "iu") if y else np.zeros(0, dtype=np.int64)
    if values is None or values.ndim != 1 or (len(y) and not (values.min() >= 0 and values.max() < len(CLASSES))):
        raise _wrong(file, f"have labels from 0 to {len(CLASSES) - 1}", f"something else for user {user!r}")
    return values.astype(np.int64)


def _numbers(values: list[Any], kinds: str) -> NDArray[Any] | None:
    """An array, unless the lists are ragged or hold something else than numbers."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        return None
    return array if array.dtype.kind in kinds else None


def _wrong(file: Path, must: str, got: str) -> InputError:
    return InputError(f"A json file of LEAF must {must}, got {got} in {file}; run LEAF's preprocess.sh again")


SOURCE = Source(
    name="femnist",
    title="FEMNIST",
    home="LEAF (Caldas et al. 2018) from https://github.com/TalwalkarLab/leaf, run in its folder data/femnist "
    "./preprocess.sh -s niid --sf 0.1 -k 0 -t sample",
    layout="the folder data that it makes, with train/*.json and test/*.json or all_data/*.json, into the data folder, "
    "or give that folder itself",
    scan=scan,
    open_image=open_image,
    counts={},  # how many there are is for LEAF's sampling to say
    spec=Spec(
        partition="natural",
        clients_per_domain=100,
        new_clients_per_domain=50,
        split=(80, 0, 20, 0),
        sizes={"S": 0.1, "M": 0.2, "L": 0.4},
        min_rows=1,
    ),
    folder=folder,
)
