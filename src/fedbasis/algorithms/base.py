"""The interface of a method. All state goes in and comes out; nothing is kept on the object but its configuration.

A method is one file: a frozen ``Config`` and a class with these six functions. What leaves a client is in the
signature (``Sent``), a new client sees the server's state and its own images and nothing else, and ``aggregate``
reads its updates from a stream, one at a time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbasis.blocks import Layout
from fedbasis.classifier import passed
from fedbasis.flat import FlatModel
from fedbasis.method_config import MethodConfig as MethodConfig  # noqa: PLC0414  (methods take it from here)
from fedbasis.models import Network, classifier_of, normalization_of
from fedbasis.pack import packed, spooled, unpacked
from fedbasis.params import State, StreamingMean, Tensors
from fedbasis.seeding import torch_generator
from fedbasis.train import Examples, Recipe, predict

MODEL = "model"
"""The group of the one model that most methods send, average and start from."""
CLOCK = "clock"
"""The group of counters that a server needs for itself and no new client does."""


@dataclass(frozen=True)
class Task:
    """What every method is given: the network, the local recipe, and the size of the training."""

    network: Network
    recipe: Recipe
    rounds: int
    weighting: Literal["uniform", "examples"] = "uniform"
    weights: Tensors | None = field(default=None, repr=False)  # pretrained tensors that replace the drawn ones

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process with pretrained tensors as one plain array."""
        weights = None if self.weights is None else packed({"": self.weights})
        return _task, (self.network, self.recipe, self.rounds, self.weighting, weights)

    @cached_property
    def layout(self) -> Layout:
        """The network's tensors by blocks."""
        return self.network.layout(self.network.build())

    @cached_property
    def classifier(self) -> str:
        """The name of the network's classifier layer."""
        return classifier_of(self.network.build())

    @cached_property
    def head(self) -> frozenset[str]:
        """The names of the classifier's tensors."""
        return frozenset(entry.name for entry in self.layout.entries if entry.name.startswith(self.classifier + "."))

    @cached_property
    def body(self) -> frozenset[str]:
        """The names of all other tensors, normalization statistics included."""
        return frozenset(entry.name for entry in self.layout.entries) - self.head

    @cached_property
    def normalization(self) -> frozenset[str]:
        """The names of the normalization layers' tensors: scale and shift, and their running statistics."""
        return frozenset(normalization_of(self.network.build()))

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names of what a gradient trains; the rest are statistics."""
        return frozenset(entry.name for entry in self.layout.select(True))

    def initial(self, seed: int) -> Tensors:
        """Draw the initial model; pretrained tensors take the place of those they name."""
        return {**self.network.initial(seed), **(self.weights or {})}

    def weight(self, examples: int) -> float:
        """Return how much a client with so many examples counts."""
        return float(examples) if self.weighting == "examples" else 1.0


def _task(network: Network, recipe: Recipe, rounds: int, weighting: Any, weights: NDArray[np.uint8] | None) -> Task:
    return Task(network, recipe, rounds, weighting, None if weights is None else unpacked(weights)[""])


@dataclass(frozen=True)
class Context:
    """Where and when a client works: the seed, the round, its name, and a working model that it may overwrite."""

    seed: int
    client: str
    model: FlatModel
    round: int = 0
    watch: Callable[..., None] | None = None  # called after every local step by methods that can be watched

    def generator(self, *purpose: str | int) -> torch.Generator:
        """Make this client's generator for a purpose in this round."""
        return torch_generator(self.seed, "client", self.client, self.round, *purpose)

    def at(self, client: str, round: int = 0) -> "Context":
        """Return the same context for another client or round."""
        return replace(self, client=client, round=round)


@dataclass(frozen=True)
class Sent:
    """What leaves a client: tensors, and a few numbers for the log (its loss, how many examples it trained on)."""

    tensors: State
    numbers: Mapping[str, float]


def put_aside(updates: Iterable[tuple[str, Sent]]) -> list[tuple[str, Sent]]:
    """Have all updates of a round at hand, on disk: for the rare round that must look at all of them at once."""
    heads: list[tuple[str, Mapping[str, float]]] = []

    def states() -> Iterator[State]:
        for client, sent in updates:
            heads.append((client, sent.numbers))
            yield sent.tensors

    shown = spooled(states())
    return [(client, Sent(state, numbers)) for (client, numbers), state in zip(heads, shown, strict=True)]


