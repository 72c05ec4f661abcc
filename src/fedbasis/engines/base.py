"""An engine is a map over clients: it owns their data and their states, and yields what they send, one at a time.

An engine of this machine or of a cluster has workers, which carry out tasks. A task is a pure function of a state that
all tasks share and of an item of its own. Its result depends on these alone, so where it is done, by how many workers,
in which order, and whether it is done again, changes no bit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from fedbasis.methods.base import Method, Sent
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State


@dataclass(frozen=True)
class NoUpdate:
    """In place of a client's update: why there is none that can be used."""

    reason: str
    answered: bool = True
    """Whether the client sent something, which was refused, or nothing in time."""


class ClientVersions(Protocol):
    """The versions of what clients keep between rounds, as a training with checkpoints needs them."""

    def rewind(self, rounds_done: int) -> None:
        """Go back to the checkpoint after so many rounds."""
        ...

    def sync(self, rounds_done: int) -> None:
        """Push new versions to the disk, before the checkpoint that they belong to."""
        ...

    def prune(self, rounds_done: int) -> None:
        """Drop versions that no round can need any more, after that checkpoint."""
        ...

    def remove(self) -> None:
        """Drop everything."""
        ...


class Engine(Protocol):
    """Run one round of client updates; the same seeds give the same bits whatever the engine."""

    @property
    def states(self) -> ClientVersions:
        """The versions of what clients keep."""
        ...

    def map(self, server: State, clients: Sequence[str], round: int) -> Iterator[tuple[str, Sent | NoUpdate]]:
        """Update the named clients in this order and yield ``(client, what it sent)``."""
        ...

    def peak_memory(self) -> int:
        """Return the most bytes that the processes of this machine have held so far."""
        ...


@dataclass
class WorkerContext:
    """What a worker works with: the method, a working model, and a cache for the state that its tasks share."""

    method: Method
    device: torch.device | str = "cpu"
    model: FlatModel = field(init=False)
    cache: dict[Any, Any] = field(default_factory=dict)
    """What a task leaves for later tasks with the same shared state, such as features of images that many need."""

    def __post_init__(self) -> None:
        self.model = self.method.task.network.workspace(self.device)


Result = tuple[State, Any]
"""Tensors, and something small besides them."""
WorkFunction = Callable[[WorkerContext, State, Any], Result]
"""What a task calls: ``(worker, shared, item) -> result``."""


class Workers(Protocol):
    """Carry out tasks."""

    same_disk: bool
    """Whether every worker sees this machine's files."""

    def run(
        self, function: WorkFunction, shared: State, items: Sequence[Any], names: Sequence[str]
    ) -> Iterator[Result]:
        """Yield the results of ``function(worker, shared, item)`` in the order of the items; errors name the item."""
        ...

    def peak_memory(self) -> int:
        """Return the most bytes that this process and the workers on this machine have held so far."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...

    def __str__(self) -> str:
        """Say how many workers there are, and where."""
        ...


ClientData = Mapping[str, Any]
"""A client's training images by its name: ``Examples``, or PFLBed's ``Images``."""
