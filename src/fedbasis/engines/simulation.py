"""The engine of one machine or of a cluster: a round's updates as jobs for workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbasis.engines.base import Data, Desk, Result, Workers
from fedbasis.engines.client_state import Kept, kept_by
from fedbasis.methods.base import Context, Sent
from fedbasis.networks.train import examples_of
from fedbasis.tensors.params import State

KEPT = "kept/"
"""Before the groups of a kept state that travels with a result."""


@dataclass(frozen=True)
class Update:
    """A client's part in a round."""

    client: str
    data: Any
    round: int
    seed: int
    kept: Path | State | None
    """The folder of what clients keep, or what this one does if a worker may sit at another machine."""


def update(desk: Desk, server: State, item: Update) -> Result:
    """Update one client from the server's state, its own data and what it keeps."""
    before = kept_by(item.client, item.kept, item.round)
    received = desk.method.broadcast(server, item.client)
    context = Context(item.seed, item.client, desk.model, item.round)
    sent, kept = desk.method.client_update(received, before, examples_of(item.data), context)
    if isinstance(item.kept, Path):
        Kept(item.kept).write(item.client, item.round, kept)
        return sent.tensors, (sent.numbers, [])
    travelling = {KEPT + group: tensors for group, tensors in (kept or {}).items()}
    return {**sent.tensors, **travelling}, (sent.numbers, list(travelling))


class Federation:
    """Clients whose data are here, updated by workers."""

    def __init__(self, workers: Workers, data: Data, seed: int, kept: Kept | None = None) -> None:
        self.workers, self._data, self._seed = workers, data, seed
        self.kept = kept if kept is not None else Kept()

    def map(self, server: State, clients: Sequence[str], round: int) -> Iterator[tuple[str, Sent]]:
        """Update the named clients in this order and yield ``(client, what it sent)``."""
        items = [
            Update(c, self._data[c], round, self._seed, self.kept.reference(c, round, self.workers.same_disk))
            for c in clients
        ]
        results = self.workers.run(update, server, items, clients)
        for client, (tensors, (numbers, travelled)) in zip(clients, results, strict=True):
            if travelled:
                self.kept.write(client, round, {group.removeprefix(KEPT): tensors[group] for group in travelled})
                tensors = {group: named for group, named in tensors.items() if group not in travelled}  # noqa: PLW2901
            self.kept.touch(client)
            yield client, Sent(tensors, numbers)

    def peak_memory(self) -> int:
        """Return the most bytes that the processes of this machine have held so far."""
        return self.workers.peak_memory()
