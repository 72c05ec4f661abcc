"""An engine is a map over clients: it owns their data and what they keep, and yields what they send, one at a time.

An engine of this machine or of a cluster has workers, who carry out jobs: pure functions of a state that all jobs share
and of an item of their own. What a job returns depends on these alone, so where it is done, by how many workers, in
which order, and whether it is done again, changes no bit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from fedbasis.engines.client_state import ClientStates
from fedbasis.methods.base import Method, Sent
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State


@dataclass(frozen=True)
class NoUpdate:
    """In place of a client's update: why there is none that can be used."""

    reason: str
    answered: bool = True
    """Whether the client sent something, which was refused, or nothing in time."""


class Engine(Protocol):
    """Run one round of client updates; the same seeds give the same bits whatever the engine."""

    states: ClientStates

    def map(self, server: State, clients: Sequence[str], round: int) -> Iterator[tuple[str, Sent | NoUpdate]]:
        """Update the named clients in this order and yield ``(client, what it sent)``."""
        ...

    def peak_memory(self) -> int:
        """Return the most bytes that the processes of this machine have held so far."""
        ...


@dataclass
class WorkerContext:
    """What a worker has before it: the method, a working model, and notes on the state that its jobs share."""

    method: Method
    device: torch.device | str = "cpu"
    model: FlatModel = field(init=False)
    cache: dict[Any, Any] = field(default_factory=dict)
    """What a job leaves for later jobs with the same shared state, such as features of images that many look at."""

    def __post_init__(self) -> None:
        self.model = self.method.task.network.workspace(self.device)


Result = tuple[State, Any]
"""Tensors, and something small besides."""
WorkFunction = Callable[[WorkerContext, State, Any], Result]
"""A function of a module, so that other processes can find it: ``(desk, shared, item) -> result``."""


class Workers(Protocol):
    """Carry out jobs."""

    same_disk: bool
    """Whether every worker sees this machine's files."""

    def run(self, job: WorkFunction, shared: State, items: Sequence[Any], names: Sequence[str]) -> Iterator[Result]:
        """Yield the results of ``job(desk, shared, item)`` in the order of the items; errors call one by its name."""
        ...

    def peak_memory(self) -> int:
        """Return the most bytes that this process and the workers on this machine have held so far."""
        ...

    def close(self) -> None:
        """Let the workers go."""
        ...

    def __str__(self) -> str:
        """Say who works where, for a reader."""
        ...


ClientData = Mapping[str, Any]
"""A client's training images by its name: ``Examples``, or PFLBed's ``Images``."""
