"""Tensors on disk: safetensors plus a small json card, atomic, versioned, and checked against what is expected.

An artifact is a folder that appears whole or not at all: ``tensors.safetensors`` and ``card.json``, which says what
kind it is, for which architecture, classes and preprocessing, where it comes from, and the tensors' sha256. Nothing
is ever unpickled. Models that are alike can be coded as small differences (``tensors.compact``): the card then says
so, and ``load`` returns them decoded.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import nn

from fedbasis import __version__
from fedbasis.methods import METHODS
from fedbasis.methods.problems import problem_lines
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import MODELS, Network, NetworkSource, sides
from fedbasis.tensors.compact import AlikeModels, Bits, decode, encode, is_coded, require_coded
from fedbasis.tensors.files import Header, read_header, read_tensors, write_tensors
from fedbasis.tensors.params import State, Tensors, require_finite, require_same, shapes
from pflbed.errors import InputError, InputListError
from pflbed.files import sha256_of, write_json
from pflbed.foreign import read_json
from pflbed.table import MAX_CLASSES

FORMAT = 1
CODED_FORMAT = 2
"""The format of artifacts with coded models; versions that cannot decode them refuse it."""
TENSORS, CARD = "tensors.safetensors", "card.json"


MAX_CARD = 16 * 2**20
"""Bytes of a card."""
Text = Annotated[str, Field(max_length=1000)]
Positive = Annotated[float, Field(gt=0, le=1e6)]
Shift = Annotated[float, Field(ge=-1e6, le=1e6)]
_Side = Annotated[int, Field(gt=0, le=1024)]  # as in a configuration
Channels = Annotated[int, Field(gt=0, le=256)]


class Architecture(BaseModel):
    """Enough to build the network again."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    name: Text
    resolution: _Side | tuple[_Side, _Side]
    channels: Channels = 3
    options: dict[Text, Any] = Field(default={}, max_length=100)
    blocks: int | dict[Text, list[Text]] | None = None


class Pixels(BaseModel):
    """How an image becomes an input."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    resolution: _Side | tuple[_Side, _Side]
    mean: tuple[Shift, ...] = Field(min_length=1, max_length=256)
    std: tuple[Positive, ...] = Field(min_length=1, max_length=256)
    crop: _Side | tuple[_Side, _Side] | None = None


class Coding(BaseModel):
    """How the models of an artifact are coded."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Literal["compact"] = "compact"
    bits: Bits


class Card(BaseModel):
    """What an artifact says about itself."""

    model_config = ConfigDict(extra="forbid")
    format: int = FORMAT
    kind: Literal["bases", "model"]
    version: Text = __version__
    method: Text
    settings: dict[Text, Any] = {}
    architecture: Architecture
    classes: list[Text] = Field(min_length=1, max_length=MAX_CLASSES)
    preprocessing: Pixels
    provenance: dict[Text, Any] = {}
    learned: dict[Text, Any] = {}
    coding: Coding | None = None
    sha256: Text = ""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.coding is not None) != (self.format == CODED_FORMAT) or (self.coding and self.kind != "bases"):
            raise ValueError(f"coding must be there in format {CODED_FORMAT}, which is of bases, and in no other")
        pixels = self.preprocessing
        if (pixels.resolution if pixels.crop is None else pixels.crop) != self.architecture.resolution:
            raise ValueError("the resolutions of architecture and preprocessing differ")
        if any(
            part > whole
            for part, whole in zip(sides(self.architecture.resolution), sides(pixels.resolution), strict=True)
        ):
            raise ValueError("the crop of preprocessing is larger than its images")
        if not len(self.preprocessing.mean) == len(self.preprocessing.std) == self.architecture.channels:
            raise ValueError("preprocessing must have a mean and a deviation for every channel")
        rounds = self.provenance.get("rounds", 1)
        if not isinstance(rounds, int) or not 0 < rounds <= 10**9:
            raise ValueError("provenance.rounds is not a number of rounds")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("two classes have the same name")
        return self

    def as_coded(self, coding: Coding | None) -> Self:
        """Return the card of the same tensors, coded in another way or (None) not at all."""
        return self.model_copy(update={"coding": coding, "format": FORMAT if coding is None else CODED_FORMAT})

    def as_json(self) -> dict[str, Any]:
        """Return what is written; an artifact that is not coded does not mention it."""
        return self.model_dump(mode="json", exclude={"coding"} if self.coding is None else None)

    @property
    def network(self) -> Network:
        """The network this artifact holds."""
        a = self.architecture
        return Network(a.name, len(self.classes), a.resolution, a.options, a.blocks, a.channels)

    @property
    def pixels(self) -> Preprocessing:
        """The preprocessing as a function."""
        p = self.preprocessing
        return Preprocessing(p.resolution, p.mean, p.std, p.crop)


