"""The interface of a method. All state goes in and comes out; nothing is kept on the object but its settings.

A method is six functions: ``init``, ``broadcast``, ``client_update``, ``aggregate``, ``model`` and ``adapt``. What
leaves a client is in the signature (``Sent``), a new client sees the server's state and its own images and nothing
else, and ``aggregate`` reads its updates from a stream, one at a time.

What others need to know of a method are small objects beside it: ``About`` (words for tables), ``Ways`` (how new
clients can be personalized), ``Serving`` (what is published, how a personalized client predicts), ``Updates`` (how an
update is measured and averaged, for clipping, robust means and privacy) and ``Insight`` (numbers and tables for logs
and reports).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from pydantic import ValidationError
from torch import Tensor

from fedbasis.methods.problems import problem_lines, problems_error
from fedbasis.methods.task import MethodConfig as MethodConfig  # noqa: PLC0414  (methods import these from here)
from fedbasis.methods.task import Task as Task  # noqa: PLC0414
from fedbasis.networks.models import NetworkSource
from fedbasis.networks.train import Examples, Recipe, predict
from fedbasis.tensors.averaging import Averaging
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.packed import on_disk
from fedbasis.tensors.params import State, Tensors, require_same
from fedbasis.tensors.seeding import torch_generator
from pflbed.errors import InputError

MODEL = "model"
"""The group of the one model that most methods send, average and start from."""
CLOCK = "clock"
"""The group of counters that a server needs for itself and no new client does."""


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


Update = tuple[str, Sent]
"""A client's name and what it sent."""


def spool_updates(updates: Iterable[Update]) -> list[Update]:
    """Have all updates of a round at hand, on disk: for the rare round that must compare all of them."""
    heads: list[tuple[str, Mapping[str, float]]] = []

    def states() -> Iterator[State]:
        for client, sent in updates:
            heads.append((client, sent.numbers))
            yield sent.tensors

    shown = on_disk(states())
    return [(client, Sent(state, numbers)) for (client, numbers), state in zip(heads, shown, strict=True)]


