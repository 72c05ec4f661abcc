"""An engine is a map over clients: it owns their data and their states, and yields their updates, one at a time.

An engine of this machine or of a cluster has workers, which run tasks. A task is a pure function of a state that all
tasks share and of an item of its own. Its result depends on these alone. So the bits of a result do not depend on the
machine, the number of workers, the order of the tasks, or how often a task is repeated.
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
    """Stands for a client's update if there is none, or one that cannot be used.

    Args:
        reason: Why, for the log and for errors.
        answered: Whether the client sent an update, which was refused; False: it sent nothing in time.
    """

    reason: str
    answered: bool = True


class ClientVersions(Protocol):
    """The versions of the client states, as a training with checkpoints needs them."""

    def rewind(self, rounds_done: int) -> None:
        """Drop versions that are newer than the checkpoint after ``rounds_done`` rounds."""
        ...

    def sync(self, rounds_done: int) -> None:
        """Flush new versions to disk; called before the checkpoint that they belong to is written."""
        ...

    def prune(self, rounds_done: int) -> None:
        """Delete versions that no round needs any more; called after that checkpoint is written."""
        ...

    def remove(self) -> None:
        """Delete all versions."""
        ...


class Engine(Protocol):
    """Run one round of client updates; the same seeds give the same bits whatever the engine."""

    @property
    def states(self) -> ClientVersions:
        """The versions of the client states."""
        ...

    def map(self, server: State, clients: Sequence[str], round: int) -> Iterator[tuple[str, Sent | NoUpdate]]:
        """Train the named clients for one round.

        Args:
            server: The server's state.
            clients: Names of the clients.
            round: The number of the round, from 0.

        Yields:
            ``(client, update)``, in the order of ``clients``.
        """
        ...

    def peak_memory(self) -> int:
        """Return the peak memory of the processes of this machine, in bytes."""
        ...


@dataclass
class WorkerContext:
    """What a worker holds between tasks: the method, a working model, and a cache for the current shared state."""

    method: Method
    device: torch.device | str = "cpu"
    model: FlatModel = field(init=False)
    cache: dict[Any, Any] = field(default_factory=dict)
    """Results that later tasks with the same shared state can reuse, such as features of images."""

    def __post_init__(self) -> None:
        self.model = self.method.task.network.workspace(self.device)


Result = tuple[State, Any]
"""Tensors, and a small picklable object."""
WorkFunction = Callable[[WorkerContext, State, Any], Result]
"""The function of a task: ``(worker, shared, item) -> result``."""


class Workers(Protocol):
    """Workers that run tasks."""

    same_disk: bool
    """Whether every worker can read this machine's files."""

    def run(
        self, function: WorkFunction, shared: State, items: Sequence[Any], names: Sequence[str]
    ) -> Iterator[Result]:
        """Run ``function(worker, shared, item)`` for every item.

        Args:
            function: The function.
            shared: The state that all tasks share.
            items: One item per task.
            names: What error messages call the items.

        Yields:
            The results, in the order of the items.
        """
        ...

    def peak_memory(self) -> int:
        """Return the peak memory of this process and of the workers on this machine, in bytes."""
        ...

    def close(self) -> None:
        """Stop the workers."""
        ...

    def __str__(self) -> str:
        """Describe the workers: how many there are, and where."""
        ...


ClientData = Mapping[str, Any]
"""A client's training images by its name: ``Examples``, or PFLBed's ``Images``."""
