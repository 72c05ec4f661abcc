"""Personalize on a client's own images: the loop around the training step that the bundle holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbasis_edge.bundle import APPLY, MEASURE, STEP, TENSORS, Bundle
from fedbasis_edge.probe import probe
from fedbasis_edge.randomness import TorchGenerator, batches
from fedbasis_edge.runtime import Graph
from pflbed.cache import read_images
from pflbed.errors import InputError, did_you_mean
from pflbed.folders import scan_client
from pflbed.seeding import generator, seed_for

ENOUGH, HELD_OUT = 20, 0.2
"""From this number of images on, a fifth is held out; as in ``fedbasis personalize``."""
PASS = 256
"""Images of a pass that measures statistics."""
WAY, UNPERSONALIZED = "coefficients+classifier", "none"

Progress = Callable[[int, int, float], None]
"""Called after every epoch with its number, how many there are, and the mean loss."""
Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Personal:
    """A personalized model.

    Args:
        bundle: What it was made from.
        tensors: The weights of one ordinary network, by name.
        alpha: The coefficients of the bases, one row per block.
        way: "coefficients+classifier", or "none" if that was worse on held-out images.
        epochs: Passes over the images.
        images: Images that it was trained on.
        held_out: Images that were held out.
        before: The accuracy before, on held-out images, or on all if there are none.
        after: The accuracy after.
        label_counts: Images of every class.
        losses: The mean loss of every epoch.
        bad: Images that could not be read, with the reason.
    """

    bundle: Bundle
    tensors: Mapping[str, NDArray[Any]] = field(repr=False)
    alpha: NDArray[np.float32]
    way: str
    epochs: int
    images: int
    held_out: int
    before: float
    after: float
    label_counts: list[int]
    losses: list[float]
    bad: list[tuple[str, str]]


def personalize(
    bundle: Bundle,
    folder: Path,
    *,
    seed: int = 0,
    epochs: int | None = None,
    rate: float | None = None,
    batch: int | None = None,
    threads: int = 0,
    progress: Progress | None = None,
    trust: bool = False,
) -> Personal:
    """Fit the bases of a bundle to a folder of images.

    If the result is worse on held-out images than the model it started from, that one is returned.

    Args:
        bundle: What ``open_bundle`` returned.
        folder: The images, as ``<class>/<image>``.
        seed: Decides the order of the images and which are held out.
        epochs: Passes over the images; None: as the bundle says.
        rate: The learning rate of the classifier; that of the coefficients changes by the same factor.
        batch: Images of a step, at least 2.
        threads: Threads of the runtime; 0: one per core.
        progress: Called after every epoch.
        trust: Whether to open the graphs without trying them in another process before.

    Returns:
        The model.
    """
    if batch is not None and batch < 2:
        raise InputError(f"A batch must have at least 2 images, but --batch is {batch}.")
    pixels, labels, bad = read_folder(bundle, folder)
    held = held_out(labels, seed)
    train, test = ~held, held if held.any() else ~held
    if not trust:
        probe("bundle", bundle.folder, bundle.digest, bundle.memory)
    learner = Learner(bundle, pixels[train], labels[train], threads)
    before = learner.accuracy(pixels[test], labels[test], learner.unpersonalized())
    count, losses = epochs or bundle.epochs, []
    for number, loss in enumerate(learner.learn(count, batch or bundle.batch, rate, seed), start=1):
        losses.append(loss)
        if progress is not None:
            progress(number, count, loss)
    after, way, state = learner.accuracy(pixels[test], labels[test], learner.state), WAY, learner.state
    if not all(np.isfinite(value).all() for value in state.values()):
        raise InputError("The personal model must hold finite numbers, but training diverged; lower --rate.")
    if held.any() and after < before:
        after, way, state = before, UNPERSONALIZED, learner.unpersonalized()
    return Personal(
        bundle=bundle,
        tensors=learner.weights(state),
        alpha=alpha(state["psi"]),
        way=way,
        epochs=count,
        images=int(train.sum()),
        held_out=int(held.sum()),
        before=before,
        after=after,
        label_counts=np.bincount(labels, minlength=len(bundle.classes)).tolist(),
        losses=losses,
        bad=bad,
    )


def read_folder(bundle: Bundle, folder: Path) -> tuple[Pixels, Labels, list[tuple[str, str]]]:
    """Read a client's ``<class>/<image>`` folder; its classes must be among those of the bases."""
    table = scan_client(folder)
    if unknown := [name for name in table.class_names if name not in bundle.classes]:
        raise InputError(
            f"Every class folder in {folder} must be a class of the bases, but '{unknown[0]}' is not"
            f"{did_you_mean(unknown[0], bundle.classes, cutoff=0.6)}; rename it."
        )
    height, width = bundle.resolution
    decoded = read_images(folder, table, height if height == width else bundle.resolution, bundle.channels)
    known = np.array([bundle.classes.index(name) for name in decoded.table.class_names])
    labels = known[decoded.table.labels]
    if len(set(labels.tolist())) < 2:
        raise InputError(f"A client needs images of at least 2 classes, but {folder} holds 1; add another class.")
    return decoded.images, labels, list(decoded.bad)


def held_out(labels: Labels, seed: int) -> NDArray[np.bool_]:
    """Mark about a fifth of every class, leaving at least one image of each; none if there are few images."""
    held = np.zeros(len(labels), dtype=bool)
    if len(labels) < ENOUGH:
        return held
    draws = generator(seed, "hold out")
    for label in sorted(set(labels.tolist())):
        (rows,) = (labels == label).nonzero()
        held[rows[draws.permutation(len(rows))[: min(len(rows) - 1, round(HELD_OUT * len(rows)))]]] = True
    return held


