"""A new client at its own machine: published bases and a folder of its images in, one ordinary model out; offline.

The images are decoded in memory and leave no trace on the disk. When there are enough of them, some are held out, so
that the accuracy before and after is measured on images the model was not fitted to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Context, Method, Task
from fedbasis.methods.fedbasis import coefficients
from fedbasis.networks.train import Examples, Recipe, predict
from fedbasis.serving import artifact
from fedbasis.serving.personalize import Fitted, personalize
from fedbasis.tensors.params import State, Tensors, require_finite
from fedbasis.tensors.seeding import numpy_generator
from pflbed import InputError, scan_client
from pflbed.cache import read_images
from pflbed.errors import did_you_mean
from pflbed.folders import SUFFIXES
from pflbed.images import UNREADABLE, read_image

ENOUGH = 20  # images below which none are held out
HELD_OUT = 0.2
LEARNED = "learned"
"""The group of a personal model's artifact that holds what its method predicts with besides one network."""


@dataclass(frozen=True)
class Served:
    """What a client's personalization gave."""

    card: artifact.Card
    fitted: Fitted
    how: str
    images: int
    held_out: int
    bad: list[tuple[str, str]]
    before: float
    after: float
    alpha: dict[str, list[float]]
    losses: list[float]


def bases_at(path: Path) -> Path:
    """Accept a run folder in place of the bases it published."""
    return path / "bases" if (path / "bases").is_dir() else path


def method_of(card: artifact.Card) -> Method:
    """Build the method that published an artifact."""
    if card.method not in METHODS:
        raise InputError(
            f"The bases were made by '{card.method}', but this version knows {', '.join(METHODS)}; upgrade it."
        )
    kind = METHODS[card.method]
    try:
        config = kind.Config(**card.settings)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"The card's settings must fit the method '{card.method}', but {key}: {first['msg']}."
        ) from error
    return kind(config, Task(card.network, Recipe(card.pixels), rounds=max(2, int(card.provenance.get("rounds", 2)))))


def read_folder(folder: Path, card: artifact.Card) -> tuple[Examples, list[tuple[str, str]]]:
    """Read a client's ``<class>/<image>`` folder; its classes must be among those the bases know."""
    table = scan_client(folder)
    unknown = [name for name in table.class_names if name not in card.classes]
    if unknown:
        hint = did_you_mean(unknown[0], card.classes, cutoff=0.6)
        raise InputError(
            f"Every class folder in {folder} must be a class of the bases, but '{unknown[0]}' is not{hint}; rename it."
        )
    decoded = read_images(folder, table, card.pixels.resolution)
    known = np.array([card.classes.index(name) for name in decoded.table.class_names])
    return Examples(torch.from_numpy(decoded.images), torch.from_numpy(known[decoded.table.labels])), decoded.bad


