"""Read a bundle: published bases with the graphs of a new client. Everything is checked before a runtime opens it.

All files are read once, and the runtime gets these bytes, so that a file that changes later is never used.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbasis_edge import coded, tensors
from fedbasis_edge.checks import (
    require_name,
    require_number,
    require_numbers,
    require_one_of,
    require_pair,
    require_shape,
    require_some,
    require_whole,
)
from fedbasis_edge.graphs import check_graph
from pflbed.errors import InputError
from pflbed.foreign import parse_json, read_bytes

FORMAT = 1
ABOUT, CARD, TENSORS = "edge.json", "card.json", "tensors.safetensors"
STEP, APPLY, MEASURE, SKELETON = "step.onnx", "apply.onnx", "statistics.onnx", "skeleton.onnx"
COMBINE = "combine.onnx"
"""For clients that do not combine the bases themselves; it is not used here."""
NEEDED = (CARD, TENSORS, STEP, APPLY, SKELETON)
MAX_ABOUT, MAX_GRAPH, MAX_TENSORS = 8 * 2**20, 32 * 2**20, 2 * 2**30
MAX_CLASSES = 100_000
STATISTICS = ("own", "frozen", "shrunk")


@dataclass(frozen=True)
class Entry:
    """A tensor of the network: a parameter (``trained``) or a statistic."""

    name: str
    shape: tuple[int, ...]
    block: int
    trained: bool

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A checked bundle.

    Args:
        folder: Where it was read from.
        digest: The sha256 of ``edge.json``, which has those of all other files.
        classes: Names of the classes.
        resolution: Height and width of the images.
        channels: 3 for RGB, 1 for gray.
        mean: What is subtracted from the channels, which are scaled to one before.
        std: What they are divided by.
        groups: The groups of the tensors that are combined.
        major: Whether the first of them has a fixed coefficient of one half.
        statistics: "own", "frozen" or "shrunk".
        prior_images: The weight of the bases' statistics, in images; of "shrunk" alone.
        blocks: Names of the blocks.
        classifier: The number of the classifier's block.
        entries: The tensors of the network.
        constants: Integer tensors that a model has besides.
        state: The shapes of what a client learns.
        epochs: Passes over the images.
        batch: Images of a step.
        rates: Of the coefficients, of the classifier, and the weight decay.
        memory: Bytes that a step needs.
        card: The card of the bases.
        bases: Their tensors.
        files: The files, which the runtime is given.
    """

    folder: Path
    digest: str
    classes: tuple[str, ...]
    resolution: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    groups: tuple[str, ...]
    major: bool
    statistics: str
    prior_images: float
    blocks: tuple[str, ...]
    classifier: int
    entries: tuple[Entry, ...]
    constants: Mapping[str, NDArray[np.int64]]
    state: Mapping[str, tuple[int, ...]]
    epochs: int
    batch: int
    rates: tuple[float, float, float]
    memory: int
    card: Mapping[str, Any]
    bases: Mapping[str, NDArray[Any]] = field(repr=False)
    files: Mapping[str, bytes] = field(repr=False)

    def of_block(self, block: int, trained: bool) -> list[Entry]:
        """Return a block's parameters or statistics in the order of its flat vector."""
        return [entry for entry in self.entries if entry.block == block and entry.trained == trained]

    @property
    def has_statistics(self) -> bool:
        """Whether the network has normalization statistics."""
        return any(not entry.trained for entry in self.entries)

    def size(self, block: int, trained: bool) -> int:
        """Return how many numbers a block's flat vector has."""
        return sum(entry.size for entry in self.of_block(block, trained))


def open_bundle(folder: Path) -> Bundle:
    """Read and check a bundle.

    Args:
        folder: What ``fedbasis export BASES --to edge`` completed; a run folder that holds ``bases`` is fine too.

    Returns:
        The bundle.
    """
    folder = folder / "bases" if (folder / "bases").is_dir() else folder
    if not (folder / ABOUT).exists():
        raise InputError(
            f"A bundle is a folder with {ABOUT}, but {folder} has none; make it with 'fedbasis export BASES --to edge'."
        )
    where = str(folder / ABOUT)
    text = read_bytes(folder / ABOUT, "The file", MAX_ABOUT)
    about = parse_json(text, f"The file {where}")
    if not isinstance(about, dict):
        raise InputError(f"The file {where} must be a JSON object, but it is {type(about).__name__}.")
    if type(about.get("format")) is int and about["format"] > FORMAT:
        raise InputError(
            f"The bundle {folder} must have format {FORMAT} for this fedbasis-edge, but it has {about['format']}; "
            "upgrade fedbasis-edge."
        )
    files = _files(folder, about)
    try:
        bundle = _parsed(folder, about, files, hashlib.sha256(text).hexdigest())
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{where} must describe exported bases, but it does not ({type(error).__name__}: {str(error)[:100]}); get "
            "the bundle again."
        ) from error
    _require_tensors(bundle)
    for name in (STEP, APPLY, COMBINE, MEASURE, SKELETON):
        if name in files:
            check_graph(files[name], f"The file {folder / name}", TENSORS, len(files[TENSORS]))
    return bundle