def alpha(psi: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the softmax of every row."""
    shifted = np.exp(psi - psi.max(1, keepdims=True))
    made: NDArray[np.float32] = shifted / shifted.sum(1, keepdims=True)
    return made


class Learner:
    """What a client learns, and the graphs that it learns with.

    Args:
        bundle: The bundle.
        pixels: The images to train on, uint8 [N, H, W, C].
        labels: Their classes.
        threads: Threads of the runtime.
    """

    def __init__(self, bundle: Bundle, pixels: Pixels, labels: Labels, threads: int = 0) -> None:
        self._bundle, self._pixels, self._labels = bundle, pixels, labels
        outside = {TENSORS: bundle.files[TENSORS]}
        self._step = Graph(bundle.files[STEP], f"The file {bundle.folder / STEP}", outside, threads)
        self._apply = Graph(bundle.files[APPLY], f"The file {bundle.folder / APPLY}", outside, threads)
        self.state = {name: np.zeros(shape, np.float32) for name, shape in bundle.state.items()}
        """Everything that is learned."""
        if "statistics" in self.state:
            measure = Graph(bundle.files[MEASURE], f"The file {bundle.folder / MEASURE}", outside, threads)
            passes = np.array_split(pixels, -(-len(pixels) // PASS))
            found = [measure({"pixels": part})["statistics"] for part in passes]
            mean = np.stack(found).mean(axis=0, dtype=np.float32)
            self.state["statistics"] = mean.reshape(bundle.state["statistics"])
        count = len(pixels)
        self._weight = np.float32(count / (bundle.prior_images + count))

    def learn(self, epochs: int, batch: int, rate: float | None, seed: int) -> Any:
        """Train, and yield the mean loss of every epoch."""
        psi, classifier, decay = self._bundle.rates
        factor = 1.0 if rate is None or classifier == 0 else rate / classifier
        rates = np.array([psi * factor, classifier * factor, decay], dtype=np.float32)
        draws = TorchGenerator(seed_for(seed, "client", "new client", 0, "adapt"))
        for _ in range(epochs):
            losses = []
            for rows in batches(len(self._labels), batch, draws):
                made = self._step(
                    {**self.state, "weight": self._weight, "pixels": self._pixels[rows], "labels": self._labels[rows],
                     "rates": rates}
                )  # fmt: skip
                losses.append(float(made["loss"].reshape(())))
                self.state = {name: self._kept(made, name) for name in self.state}
            yield sum(losses) / len(losses)

    def _kept(self, made: Mapping[str, NDArray[Any]], name: str) -> NDArray[np.float32]:
        value = made.get(f"{name}_out")
        if value is None:
            return self.state[name]
        if value.shape != self.state[name].shape or value.dtype != np.float32:
            raise InputError(f"The training step must return '{name}' as it took it, but it does not.")
        return value

    def unpersonalized(self) -> dict[str, NDArray[Any]]:
        """Return the state of the uniform combination with the bases' own statistics."""
        state = {name: np.zeros_like(value) for name, value in self.state.items()}
        if "statistics" in state:
            state["statistics"] = self._combined(state["psi"], False).reshape(state["statistics"].shape)
        return state

    def accuracy(self, pixels: Pixels, labels: Labels, state: Mapping[str, NDArray[Any]]) -> float:
        """Return the share of images whose class is right."""
        weight = self._weight if state is self.state else np.float32(0)
        right = 0
        for start in range(0, len(pixels), PASS):
            part = pixels[start : start + PASS]
            logits = self._apply({**state, "weight": weight, "pixels": part})["logits"]
            right += int((logits.argmax(1) == labels[start : start + PASS]).sum())
        return right / len(pixels)

    def weights(self, state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the network of a state: the combination, the classifier's offset, and the statistics."""
        bundle = self._bundle
        flat, statistics = self._combined(state["psi"], True), self._combined(state["psi"], False)
        if "statistics" in state:
            weight = np.float32(1) if bundle.statistics == "own" else self._weight if state is self.state else 0
            statistics = statistics + weight * (state["statistics"].reshape(-1) - statistics)
        start = sum(bundle.size(block, True) for block in range(bundle.classifier))
        flat[start : start + state["offset"].size] += state["offset"].reshape(-1)
        made: dict[str, NDArray[Any]] = dict(bundle.constants)
        for values, trained in ((flat, True), (statistics, False)):
            at = 0
            for block in range(len(bundle.blocks)):
                for entry in bundle.of_block(block, trained):
                    made[entry.name] = np.ascontiguousarray(values[at : at + entry.size].reshape(entry.shape))
                    at += entry.size
        return made

    def _combined(self, psi: NDArray[np.float32], trained: bool) -> NDArray[np.float32]:
        """Combine the bases block by block: V_0 + sum_k c_k (V_k - V_0), as the graphs do."""
        bundle, parts = self._bundle, [np.zeros(0, np.float32)]
        c = alpha(psi)
        if bundle.major:
            c = np.concatenate([np.full((len(c), 1), 0.5, np.float32), c / 2], axis=1)
        for block in range(len(bundle.blocks)):
            for entry in bundle.of_block(block, trained):
                rows = np.stack([bundle.bases[f"{group}/{entry.name}"].reshape(-1) for group in bundle.groups])
                parts.append(rows[0] + c[block, 1:].astype(np.float32) @ (rows[1:] - rows[:1]))
        return np.concatenate(parts)
