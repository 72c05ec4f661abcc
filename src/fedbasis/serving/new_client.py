"""A new client on its own machine: published bases and its images in, one ordinary model out; offline.

The images are decoded in memory and leave no copy on the disk. When there are enough of them, some are held out, so
that the accuracy before and after is measured on images the model was not trained on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from fedbasis.methods import find_method
from fedbasis.methods.base import Adaptation, Context, Method, Task, ValueTable
from fedbasis.methods.fedavg import FedAvg
from fedbasis.methods.problems import problem_lines
from fedbasis.networks.batches import Recipe
from fedbasis.networks.hold_out import hold_out
from fedbasis.networks.inputs import Examples
from fedbasis.networks.models import NetworkSource
from fedbasis.networks.train import predict
from fedbasis.serving import artifact
from fedbasis.serving.automatic import AUTO, Choice
from fedbasis.serving.memory import require_memory
from fedbasis.serving.personalize import Fitted, personalize
from fedbasis.serving.tables import as_record
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors, require_finite
from fedbasis.tensors.seeding import numpy_generator
from pflbed import InputError, scan_client
from pflbed.cache import read_images
from pflbed.errors import InputListError, did_you_mean
from pflbed.images import UNREADABLE, Resolution, read_image, reason

ENOUGH = 20
"""Below this number of images none are held out."""
HELD_OUT = 0.2
LEARNED = "learned"
"""The group of a personal model's artifact that holds what its method predicts with besides one network."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """The result of one client's personalization."""

    card: artifact.Card
    method: Method
    fitted: Fitted
    way: str
    images: int
    held_out: int
    before: float
    after: float
    tables: Mapping[str, ValueTable]
    """What the client learned besides its model, for a reader."""
    losses: Sequence[float]
    choice: Choice | None = None
    """What ``auto`` tried and chose; before and after are then over all images, each held out once."""
    label_counts: Sequence[int]
    """How many images of every class the client has; personalized accuracy weights test images by them."""
    bad: Sequence[tuple[str, str]] = field(default=())
    """Images that could not be read, with the reason."""


def bases_at(path: Path) -> Path:
    """Accept a run folder in place of the bases it published."""
    return path / "bases" if (path / "bases").is_dir() else path


def method_of(card: artifact.Card, network: NetworkSource | None = None) -> Method:
    """Build the method that published an artifact; code that the card names must be trusted before."""
    kind = find_method(card.method)
    try:
        config = kind.Config(**card.settings)
    except ValidationError as error:
        where = f"The settings of '{card.method}' in the card"
        raise InputListError(where, problem_lines(error, ("settings",), kind.Config)) from error
    rounds = max(2, int(card.provenance.get("rounds", 2)))
    return kind.build(config, Task(artifact.network_of(card, network), Recipe(preprocessing=card.pixels), rounds))


def require_fit(method: Method, server: State, bases: str) -> None:
    """Raise an ``InputError`` unless published tensors fit the settings of their card; ``bases`` is their name."""
    try:
        method.serving.check(server)
    except (KeyError, IndexError, RuntimeError) as error:
        raise InputError(
            f"Bases of {method.about.title} must hold {error}, but {bases} do not; get them again."
        ) from error
    except InputError as error:
        raise InputError(f"The card of {bases} must fit its tensors: {error} Get the whole folder again.") from error


def read_folder(folder: Path, card: artifact.Card, batch: int = 1) -> tuple[Examples, list[tuple[str, str]]]:
    """Read a client's ``<class>/<image>`` folder; its classes must be among those of the bases.

    Args:
        folder: The folder.
        card: The card of the bases.
        batch: Images of a training step, to know before how much memory it takes.

    Returns:
        The examples, and the images that cannot be read, with the reason.
    """
    table = scan_client(folder)
    unknown = [name for name in table.class_names if name not in card.classes]
    if unknown:
        raise InputError(
            f"Every class folder in {folder} must be a class of the bases, but '{unknown[0]}' is not"
            f"{did_you_mean(unknown[0], card.classes, cutoff=0.6)}; rename it."
        )
    require_memory(card.network, len(table), batch)
    decoded = read_images(folder, table, card.pixels.resolution, card.architecture.channels)
    known = np.array([card.classes.index(name) for name in decoded.table.class_names])
    return Examples(torch.from_numpy(decoded.images), torch.from_numpy(known[decoded.table.labels])), decoded.bad


def held_out(labels: Tensor, seed: int) -> Tensor:
    """Mark about a fifth of every class, leaving at least one image of each; none if there are few images."""
    if len(labels) < ENOUGH:
        return torch.zeros(len(labels), dtype=torch.bool)
    generator = numpy_generator(seed, "hold out")
    return hold_out(
        labels,
        lambda rows: min(rows - 1, round(HELD_OUT * rows)),
        lambda rows: torch.from_numpy(generator.permutation(rows)),
    )


def serve_folder(
    bases: Path,
    folder: Path,
    way: str | None,
    plan: Adaptation,
    seed: int,
    *,
    keep: Literal["last", "best"] = "last",
    trust: bool = False,
    network: NetworkSource | None = None,
    device: torch.device | str = "cpu",
) -> Served:
    """Personalize a model for a client's folder."""
    card, server = artifact.load(bases_at(bases), "bases", trust, network)
    data, bad = read_folder(folder, card, plan.batch)
    method = method_of(card, network)
    names = {"bases": str(bases), "folder": str(folder)}
    return serve(method, card, server, data, way, plan, seed, keep=keep, bad=bad, device=device, **names)


