"""The engine of one machine or of a cluster: a round's client updates are tasks for workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbasis.engines.base import ClientData, Result, WorkerContext, Workers
from fedbasis.engines.client_state import ClientStates, state_of
from fedbasis.methods.base import Context, Sent
from fedbasis.networks.train import examples_of
from fedbasis.tensors.params import State

KEPT = "kept/"
"""The prefix of the groups of a client state that travels with a result."""


@dataclass(frozen=True)
class Update:
    """The item of a task: one client's update in one round."""

    client: str
    data: Any
    round: int
    seed: int
    kept: Path | State | None
    """The folder of all client states, or this client's own if the worker may be on another machine."""


def update(worker: WorkerContext, server: State, item: Update) -> Result:
    """Update one client from the server's state, its own data and its client state."""
    before = state_of(item.client, item.kept, item.round)
    received = worker.method.broadcast(server, item.client)
    context = Context(item.seed, item.client, worker.model, item.round)
    sent, kept = worker.method.client_update(received, before, examples_of(item.data), context)
    if isinstance(item.kept, Path):
        ClientStates(item.kept).write(item.client, item.round, kept)
        return sent.tensors, (sent.numbers, [])
    travelling = {KEPT + group: tensors for group, tensors in (kept or {}).items()}
    return {**sent.tensors, **travelling}, (sent.numbers, list(travelling))


class Simulation:
    """Clients whose data are here, updated by workers."""

    def __init__(self, workers: Workers, data: ClientData, seed: int, kept: ClientStates | None = None) -> None:
        self.workers, self._data, self._seed = workers, data, seed
        self.states = kept if kept is not None else ClientStates()

    def map(self, server: State, clients: Sequence[str], round: int) -> Iterator[tuple[str, Sent]]:
        """Update the named clients in this order and yield ``(client, what it sent)``."""
        items = [
            Update(c, self._data[c], round, self._seed, self.states.reference(c, round, self.workers.same_disk))
            for c in clients
        ]
        results = self.workers.run(update, server, items, clients)
        for client, (tensors, (numbers, travelled)) in zip(clients, results, strict=True):
            if travelled:
                self.states.write(client, round, {group.removeprefix(KEPT): tensors[group] for group in travelled})
                tensors = {group: named for group, named in tensors.items() if group not in travelled}  # noqa: PLW2901
            self.states.touch(client)
            yield client, Sent(tensors, numbers)

    def peak_memory(self) -> int:
        """Return the most bytes that the processes of this machine have held so far."""
        return self.workers.peak_memory()