def describe(network: Network) -> Architecture:
    """Describe a network for a card."""
    blocks = network.blocks
    plain = {block: list(under) for block, under in blocks.items()} if isinstance(blocks, Mapping) else blocks
    return Architecture(
        name=network.name,
        resolution=network.resolution,
        channels=network.channels,
        options=dict(network.options),
        blocks=plain,
    )


def describe_pixels(preprocessing: Preprocessing) -> Pixels:
    """Describe the preprocessing for a card."""
    return Pixels(**asdict(preprocessing))


def code(state: State, alike: AlikeModels | None, card: Card, bits: Bits) -> tuple[State, Card]:
    """Return an artifact's state and card with its models coded, for ``save``.

    Args:
        state: The published tensors.
        alike: Which of them are models that are alike; None: the method has none, which is an error.
        card: The card.
        bits: Bits of a difference.
    """
    if alike is None:
        raise InputError(
            f"Coding needs several models that are alike, but what '{card.method}' published has none; leave --compact "
            "out."
        )
    return encode(state, alike, bits), card.as_coded(Coding(bits=bits))


def save(folder: Path, state: State, card: Card, overwrite: bool = False) -> None:
    """Write an artifact under a temporary name and rename it: no half-written folder is ever seen."""
    if folder.exists() and not overwrite:
        raise InputError(f"The output {folder} must not exist yet, but it does; choose another name or remove it.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp"))
    aside = temporary.with_suffix(".old.tmp")
    try:
        write_tensors(temporary / TENSORS, state)
        filled = card.model_copy(update={"sha256": sha256_of(temporary / TENSORS)})
        write_json(temporary / CARD, filled.as_json())
        temporary.chmod(0o755)
        if folder.exists():
            os.rename(folder, aside)  # noqa: PTH104
        try:
            os.rename(temporary, folder)  # noqa: PTH104
        except OSError:
            if aside.exists():
                os.rename(aside, folder)  # noqa: PTH104
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def read_card(folder: Path) -> Card:
    """Read and check an artifact's card."""
    if not folder.is_dir():
        raise InputError(f"An artifact is a folder with {CARD} and {TENSORS}, but there is no folder {folder}.")
    if not (folder / CARD).exists():
        raise InputError(f"An artifact is a folder with {CARD} and {TENSORS}, but {folder} has no {CARD}.")
    raw = read_json(folder / CARD, "The card", MAX_CARD)
    if isinstance(raw, dict) and isinstance(raw.get("format"), int) and raw["format"] > CODED_FORMAT:
        raise InputError(
            f"The artifact {folder} must have format {CODED_FORMAT} or less for fedbasis {__version__}, but it has "
            f"{raw['format']}; upgrade fedbasis."
        )
    try:
        return Card.model_validate(raw)
    except ValidationError as error:
        raise InputListError(str(folder / CARD), problem_lines(error, (), Card)) from error