def hold_out(labels: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Mark about a fifth of the rows, class by class, leaving at least one of every class; none if there are few."""
    held = np.zeros(len(labels), dtype=bool)
    if len(labels) < ENOUGH:
        return held
    generator = numpy_generator(seed, "hold out")
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        held[rows[: min(len(rows) - 1, round(HELD_OUT * len(rows)))]] = True
    return held


def serve_folder(
    bases: Path,
    folder: Path,
    how: str | None,
    plan: Adaptation,
    seed: int,
    keep: Literal["last", "best"] = "last",
    trust: bool = False,
) -> Served:
    """Fit a model to a client's folder."""
    card, server = artifact.load(bases_at(bases), "bases", trust)
    data, bad = read_folder(folder, card)
    return serve(card, server, data, how, plan, seed, keep, bad, str(bases), str(folder))


def serve(
    card: artifact.Card,
    server: State,
    data: Examples,
    how: str | None,
    plan: Adaptation,
    seed: int,
    keep: Literal["last", "best"] = "last",
    bad: Sequence[tuple[str, str]] = (),
    bases: str = "the bases",
    folder: str = "the client's data",
) -> Served:
    """Fit a model to a client's images; ``bases`` and ``folder`` are what errors call these."""
    method = method_of(card)
    found = sum(group.startswith("basis_") for group in server)
    if found and (said := getattr(method.config, "bases", found)) != found:
        raise InputError(
            f"The card of {bases} must fit its tensors, but it tells of {said} bases and there are {found}; "
            "get the whole folder again."
        )
    how = how or method.ways[-1]
    classes = len(np.unique(data.labels.numpy()))
    if classes < 2:
        raise InputError(
            f"A client needs images of at least 2 classes, but {folder} holds {classes}; add another class."
        )
    held = torch.from_numpy(hold_out(data.labels.numpy(), seed))
    if keep == "best" and not held.any():
        raise InputError(
            f"Choosing the best epoch needs images to hold out, {ENOUGH} in all, but {folder} has {len(data)}; "
            "keep the last epoch instead."
        )
    fit = Examples(data.pixels[~held], data.labels[~held])
    judge = Examples(data.pixels[held], data.labels[held]) if held.any() else fit
    context = Context(seed, "new client", card.network.workspace())

    def accuracy(now: Context, learned: Tensors) -> float:
        guesses = method.probabilities(now.model, learned, judge.pixels).argmax(1)
        return float((guesses == judge.labels).double().mean())

    try:
        model = method.model(server)
    except KeyError as error:
        raise InputError(
            f"Bases of '{method.name}' must hold {error}, but those at {bases} do not; get them again."
        ) from error
    context.model.load(model)
    guesses = predict(context.model.module, judge.pixels, card.pixels).argmax(1)
    before = float((guesses == judge.labels).double().mean())
    outcome = personalize(method, server, how, fit, context, plan, accuracy)
    fitted = outcome.best if keep == "best" else outcome.last
    try:
        require_finite({"": fitted.tensors}, "The model")
    except InputError as error:
        raise InputError(
            f"The personal model must hold finite numbers, but {how} diverged; lower the learning rate."
        ) from error
    after = outcome.validation[fitted.epoch - 1]
    alpha = _alpha(method, fitted)
    return Served(card, fitted, how, len(fit), int(held.sum()), list(bad), before, after, alpha, outcome.losses)


def _alpha(method: Method, fitted: Fitted) -> dict[str, list[float]]:
    if "psi" not in fitted.learned:
        return {}
    rows: list[list[float]] = coefficients.alpha(fitted.learned["psi"]).tolist()
    return dict(zip(method.task.layout.blocks, rows, strict=True))


def write_model(served: Served, out: Path, replace: bool = False) -> None:
    """Write the personal model as one ordinary artifact: no trace of bases is needed to use it."""
    provenance: dict[str, Any] = {
        "bases": served.card.sha256,
        "personalized_by": served.how,
        "epochs": served.fitted.epoch,
        "images": served.images,
        "held_out": served.held_out,
    }
    learned = {"alpha": served.alpha} if served.alpha else {}
    alone = METHODS[served.card.method].one_network or served.how not in METHODS[served.card.method].personalizers
    settings = {} if alone else served.card.settings
    update = {"kind": "model", "provenance": provenance, "learned": learned, "settings": settings}
    card = served.card.model_copy(update=update)
    state: State = {"": artifact.whole_model(served.card.network, served.fitted.tensors)}
    artifact.save(out, state if alone else {**state, LEARNED: served.fitted.learned}, card, replace=replace)


def predict_images(model: Path, pixels: Tensor, trust: bool = False) -> tuple[artifact.Card, Tensor]:
    """Return a personal model's card and its class probabilities for images."""
    card, state = artifact.load(model, "model", trust)
    if LEARNED not in state:
        return card, predict(artifact.load_module(model, trust)[1], pixels, card.pixels)
    method, workspace = method_of(card), card.network.workspace()
    workspace.load({name: state[""][name] for name in method.task.layout.shapes})
    return card, method.probabilities(workspace, state[LEARNED], pixels)


def read_loose(
    model: Path, images: Sequence[Path], labelled: bool
) -> tuple[artifact.Card, NDArray[np.uint8], list[Path], list[tuple[str, str]]]:
    """Decode image files (folders are searched) for a model; with ``labelled``, their folders must be its classes."""
    card = artifact.read_card(model)
    found: list[Path] = []
    for path in images:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
            if not inside:
                raise InputError(f"The folder {path} must hold images, but it has none.")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise InputError(f"The image {path} must exist, but it does not.")
    if labelled:
        for path in found:
            if (name := path.absolute().parent.name) not in card.classes:
                raise InputError(
                    f"With --labelled an image's folder must be a class of the model, but '{name}' of {path} is "
                    f"not{did_you_mean(name, card.classes, cutoff=0.6)}; rename it."
                )
    pixels, good, bad = [], [], []
    for path in found:
        try:
            pixels.append(read_image(path, card.pixels.resolution))
            good.append(path)
        except UNREADABLE as error:
            bad.append((str(path), f"{type(error).__name__}: {error}"))
    if not good:
        raise InputError(f"At least one image must be readable, but none of {len(bad)} is: {bad[0][0]} ({bad[0][1]}).")
    return card, np.stack(pixels), good, bad
