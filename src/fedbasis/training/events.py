"""What a run reports while it works: one kind of object for each event, sent to one callback.

Whoever starts a run passes ``emit``, a function of one event. Several listeners are one function that calls them all;
another process sends the events through a pipe as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ImagesDecoded:
    """So many of all images are decoded."""

    done: int
    total: int


@dataclass(frozen=True)
class ImagesSkipped:
    """These images could not be read and are left out: path and reason."""

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
    """Whether the run had ended before, so that its results are only read."""


@dataclass(frozen=True)
class WorkersStarted:
    """These workers do the work."""

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
    """Listen to nothing."""


def to_all(*listeners: Emit) -> Emit:
    """Send every event to several listeners, in their order."""

    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return emit