def require_trust(card: Card, where: Path | str, trust: bool, network: NetworkSource | None = None) -> None:
    """Refuse to run code that an artifact names, unless the caller trusts it or gives the code itself."""
    named = [] if card.architecture.name in MODELS or network is not None else [f"network '{card.architecture.name}'"]
    named += [] if card.method in METHODS else [f"method '{card.method}'"]
    if named and not trust:
        raise InputError(
            f"{where} was made with the {' and the '.join(named)}, whose code would be run; if you trust where it "
            "comes from, say so with --trust (in Python: trust=True)."
        )


def load(
    folder: Path, kind: Literal["bases", "model"], trust: bool = False, network: NetworkSource | None = None
) -> tuple[Card, State]:
    """Read an artifact and check everything: kind, digest, names, shapes, finite numbers.

    Coded models are decoded, and the returned card is that of the decoded tensors: it has no coding. ``network`` is
    used in place of the one that the card names.
    """
    card = read_card(folder)
    require_trust(card, folder, trust, network)
    if card.kind != kind:
        hint = "run 'fedbasis personalize' on it first" if kind == "model" else "give the bases it was made from"
        wanted, got = ("bases", "a personal model") if kind == "bases" else ("a personal model", "bases")
        raise InputError(f"The folder {folder} must hold {wanted}, but it holds {got}; {hint}.")
    path = folder / TENSORS
    if not path.exists():
        raise InputError(f"The artifact {folder} must hold {TENSORS}, but it is missing; get the whole folder again.")
    header, _ = read_header(path)
    require_header(card, header, path, kind, network)
    if sha256_of(path) != card.sha256:
        raise InputError(
            f"The file {path} must be the one its card describes (by its sha256), but it was cut short or changed; "
            "get the whole folder again."
        )
    state, _ = read_tensors(path)
    require_finite(state, f"The file {path}")
    if card.coding is None:
        return card, state
    architecture = network_of(card, network)
    expected = architecture.layout(architecture.skeleton()).shapes
    return card.as_coded(None), decode(state, expected, f"The file {path}")


def require_header(
    card: Card, header: Header, path: Path, kind: Literal["bases", "model"], network: NetworkSource | None = None
) -> None:
    """Compare a file's header with the network of its card, before any memory is taken for either."""
    architecture = network_of(card, network)
    module = architecture.skeleton()
    expected = shapes(module.state_dict()) if kind == "model" else architecture.layout(module).shapes
    if ("" in header) != (kind == "model") or not header:
        found = sorted(header) or "nothing"
        raise InputError(f"The file {path} must hold the tensors of {kind}, but it holds {found}.")
    if is_coded(header) != (card.coding is not None):
        raise InputError(f"The file {path} must hold coded models exactly if its card says so; get the folder again.")
    if card.coding is not None:
        require_coded(header, expected, f"The file {path} (for '{card.architecture.name}')")
        header = {group: tensors for group, tensors in header.items() if not is_coded({group: tensors})}
    for group, tensors in header.items():
        if group and expected.keys().isdisjoint(tensors):
            continue  # what a method has besides models, such as a hypernetwork: ``Serving.check`` compares it
        where = f"The file {path} (for '{card.architecture.name}')" + (f", group '{group}'," if group else "")
        require_same(tensors, expected, where)


def whole_model(network: Network, tensors: Tensors) -> Tensors:
    """Add the architecture's integer constants to a model, so that ``load_state_dict`` takes it as it is."""
    return {name: tensors.get(name, buffer).detach() for name, buffer in network.build().state_dict().items()}


def network_of(card: Card, network: NetworkSource | None = None) -> Network:
    """Return the network of a card, or the given one with the card's shapes."""
    if network is None:
        return card.network
    if isinstance(network, str):
        return replace(card.network, name=network)
    return replace(card.network, source=network)


def load_module(folder: Path, trust: bool = False, network: NetworkSource | None = None) -> tuple[Card, nn.Module]:
    """Load a personal model as an ordinary module in evaluation mode."""
    card, state = load(folder, "model", trust, network)
    module = network_of(card, network).build()
    module.load_state_dict(state[""])
    return card, module.eval()
