"""The interface of a method: six functions whose state is in their arguments and results.

The six functions are ``init``, ``broadcast``, ``client_update``, ``aggregate``, ``model`` and ``adapt``. The object has
settings but no state. Everything that leaves a client is in a ``Sent``; a new client uses the server's state and its
own images only; ``aggregate`` reads the updates from an iterator, one at a time.

Other parts of the package use small objects of a method: ``About`` (texts for tables), ``Ways`` (how new clients can be
personalized), ``Serving`` (what is published, how a personalized client predicts), ``Updates`` (how an update is
measured and averaged, for clipping, robust means and privacy) and ``Insight`` (numbers and tables for logs and
reports).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from pydantic import ValidationError
from torch import Tensor

from fedbasis.methods.problems import problem_lines
from fedbasis.methods.task import MethodConfig as MethodConfig  # noqa: PLC0414  (methods import these from here)
from fedbasis.methods.task import Task as Task  # noqa: PLC0414
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples
from fedbasis.networks.models import NetworkSource
from fedbasis.networks.statistics import Statistics
from fedbasis.networks.train import predict
from fedbasis.tensors.averaging import Averaging
from fedbasis.tensors.compact import AlikeModels
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.packed import on_disk
from fedbasis.tensors.params import State, Tensors, require_same
from fedbasis.tensors.seeding import seeded_globally, torch_generator
from pflbed.errors import InputError, InputListError

MODEL = "model"
"""The group of the one model that most methods send, average and start from."""
CLOCK = "clock"
"""The group of the server's counters, which are not published."""


@dataclass(frozen=True)
class Context:
    """What a method's functions get of a client besides its data.

    Args:
        seed: The seed of the run.
        client: The client's name.
        model: A working model that may be overwritten.
        round: The number of the round, from 0.
        watch: Called after every local step, by methods that support it.
    """

    seed: int
    client: str
    model: FlatModel
    round: int = 0
    watch: Callable[..., None] | None = None

    def generator(self, *purpose: str | int) -> torch.Generator:
        """Return this client's random generator for a purpose in this round."""
        return torch_generator(self.seed, "client", self.client, self.round, *purpose)

    @contextmanager
    def random_layers(self) -> Iterator[None]:
        """Seed the layers that draw from torch's global generator, such as dropout, and restore it afterwards."""
        with seeded_globally(self.seed, "client", self.client, self.round, "random layers"):
            yield

    def at(self, client: str, round: int = 0) -> "Context":
        """Return the same context for another client or round."""
        return replace(self, client=client, round=round)


@dataclass(frozen=True)
class Sent:
    """A client's update: tensors, and a few numbers for the log (its loss, its number of images)."""

    tensors: State
    numbers: Mapping[str, float]


Update = tuple[str, Sent]
"""A client's name and its update."""


def spool_updates(updates: Iterable[Update]) -> list[Update]:
    """Store all updates of a round on disk and return them, for rounds that must compare all of them."""
    heads: list[tuple[str, Mapping[str, float]]] = []

    def states() -> Iterator[State]:
        for client, sent in updates:
            heads.append((client, sent.numbers))
            yield sent.tensors

    stored = on_disk(states())
    return [(client, Sent(state, numbers)) for (client, numbers), state in zip(heads, stored, strict=True)]


