"""An engine is a map over clients: it owns their data and what they keep, and yields what they send, one at a time."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from fedbasis.algorithms.base import Sent
from fedbasis.params import State


class Engine(Protocol):
    """Run one round of client updates; the same seeds give the same bits whatever the engine."""

    kept: dict[str, State]

    def map(self, server: State, clients: Sequence[str], round: int) -> Iterator[tuple[str, Sent]]:
        """Update the named clients in this order and yield ``(client, what it sent)``."""
        ...