def clamped_updates(updates: Iterable[Update], averaging: Averaging, group: str = MODEL) -> Iterable[Update]:
    """Where the server needs single models and does not trust them, bring them into the others' range."""
    if not averaging.robust:
        return updates
    arrived = spool_updates(updates)
    bounded = averaging.clamp_models([sent.tensors[group] for _, sent in arrived])
    return [
        (client, replace(sent, tensors={**sent.tensors, group: model}))
        for (client, sent), model in zip(arrived, bounded, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
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
        """Return the training recipe with these settings in place of those of training."""
        return replace(
            base, epochs=self.epochs, rate=self.rate, decay=self.decay, momentum=self.momentum, batch=self.batch
        )


@dataclass(frozen=True, kw_only=True)
class About:
    """What tables and pages print about a method."""

    name: str
    """Short and in lower case, as it stands in a TOML file."""
    title: str
    paper: str = ""
    sends: str = "1 model"
    keeps: str = "nothing"
    new_client: str = "the server's model, as it is or fine-tuned"
    charts: Mapping[str, str] = field(default_factory=dict)
    """Groups of numbers in the log that are worth a chart, and what its axis is called."""


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a new client can be personalized after a method."""

    own: tuple[str, ...] = ()
    """Names of the method's own ways; ``adapt`` carries them out."""
    default: tuple[str, ...] = ("none", "lp", "ft")
    """The ways that are evaluated unless the experiment says otherwise; the last one serves a client's folder."""
    rate_free: tuple[str, ...] = ()
    """Those of its own ways that do not depend on the learning rate, so that none has to be chosen."""
    head_only: tuple[str, ...] = ()
    """Those of its own ways that train the classifier alone, from the server's model."""
    one_network: bool = True
    """Whether a personalized client is one ordinary network; if not, predictions need what was learned besides it."""
    suffixes: Mapping[str, str] = field(default_factory=dict)
    """What a table prints behind the method's title, where the way's own name would not explain it."""


@dataclass(frozen=True, kw_only=True)
class ValueTable:
    """A small table of numbers by which a method explains itself: rows by name, such as the blocks of a network."""

    title: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[float]]
    shares: bool = False
    """Whether a row's numbers are shares of one, which can be drawn as bars."""


class Companion:
    """A small object beside a method, made for one bound method."""

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
    """What new clients are given, and how a personalized client predicts."""

    def published(self, server: State) -> State:
        """Choose what new clients are served from; by default all of the state but its counters."""
        return {group: tensors for group, tensors in server.items() if group != CLOCK}

    def check(self, published: State) -> None:
        """Refuse published tensors that do not fit the method's settings."""
        require_same(self.method.model(published), self.method.task.layout.shapes, "The model that they hold")

    def check_learned(self, learned: Tensors) -> None:
        """Refuse what a personal model's file holds besides a network, if the method cannot predict with it."""
        if learned:
            raise InputError(f"A personal model of {self.method.about.title} holds one network and nothing else.")

    def participant(self, server: State, state: State | None) -> Tensors:
        """Return the model of a client that took part: the server's, with what is in the client's state in its place.

        A client that was never sampled has no state yet and has the server's model.
        """
        model: Tensors = self.method.model(server)
        return model if state is None else {**model, **state[self.method.state_group]}

    def probabilities(self, model: FlatModel, learned: Tensors, pixels: Tensor) -> Tensor:
        """Predict with a personalized model and what was learned besides it; for most methods the model is all."""
        return predict(model.module, pixels, self.method.task.recipe.preprocessing)


class Updates(Companion):
    """How a client's update is measured and averaged: for clipping, robust means and differential privacy."""

    averages: ClassVar[bool] = True
    """Whether the server averages anything that clients send."""
    needs_single_updates: ClassVar[str] = ""
    """What the server does with single updates besides taking their mean; where noise is added to the mean, this cannot
    be done, and the method is refused with these words. Empty: nothing."""

    def require_clients(self, count: int) -> None:
        """Refuse, before any work, a number of clients a round that the method cannot use."""

    def reference(self, server: State, client: str, sent: State) -> State:
        """Return what a client's tensors are measured from, group by group: their difference is its update.

        By default that is what the client received; a group that has no counterpart is an update itself.
        """
        return {**server, **self.method.broadcast(server, client)}

    def as_averageable(self, server: State, sent: State) -> State:
        """Write what one client sent as tensors whose mean over the clients is all that ``from_average`` needs."""
        return sent

    def from_average(self, server: State, mean: State, seed: int) -> State:
        """Make the server's next state from the mean of what clients sent: as if one client had sent it."""
        after: State = self.method.aggregate(
            server, [("the mean", Sent(mean, {"loss": float("nan"), "examples": 1.0}))], seed
        )
        return after

    def require_average(self) -> None:
        """Refuse, before any work, a method or settings that need more than the clients' mean."""
        if self.needs_single_updates:
            raise InputError(
                f"[privacy] protects what is averaged over the clients, but {self.method.about.title} needs more: "
                f"{self.needs_single_updates}; leave [privacy] out or choose another method."
            )


class Insight(Companion):
    """Numbers and tables by which a method explains its state: for logs, ``inspect`` and reports."""

    def diagnostics(self, server: State) -> dict[str, Any]:
        """Describe the server's state in a few numbers for the log."""
        return {}

    def phase(self, server: State) -> str:
        """Name the phase of training that the next round belongs to; empty if there is only one."""
        return ""

    def ready(self, server: State) -> bool:
        """Tell whether new clients can be served from this state as they will be at the end."""
        return True

    def describe(self, published: State) -> list[ValueTable]:
        """Explain what is published."""
        return []

    def learned(self, learned: Tensors) -> dict[str, ValueTable]:
        """Explain what a new client learned besides its model, by a short name for each table."""
        return {}


class Method(ABC):
    """One federated method: settings, a network, and six functions.

    Args:
        network: A built-in network's name, ``"module:factory"``, a factory, or an ``nn.Module`` instance.
        **settings: The fields of the method's ``Config``; what is not given has its default.

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
    """The group of a client's state that replaces the server's tensors in its own model; empty: none does."""

    config: Any
    task: Task

    def __init__(self, network: NetworkSource | None = None, **settings: Any) -> None:
        self.network = network
        try:
            self.config = self.Config(**settings)
        except ValidationError as error:
            raise problems_error(
                f"The settings of {type(self).__name__}", problem_lines(error, (), self.Config)
            ) from error

    @classmethod
    def build(cls, config: MethodConfig | None, task: Task) -> Self:
        """Make a method that can train, from checked settings and a task."""
        method = cls.__new__(cls)
        method.network, method.config, method.task = None, config, task
        method.setup()
        return method

    def bind(self, task: Task) -> Self:
        """Return a copy of this method that can train."""
        bound = copy(self)
        bound.task = task
        bound.setup()
        return bound

    def setup(self) -> None:  # noqa: B027
        """Check the settings against the task, and prepare what follows from both."""

    @cached_property
    def serving(self) -> Serving:
        """What new clients are given, and how they predict."""
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
        """Make the server's first state."""

    def broadcast(self, server: State, client: str) -> State:
        """Choose what is sent to a client; by default all of it."""
        return server

    @abstractmethod
    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Train on one client; return what leaves it, and its state for its next round."""

    @abstractmethod
    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Turn the clients' updates into the server's next state, with one update in memory at a time."""

    @abstractmethod
    def model(self, server: State) -> Tensors:
        """Return the ordinary model a new client starts from, before it has seen its data."""

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Personalize ``context.model`` for a new client in one of the method's own ways (``ways.own``).

        Yields ``(mean loss, what was learned besides the model)`` after every epoch.
        """
        raise KeyError(way)

    def mean(self, updates: Iterable[Update], group: str = MODEL) -> Tensors:
        """Take the mean of one group of the clients' tensors in a stream, each weighted as the task says."""
        mean = self.task.averaging.mean()
        for client, sent in updates:
            mean.add(sent.tensors[group], self.task.weight(int(sent.numbers["examples"])), f"The update of {client}")
        return mean.result()