def _files(folder: Path, about: Mapping[str, Any]) -> dict[str, bytes]:
    """Read the files by fixed names; what ``edge.json`` says is their digests alone."""
    digests = about.get("files")
    if not isinstance(digests, dict) or not set(NEEDED) <= set(digests) <= {*NEEDED, MEASURE, COMBINE}:
        raise InputError(
            f"{folder / ABOUT} must have digests of {', '.join(NEEDED)}, but it has other files; get the bundle again."
        )
    read = {}
    for name, digest in digests.items():
        limit = MAX_TENSORS if name == TENSORS else MAX_ABOUT if name == CARD else MAX_GRAPH
        read[name] = read_bytes(folder / name, "The file", limit)
        if not isinstance(digest, str) or hashlib.sha256(read[name]).hexdigest() != digest:
            raise InputError(
                f"The file {folder / name} must have the sha256 that {ABOUT} tells, but it was cut short or changed; "
                "get the bundle again."
            )
    return read


def _parsed(folder: Path, about: Mapping[str, Any], files: Mapping[str, bytes], digest: str) -> Bundle:
    card = parse_json(files[CARD], f"The card {folder / CARD}")
    training = about["training"]
    channels = require_whole(about["channels"], 1, 256)
    entries = tuple(
        Entry(
            require_name(one["name"]),
            require_shape(one["shape"]),
            require_whole(one["block"], 0, 10_000),
            one["trained"] is True,
        )
        for one in require_some(about["entries"], 100_000)
    )
    blocks = tuple(require_name(name) for name in require_some(about["blocks"], 10_000))
    groups = tuple(require_name(name) for name in require_some(about["groups"], 1000))
    bases: Mapping[str, NDArray[Any]] = tensors.parse(files[TENSORS], f"The file {folder / TENSORS}")
    if coded.is_coded(bases):
        bases = coded.decode(bases, groups, {entry.name: entry.shape for entry in entries})
    bundle = Bundle(
        folder=folder,
        digest=digest,
        classes=_classes(about["classes"]),
        resolution=require_pair(about["resolution"]),
        channels=channels,
        mean=require_numbers(about["mean"], channels, -1e6, 1e6),
        std=require_numbers(about["std"], channels, 1e-6, 1e6),
        groups=groups,
        major=about["major"] is True,
        statistics=require_one_of(about["statistics"], STATISTICS),
        prior_images=require_number(about.get("prior_images", 0), 0, 1e9),
        blocks=blocks,
        classifier=require_whole(about["classifier"], 0, len(blocks) - 1),
        entries=entries,
        constants={require_name(key): _constant(value) for key, value in about["constants"].items()},
        state={require_name(key): require_shape(value) for key, value in about["state"].items()},
        epochs=require_whole(training["epochs"], 1, 100_000),
        batch=require_whole(training["batch"], 2, 100_000),
        rates=_rates(training["rates"]),
        memory=require_whole(about["memory"], 0, 2**50),
        card=card,
        bases=bases,
        files=files,
    )
    if not isinstance(card, dict) or card.get("kind") != "bases" or card.get("classes") != list(bundle.classes):
        raise ValueError("its card is of other bases")
    if training["augmentation"]["name"] != "none":
        raise ValueError("it needs an augmentation")
    if len(set(bundle.groups)) != len(bundle.groups) or len({entry.name for entry in entries}) != len(entries):
        raise ValueError("a name is there twice")
    if max((entry.block for entry in entries), default=0) >= len(blocks):
        raise ValueError("a tensor is in no block")
    if bundle.has_statistics and bundle.statistics != "frozen" and MEASURE not in files:
        raise ValueError(f"{MEASURE} is missing")
    _require_state(bundle)
    return bundle


def _require_state(bundle: Bundle) -> None:
    """Compare the shapes of what a client learns with the network."""
    psi = (len(bundle.blocks), len(bundle.groups) - bundle.major)
    offset = (bundle.size(bundle.classifier, True),)
    expected = {"psi": psi, "first": psi, "second": psi, "steps": (), "offset": offset, "velocity": offset}
    if bundle.has_statistics and bundle.statistics != "frozen":
        expected["statistics"] = (sum(entry.size for entry in bundle.entries if not entry.trained),)
    adam = {"second", "steps"}
    if psi[1] < 1 or dict(bundle.state) not in (expected, {k: v for k, v in expected.items() if k not in adam}):
        raise ValueError("the state does not fit the network")


def _require_tensors(bundle: Bundle) -> None:
    for group in bundle.groups:
        for entry in bundle.entries:
            found = bundle.bases.get(f"{group}/{entry.name}")
            if found is None or found.shape != entry.shape or found.dtype != np.float32:
                raise InputError(
                    f"The file {bundle.folder / TENSORS} must hold '{group}/{entry.name}' as float32 {entry.shape}, "
                    "but it does not; get the bundle again."
                )
            if not np.isfinite(found).all():
                raise InputError(
                    f"The file {bundle.folder / TENSORS} must hold finite numbers, but '{group}/{entry.name}' has "
                    "others; get the bundle again."
                )


def _classes(value: Any) -> tuple[str, ...]:
    classes = tuple(require_name(name) for name in require_some(value, MAX_CLASSES))
    if len(set(classes)) != len(classes) or len(classes) < 2:
        raise ValueError("two classes have the same name, or there is only one")
    return classes


def _rates(value: Any) -> tuple[float, float, float]:
    psi, classifier, decay = require_numbers(value, 3, 0.0, 1e6)
    return psi, classifier, decay


def _constant(value: Any) -> NDArray[np.int64]:
    shape = require_shape(value["shape"])
    if value["dtype"] != "I64" or prod(shape) > 10_000:
        raise ValueError("a constant is no small integer tensor")
    return np.array(value["value"], dtype=np.int64).reshape(shape)