def serve(
    method: Method,
    card: artifact.Card,
    server: State,
    data: Examples,
    way: str | None,
    plan: Adaptation,
    seed: int,
    *,
    keep: Literal["last", "best"] = "last",
    bad: Sequence[tuple[str, str]] = (),
    bases: str = "the bases",
    folder: str = "the client's data",
    device: torch.device | str = "cpu",
) -> Served:
    """Personalize a model for a client's images; ``bases`` and ``folder`` are what errors call these."""
    require_fit(method, server, bases)
    way = way or method.ways.default[-1]
    classes = len(set(data.labels.tolist()))
    if classes < 2:
        raise InputError(
            f"A client needs images of at least 2 classes, but {folder} holds {classes}; add another class."
        )
    held = held_out(data.labels, seed)
    if way == AUTO:
        if keep == "best":
            raise InputError(
                f"'{AUTO}' compares ways after the last epoch, so it cannot keep the best one; leave it out."
            )
        held = torch.zeros_like(held)  # cross-validation holds out every image once, and the model is fitted to all
    if keep == "best" and not held.any():
        raise InputError(
            f"Choosing the best epoch needs images to hold out, {ENOUGH} in all, but {folder} has {len(data)}; "
            "keep the last epoch instead."
        )
    train = Examples(data.pixels[~held], data.labels[~held])
    test = Examples(data.pixels[held], data.labels[held]) if held.any() else train
    train = train.to(device)
    context = Context(seed, "new client", method.task.network.workspace(device))

    def accuracy(now: Context, learned: Tensors) -> float:
        guesses = method.serving.probabilities(now.model, learned, test.pixels).argmax(1)
        return float((guesses == test.labels).double().mean())

    context.model.load(method.model(server))
    guesses = predict(context.model.module, test.pixels, card.pixels).argmax(1)
    before = float((guesses == test.labels).double().mean())
    with context.random_layers():
        result = personalize(method, server, way, train, context, plan, accuracy)
    fitted, choice = result.best if keep == "best" else result.last, result.choice
    judged = choice if choice is not None and choice.judged else None
    after = max(result.validation) if keep == "best" else result.validation[-1]
    try:
        require_finite({"": fitted.tensors}, "The model")
    except InputError as error:
        raise InputError(
            f"The personal model must hold finite numbers, but {way} diverged; lower the learning rate."
        ) from error
    return Served(
        card=card,
        method=method,
        fitted=fitted,
        way=way if choice is None else choice.way,
        images=len(train),
        held_out=int(held.sum()) if judged is None else len(data),
        before=before if judged is None else judged.before,
        after=after if judged is None else judged.after,
        choice=choice,
        tables=method.insight.learned(fitted.learned),
        losses=result.losses,
        label_counts=torch.bincount(data.labels, minlength=len(card.classes)).tolist(),
        bad=list(bad),
    )


