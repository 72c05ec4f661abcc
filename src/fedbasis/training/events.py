"""The events of a run: one class for each, passed to one callback.

The caller of a run passes ``emit``, a function of one event. ``to_all`` makes one function of several listeners; a
worker process sends the events through a pipe.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ImagesDecoded:
    """Some images are decoded: ``done`` of ``total``."""

    done: int
    total: int


@dataclass(frozen=True)
class ImagesSkipped:
    """Some images could not be read and are skipped: path and reason of each."""

    bad: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class RunStarted:
    """A run starts, or is resumed."""

    folder: Path | None
    title: str
    rounds_done: int
    rounds: int
    served_done: int
    served: int
    done: bool = False
    """Whether the run was already done, so that its results are only read."""


@dataclass(frozen=True)
class WorkersStarted:
    """The workers are chosen; ``description`` says how many and where."""

    description: str


@dataclass(frozen=True)
class ClientTrained:
    """A client of a round has trained."""

    round: int
    client: int
    clients: int
    loss: float


@dataclass(frozen=True)
class RoundEnded:
    """A round has ended; the record is its line in the log."""

    record: dict[str, Any]


@dataclass(frozen=True)
class ClientServed:
    """A client has been personalized in one way; the record is its line in the log."""

    done: int
    total: int
    record: dict[str, Any]


Event = ImagesDecoded | ImagesSkipped | RunStarted | WorkersStarted | ClientTrained | RoundEnded | ClientServed
Emit = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignore an event."""


def to_all(*listeners: Emit) -> Emit:
    """Return a function that passes every event to several listeners, in their order."""

    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return emit