@dataclass(frozen=True)
class Adaptation:
    """How a new client adapts: in how many epochs, at which rate, in batches of what size."""

    epochs: int = 20
    rate: float = 0.01
    decay: float = 1e-4
    momentum: float = 0.9
    batch: int = 16
    prox: float = 1.0  # strength of the pull towards the server's model, where one is asked for
    validate_every: int = 1  # epochs; scoring validation data can cost more than learning

    def recipe(self, base: Recipe) -> Recipe:
        """Return the training recipe with these settings in place of the federation's own."""
        return replace(
            base, epochs=self.epochs, rate=self.rate, decay=self.decay, momentum=self.momentum, batch=self.batch
        )


class Method(ABC):
    """One federated method."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    sends: ClassVar[str]
    keeps: ClassVar[str]
    new_client: ClassVar[str]
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    personalizers: ClassVar[tuple[str, ...]] = ()
    """Names of this method's own ways to serve a new client; ``adapt`` carries them out."""
    ways: ClassVar[tuple[str, ...]] = ("none", "lp", "ft")
    """The ways that are evaluated unless the experiment says otherwise; the last serves a client's folder."""
    rateless: ClassVar[tuple[str, ...]] = ()
    """Those of its own ways that do not depend on the learning rate, so that none has to be chosen."""
    head_only: ClassVar[tuple[str, ...]] = ()
    """Those of its own ways that train the classifier alone, from the server's model."""
    one_network: ClassVar[bool] = True
    """Whether a fitted client is one ordinary network; if not, ``probabilities`` needs what was learned besides it."""
    own: ClassVar[str] = ""
    """The group of what a client keeps that stands in for the server's tensors in its own model; empty: none does."""

    def __init__(self, config: Any, task: Task) -> None:
        self.config = config
        self.task = task

    def require_clients(self, count: int) -> None:  # noqa: B027
        """Refuse, before any work, a number of clients a round that this method cannot use."""

    @abstractmethod
    def init(self, seed: int) -> State:
        """Make the server's first state."""

    def broadcast(self, server: State, client: str) -> State:
        """Choose what goes down to a client; by default all of it."""
        return server

    @abstractmethod
    def client_update(
        self, received: State, kept: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Train on one client; return what leaves it and what it keeps."""

    @abstractmethod
    def aggregate(self, server: State, updates: Iterable[tuple[str, Sent]], seed: int) -> State:
        """Fold the clients' updates into the server's next state, one update in memory at a time."""

    def mean(self, updates: Iterable[tuple[str, Sent]], group: str = MODEL) -> Tensors:
        """Take the mean of one group of the clients' tensors in a stream, each weighted as the task says."""
        mean = StreamingMean()
        for client, sent in updates:
            mean.add(sent.tensors[group], self.task.weight(int(sent.numbers["examples"])), f"The update of {client}")
        return mean.result()

    def published(self, server: State) -> State:
        """Choose what new clients are served from; by default all of the state but its clock."""
        return {group: tensors for group, tensors in server.items() if group != CLOCK}

    @abstractmethod
    def model(self, server: State) -> Tensors:
        """Return the ordinary model a new client starts from, before it has looked at its data."""

    def participant(self, server: State, kept: State | None) -> Tensors:
        """Return the model of a client that took part: the server's, with what the client kept in its place.

        A client that was never sampled has kept nothing yet and has the server's model.
        """
        return self.model(server) if kept is None else {**self.model(server), **kept[self.own]}

    def adapt(
        self, how: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Fit ``context.model`` to a new client in this method's own way.

        Yields ``(mean loss, what was learned besides the model)`` after every epoch, for the names in
        ``personalizers``; the model itself stands in ``context.model``.
        """
        raise KeyError(how)

    def probabilities(self, model: FlatModel, learned: Tensors, pixels: Tensor) -> Tensor:
        """Predict with a fitted model and what was learned besides it; for most methods the model is all there is."""
        return predict(model.module, pixels, self.task.recipe.preprocessing)

    def features(self, model: FlatModel, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return a model's class probabilities and the features they were made of, on the CPU."""
        seen = passed(model.module, self.task.classifier, pixels, self.task.recipe.preprocessing)
        return torch.softmax(seen.logits, dim=1).cpu(), seen.features.flatten(1).cpu()

    def diagnostics(self, server: State) -> dict[str, Any]:
        """Describe the server's state in a few numbers for the log."""
        return {}