def write_model(served: Served, out: Path, overwrite: bool = False) -> None:
    """Write the personal model as one ordinary artifact, which needs nothing of the bases."""
    card, state = model_of(served)
    artifact.save(out, state, card, overwrite=overwrite)


def model_of(served: Served) -> tuple[artifact.Card, State]:
    """Return the personal model as it is published: a card, one ordinary state dict, and what else is needed."""
    provenance: dict[str, Any] = {
        "bases": served.card.sha256,
        "personalized_by": served.way,
        "epochs": served.fitted.epoch,
        "images": served.images,
        "held_out": served.held_out,
        "before": served.before,
        "after": served.after,
        "label_counts": list(served.label_counts),
    }
    if served.choice is not None:
        provenance["tried"] = {one.way: one.accuracy for one in served.choice.judged}
    alone = served.method.ways.one_network or not served.fitted.learned
    update = {
        "kind": "model",
        "provenance": provenance,
        "learned": {name: as_record(table) for name, table in served.tables.items()},
        "settings": {} if alone else served.card.settings,
    }
    card = served.card.model_copy(update=update)
    state: State = {"": artifact.whole_model(served.method.task.network, served.fitted.tensors)}
    return card, state if alone else {**state, LEARNED: served.fitted.learned}


@dataclass(frozen=True)
class Predictor:
    """A personal model that is ready to predict."""

    card: artifact.Card
    method: Method
    model: FlatModel
    learned: Tensors

    @classmethod
    def load(
        cls, folder: Path, trust: bool = False, network: NetworkSource | None = None, device: str = "cpu"
    ) -> "Predictor":
        """Load a personal model, and check what its method predicts with besides one network."""
        card, state = artifact.load(folder, "model", trust, network)
        alone = LEARNED not in state
        method = method_of(
            card.model_copy(update={"method": FedAvg.about.name, "settings": {}}) if alone else card, network
        )
        learned = state.get(LEARNED, {})
        if not alone:
            method.serving.check_learned(learned)
        workspace = method.task.network.workspace(device)
        workspace.load({name: state[""][name] for name in method.task.layout.shapes})
        return cls(card, method, workspace, learned)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return the class probabilities of uint8 images [N, H, W, C], on the CPU."""
        return self.method.serving.probabilities(self.model, self.learned, pixels)


@dataclass(frozen=True)
class ImageBatch:
    """Some decoded images, and those that could not be read, with the reason."""

    paths: list[Path]
    pixels: NDArray[np.uint8]
    bad: list[tuple[str, str]]


def read_batches(card: artifact.Card, paths: Sequence[Path], batch: int) -> Iterator[ImageBatch]:
    """Decode images a few at a time, for a model; images that cannot be read are listed."""
    for start in range(0, len(paths), batch):
        pixels, good, bad = [], [], []
        for path in paths[start : start + batch]:
            try:
                pixels.append(read_image(path, card.pixels.resolution, card.architecture.channels))
                good.append(path)
            except (*UNREADABLE, InputError) as error:
                bad.append((str(path), reason(error, path.parent)))
        shape = (0, *_sides(card.pixels.resolution), card.architecture.channels)
        yield ImageBatch(good, np.stack(pixels) if pixels else np.empty(shape, dtype=np.uint8), bad)


def _sides(resolution: Resolution) -> tuple[int, int]:
    return (resolution, resolution) if isinstance(resolution, int) else (resolution[0], resolution[1])