def clamped_updates(updates: Iterable[Update], averaging: Averaging, group: str = MODEL) -> Iterable[Update]:
    """With robust averaging, clamp every update's model to the range of the others; for servers that need each one."""
    if not averaging.robust:
        return updates
    received = spool_updates(updates)
    bounded = averaging.clamp_models([sent.tensors[group] for _, sent in received])
    return [
        (client, replace(sent, tensors={**sent.tensors, group: model}))
        for (client, sent), model in zip(received, bounded, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How a new client is personalized.

    Args:
        epochs: Epochs over its images.
        rate: The learning rate.
        decay: The weight decay.
        momentum: The momentum of SGD.
        batch: Images per batch.
        prox: The strength of the proximal term towards the server's model, for ways that have one.
        statistics: The normalization statistics: "frozen", "own" or "shrunk" (``networks.statistics``); None: the way's
            default.
        prior_images: How many images the server's statistics count as when they are shrunk.
        validate_every: Epochs between two evaluations on validation data, which can cost more than training.
    """

    epochs: int = 20
    rate: float = 0.01
    decay: float = 1e-4
    momentum: float = 0.9
    batch: int = 16
    prox: float = 1.0
    statistics: Statistics | None = None
    prior_images: float = 16.0
    validate_every: int = 1

    def recipe(self, base: Recipe) -> Recipe:
        """Return the training recipe with these settings."""
        return replace(
            base, epochs=self.epochs, rate=self.rate, decay=self.decay, momentum=self.momentum, batch=self.batch
        )


@dataclass(frozen=True, kw_only=True)
class About:
    """Texts about a method, for tables and documentation.

    Args:
        name: Its name in a TOML file, short and in lower case.
        title: Its name in tables.
        paper: Authors and year.
        sends: What a client sends in a round.
        keeps: What the client state holds.
        new_client: How a new client is personalized.
        charts: Groups of numbers in the log that the report draws, with the label of their axis.

    Example:
        >>> About(name="mine", title="My Own", paper="nobody").sends
        '1 model'
    """

    name: str
    title: str
    paper: str = ""
    sends: str = "1 model"
    keeps: str = "nothing"
    new_client: str = "the server's model, as it is or fine-tuned"
    charts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a new client can be personalized after a method.

    Example:
        >>> Ways(own=("coefficients",), default=("none", "coefficients")).one_network
        True
    """

    own: tuple[str, ...] = ()
    """Names of the method's own ways, which ``adapt`` implements."""
    default: tuple[str, ...] = ("none", "lp", "ft")
    """The ways that are evaluated by default; ``fedbasis personalize`` uses the last one."""
    followed: tuple[str, ...] = ()
    """``own+lp`` and ``own+ft`` that ``adapt`` implements too, because more than the working model is trained."""
    rate_free: tuple[str, ...] = ()
    """Those of its own ways that do not depend on the learning rate, so that no rate is tuned."""
    head_only: tuple[str, ...] = ()
    """Those of its own ways that train only the classifier, from the server's model."""
    frozen: tuple[str, ...] = ()
    """Those of its own ways that learn so little that the server's normalization statistics are the default."""
    one_network: bool = True
    """Whether a personalized client is one ordinary network; if not, predictions need other learned tensors too."""
    suffixes: Mapping[str, str] = field(default_factory=dict)
    """What tables print after the method's title for a way, instead of the way's name."""


@dataclass(frozen=True, kw_only=True)
class ValueTable:
    """A small table of numbers about a method's state: rows by name, such as the blocks of a network."""

    title: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[float]]
    shares: bool = False
    """Whether the numbers of a row add up to one, so that they can be drawn as bars."""


@dataclass(frozen=True, kw_only=True)
class Learns:
    """What a new client learns in one way of personalizing, running statistics apart."""

    parameters: frozenset[str] = frozenset()
    """Names of the parameters of its model that are trained."""
    besides: int = 0
    """Numbers that are no parameters of its model, such as coefficients."""
    per_image: int = 0
    """Numbers that it stores of each of its images."""


class Companion:
    """The base of the helper objects of a bound method."""

    def __init__(self, method: Any) -> None:
        self.method = method


def require_tensor(
    tensors: Tensors, name: str, shape: Sequence[int | None], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return a named tensor of an expected type and shape; a side that is None may have any length."""
    tensor = tensors.get(name)
    fits = tensor is not None and tensor.dtype == dtype and tensor.ndim == len(shape)
    if (
        tensor is None
        or not fits
        or any(side not in (None, got) for side, got in zip(shape, tensor.shape, strict=True))
    ):
        got = "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
        wanted = tuple("any" if side is None else side for side in shape)
        raise InputError(f"The tensor '{name}' must be {dtype} of shape {wanted}, but it is {got}.")
    return tensor


def require_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels that are no classes."""
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InputError(f"Labels must be from 0 to {classes - 1}, but they are not.")


class Serving(Companion):
    """What is published for new clients, and how a personalized client predicts."""

    def published(self, server: State) -> State:
        """Return the part of the server's state that new clients get; by default all but the counters."""
        return {group: tensors for group, tensors in server.items() if group != CLOCK}

    def check(self, published: State) -> None:
        """Raise an ``InputError`` if published tensors do not fit the method's settings."""
        require_same(self.method.model(published), self.method.task.layout.shapes, "The model that they hold")

    def alike_models(self, state: State) -> AlikeModels | None:
        """Return which models of the server's state are alike, so that they can be coded as small differences.

        By default none: a state with one model, or with models that have little in common, has nothing to gain.
        """
        return None

    def check_learned(self, learned: Tensors) -> None:
        """Refuse what a personal model's file holds besides a network, if the method cannot predict with it."""
        if learned:
            raise InputError(f"A personal model of {self.method.about.title} holds one network and nothing else.")

    def participant(self, server: State, state: State | None) -> Tensors:
        """Return the model of a client that took part in training: the server's, with the client's own tensors.

        A client that was never sampled has no state, and its model is the server's.
        """
        model: Tensors = self.method.model(server)
        return model if state is None else {**model, **state[self.method.state_group]}

    def learns(self, way: str) -> Learns | None:
        """Return what a new client learns in one of the method's own ways; None (default): tables do not say."""
        return None

    def refit(self, way: str, data: Examples, context: Context) -> Tensors:
        """Return what a client predicts with besides its model, after the model of ``way`` was trained further.

        By default nothing: the model is enough.
        """
        return {}

    def probabilities(self, model: FlatModel, learned: Tensors, pixels: Tensor) -> Tensor:
        """Return the class probabilities of images.

        Args:
            model: The personalized model.
            learned: What ``adapt`` learned besides the model; most methods do not need it.
            pixels: The images.
        """
        return predict(model.module, pixels, self.method.task.recipe.preprocessing)


class Updates(Companion):
    """How a client's update is measured and averaged: for clipping, robust means and differential privacy."""

    averages: ClassVar[bool] = True
    """Whether the server averages anything that clients send."""
    needs_single_updates: ClassVar[str] = ""
    """What the server does with single updates besides averaging them; empty: nothing. A method that needs single
    updates cannot be used with differential privacy, and the error quotes this text."""

    def require_clients(self, count: int) -> None:
        """Raise an ``InputError`` if the method needs more clients a round; called before training starts."""

    def reference(self, server: State, client: str, sent: State) -> State:
        """Return the tensors to subtract from what a client sent, group by group, to get its change.

        By default these are the tensors that the client received; a group without a counterpart is a change itself.
        """
        return {**server, **self.method.broadcast(server, client)}

    def as_averageable(self, server: State, sent: State) -> State:
        """Turn one client's tensors into tensors whose mean over the clients is all that ``from_average`` needs."""
        return sent

    def from_average(self, server: State, mean: State, seed: int) -> State:
        """Return the server's next state from the mean of the clients' tensors, as if one client had sent it."""
        after: State = self.method.aggregate(
            server, [("the mean", Sent(mean, {"loss": float("nan"), "examples": 1.0}))], seed
        )
        return after

    def aggregate_rounded(self, server: State, received: State, updates: Iterable[Update], seed: int) -> State:
        """Return the server's next state after a round in which clients received rounded tensors.

        By default the same as after any round, which is right for the mean of whole models, but for the rounding. A
        server that computes changes from its state overrides it: the changes start from ``received``.

        Args:
            server: The state before this round.
            received: The same state, with the tensors as the clients received them.
            updates: ``(client, update)``, computed while they are read.
            seed: The seed of the run.
        """
        after: State = self.method.aggregate(server, updates, seed)
        return after

    def require_average(self) -> None:
        """Raise an ``InputError`` if the method needs more than the clients' mean; called before training starts."""
        if self.needs_single_updates:
            raise InputError(
                f"[privacy] protects what is averaged over the clients, but {self.method.about.title} needs more: "
                f"{self.needs_single_updates}; leave [privacy] out or choose another method."
            )


class Insight(Companion):
    """Numbers and tables about a method's state, for logs, ``fedbasis inspect`` and reports."""

    def diagnostics(self, server: State) -> dict[str, Any]:
        """Return a few numbers about the server's state for the log."""
        return {}

    def phase(self, server: State) -> str:
        """Return the phase of training that the next round belongs to; empty if there is only one."""
        return ""

    def ready(self, server: State) -> bool:
        """Return whether new clients can be personalized from this state as from the final one."""
        return True

    def describe(self, published: State) -> list[ValueTable]:
        """Return tables about the published state."""
        return []

    def learned(self, learned: Tensors) -> dict[str, ValueTable]:
        """Return tables about what a new client learned besides its model, by a short name for each."""
        return {}


class Method(ABC):
    """A federated method: settings, a network, and six functions.

    Args:
        network: A built-in network's name, ``"module:factory"``, a factory, or an ``nn.Module`` instance.
        **settings: Fields of the method's ``Config``; the others have their defaults.

    Example:
        >>> from fedbasis import FedBasis
        >>> FedBasis(network="resnet10", bases=2).config.bases
        2
    """

    about: ClassVar[About]
    ways: ClassVar[Ways] = Ways()
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    serving_type: ClassVar[type[Serving]] = Serving
    updates_type: ClassVar[type[Updates]] = Updates
    insight_type: ClassVar[type[Insight]] = Insight
    state_group: ClassVar[str] = ""
    """The group of the client state whose tensors replace the server's in the client's own model; empty: none."""
    trains_as: ClassVar[str] = ""
    """The method whose training, with its default settings, this one's is; empty: it has its own."""
    flat_state: ClassVar[bool] = False
    """Whether the state has tensors in the order of a layout's flat vectors, which must then be the same everywhere."""

    config: Any
    task: Task

    def __init__(self, network: NetworkSource | None = None, **settings: Any) -> None:
        self.network = network
        try:
            self.config = self.Config(**settings)
        except ValidationError as error:
            raise InputListError(
                f"The settings of {type(self).__name__}", problem_lines(error, (), self.Config)
            ) from error

    @classmethod
    def build(cls, config: MethodConfig | None, task: Task) -> Self:
        """Return a method that can train, from validated settings and a task."""
        method = cls.__new__(cls)
        method.network, method.config, method.task = None, config, task
        method.setup()
        return method

    def bind(self, task: Task) -> Self:
        """Return a copy of this method that can train on a task."""
        bound = copy(self)
        bound.task = task
        bound.setup()
        return bound

    def setup(self) -> None:  # noqa: B027
        """Check the settings against the task, and precompute what depends on both."""

    @cached_property
    def serving(self) -> Serving:
        """What is published for new clients, and how they predict."""
        return self.serving_type(self)

    @cached_property
    def updates(self) -> Updates:
        """How updates are measured and averaged."""
        return self.updates_type(self)

    @cached_property
    def insight(self) -> Insight:
        """Numbers and tables about the state."""
        return self.insight_type(self)

    @abstractmethod
    def init(self, seed: int) -> State:
        """Return the server's initial state."""

    def broadcast(self, server: State, client: str) -> State:
        """Return the part of the server's state that is sent to a client; by default all of it."""
        return server

    @abstractmethod
    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Train on one client.

        Args:
            received: What the server sent, from ``broadcast``.
            state: The client state after the client's last round; None before its first.
            data: The client's images.
            context: The client's name, the round, the seed and a working model.

        Returns:
            The update, and the client state for the next round (None: no state).
        """

    @abstractmethod
    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Return the server's next state.

        Args:
            server: The state before this round.
            updates: ``(client, update)``, computed while they are read; do not collect them in memory.
            seed: The seed of the run.
        """

    @abstractmethod
    def model(self, server: State) -> Tensors:
        """Return the model that a new client starts from."""

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Personalize ``context.model`` for a new client in one of the method's own ways.

        Args:
            way: One of ``ways.own``.
            server: The published state.
            data: The new client's images.
            context: The client's name, the seed and the working model.
            plan: Epochs, rate, batch size.

        Yields:
            ``(mean loss, what was learned besides the model)`` after every epoch.
        """
        raise KeyError(way)

    def mean(self, updates: Iterable[Update], group: str = MODEL) -> Tensors:
        """Return the mean of one group of the clients' tensors, weighted by ``task.weighting``, one at a time."""
        mean = self.task.averaging.mean()
        for client, sent in updates:
            mean.add(sent.tensors[group], self.task.weight(int(sent.numbers["examples"])), f"The update of {client}")
        return mean.result()
