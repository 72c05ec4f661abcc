"""The interface of a method. All state goes in and comes out; nothing is kept on the object but its configuration.

A method is one file: a frozen ``Config`` and a class with these six functions. What leaves a client is in the
signature (``Sent``), a new client sees the server's state and its own images and nothing else, and ``aggregate``
reads its updates from a stream, one at a time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbasis.methods.task import MethodConfig as MethodConfig  # noqa: PLC0414  (methods take it from here)
from fedbasis.methods.task import Task as Task  # noqa: PLC0414
from fedbasis.networks.classifier import passed
from fedbasis.networks.train import Examples, Recipe, predict
from fedbasis.tensors.averaging import Averaging
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.packed import on_disk
from fedbasis.tensors.params import State, Tensors
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


def spool_updates(updates: Iterable[tuple[str, Sent]]) -> list[tuple[str, Sent]]:
    """Have all updates of a round at hand, on disk: for the rare round that must look at all of them at once."""
    heads: list[tuple[str, Mapping[str, float]]] = []

    def states() -> Iterator[State]:
        for client, sent in updates:
            heads.append((client, sent.numbers))
            yield sent.tensors

    shown = on_disk(states())
    return [(client, Sent(state, numbers)) for (client, numbers), state in zip(heads, shown, strict=True)]


def clamped_updates(
    updates: Iterable[tuple[str, Sent]], averaging: Averaging, group: str = MODEL
) -> Iterable[tuple[str, Sent]]:
    """Where the server needs single models and does not trust them, bring them into the others' range."""
    if not averaging.robust:
        return updates
    arrived = spool_updates(updates)
    bounded = averaging.clamp_models([sent.tensors[group] for _, sent in arrived])
    return [
        (client, replace(sent, tensors={**sent.tensors, group: model}))
        for (client, sent), model in zip(arrived, bounded, strict=True)
    ]


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
    rate_free: ClassVar[tuple[str, ...]] = ()
    """Those of its own ways that do not depend on the learning rate, so that none has to be chosen."""
    head_only: ClassVar[tuple[str, ...]] = ()
    """Those of its own ways that train the classifier alone, from the server's model."""
    one_network: ClassVar[bool] = True
    """Whether a fitted client is one ordinary network; if not, ``probabilities`` needs what was learned besides it."""
    own: ClassVar[str] = ""
    """The group of what a client keeps that stands in for the server's tensors in its own model; empty: none does."""
    averages: ClassVar[bool] = True
    """Whether the server averages anything that clients send."""
    needs_single_updates: ClassVar[str] = ""
    """What the server does with what single clients send, besides taking the mean; where noise goes on the mean, this
    cannot be done, and the method is refused with these words. Empty: nothing."""

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
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Train on one client; return what leaves it and what it keeps."""

    @abstractmethod
    def aggregate(self, server: State, updates: Iterable[tuple[str, Sent]], seed: int) -> State:
        """Fold the clients' updates into the server's next state, one update in memory at a time."""

    def mean(self, updates: Iterable[tuple[str, Sent]], group: str = MODEL) -> Tensors:
        """Take the mean of one group of the clients' tensors in a stream, each weighted as the task says."""
        mean = self.task.averaging.mean()
        for client, sent in updates:
            mean.add(sent.tensors[group], self.task.weight(int(sent.numbers["examples"])), f"The update of {client}")
        return mean.result()

    def reference(self, server: State, client: str, sent: State) -> State:
        """Return what a client's tensors are measured from, group by group: their difference is its update.

        By default that is what the client received; a group that has no like is an update itself.
        """
        return {**server, **self.broadcast(server, client)}

    def as_averageable(self, server: State, sent: State) -> State:
        """Write what one client sent as tensors whose mean over the clients is all that ``folded`` needs."""
        return sent

    def from_average(self, server: State, mean: State, seed: int) -> State:
        """Make the server's next state from the mean of what clients sent: as if one client had sent it."""
        return self.aggregate(server, [("the mean", Sent(mean, {"loss": float("nan"), "examples": 1.0}))], seed)

    def require_mean(self) -> None:
        """Refuse, before any work, a method or settings that need more than the clients' mean."""
        if self.needs_single_updates:
            raise InputError(
                f"[privacy] protects what is averaged over the clients, but {self.title} needs more: "
                f"{self.needs_single_updates}; leave [privacy] out or choose another method."
            )

    def published(self, server: State) -> State:
        """Choose what new clients are served from; by default all of the state but its clock."""
        return {group: tensors for group, tensors in server.items() if group != CLOCK}

    @abstractmethod
    def model(self, server: State) -> Tensors:
        """Return the ordinary model a new client starts from, before it has looked at its data."""

    def participant(self, server: State, state: State | None) -> Tensors:
        """Return the model of a client that took part: the server's, with what the client kept in its place.

        A client that was never sampled has kept nothing yet and has the server's model.
        """
        return self.model(server) if state is None else {**self.model(server), **state[self.own]}

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
