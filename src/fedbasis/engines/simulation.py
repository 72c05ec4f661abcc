"""The engine of a simulation, on one machine or a cluster: a round's client updates are tasks for workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbasis.engines.base import ClientData, Result, WorkerContext, Workers
from fedbasis.engines.client_state import ClientStates, state_of
from fedbasis.engines.download import Download, as_received, to_send
from fedbasis.methods.base import Context, Sent
from fedbasis.networks.inputs import examples_of
from fedbasis.tensors.params import State

CLIENT_STATE = "client_state/"
"""The prefix of the groups of a client state that is returned with the result of a task."""


@dataclass(frozen=True)
class ClientTask:
    """The item of a task: one client's update in one round.

    Args:
        client: The client's name.
        data: Its images.
        round: The number of the round, from 0.
        seed: The seed of the run.
        client_state: The folder of all client states, or the state of this client if the worker may be on another
            machine; None if it has none.
        download: The precision in which the client receives tensors.
    """

    client: str
    data: Any
    round: int
    seed: int
    client_state: Path | State | None
    download: Download = "float32"


def update(worker: WorkerContext, server: State, item: ClientTask) -> Result:
    """Update one client from the server's state, its data and its client state."""
    before = state_of(item.client, item.client_state, item.round)
    received = _rounded(worker, worker.method.broadcast(server, item.client), item.download)
    context = Context(item.seed, item.client, worker.model, item.round)
    data = examples_of(item.data).to(worker.device)
    with context.random_layers():
        sent, after = worker.method.client_update(received, before, data, context)
    if isinstance(item.client_state, Path):
        ClientStates(item.client_state).write(item.client, item.round, after)
        return sent.tensors, (sent.numbers, [])
    returned = {CLIENT_STATE + group: tensors for group, tensors in (after or {}).items()}
    return {**sent.tensors, **returned}, (sent.numbers, list(returned))


def _rounded(worker: WorkerContext, sent: State, download: Download) -> State:
    """Round what a client receives; most methods send all clients the same, which is rounded once."""
    if download == "float32":
        return sent
    before = worker.cache.get(_rounded)
    same = before is not None and _tensors(before[0]) == _tensors(sent)
    if not same:
        worker.cache[_rounded] = (
            sent,
            as_received(to_send(worker.method, sent, download), worker.method.task.layout.shapes),
        )
    rounded: State = worker.cache[_rounded][1]
    return rounded


def _tensors(state: State) -> list[int]:
    return [id(tensor) for tensors in state.values() for tensor in tensors.values()]


class Simulation:
    """The engine of clients whose data are on this machine.

    Args:
        workers: The workers that run the updates.
        data: The clients' training images.
        seed: The seed of the run.
        states: The client states; None: stored in a temporary folder.
        download: The precision in which clients receive the server's tensors.
    """

    def __init__(
        self,
        workers: Workers,
        data: ClientData,
        seed: int,
        states: ClientStates | None = None,
        *,
        download: Download = "float32",
    ) -> None:
        self.workers, self._data, self._seed, self._download = workers, data, seed, download
        self.states = states if states is not None else ClientStates()

    def map(self, server: State, clients: Sequence[str], round: int) -> Iterator[tuple[str, Sent]]:
        """Update the named clients and yield ``(client, update)``, in this order."""
        items = [
            ClientTask(
                client,
                self._data[client],
                round,
                self._seed,
                self.states.reference(client, round, self.workers.same_disk),
                self._download,
            )
            for client in clients
        ]
        results = self.workers.run(update, server, items, clients)
        for client, (tensors, (numbers, returned)) in zip(clients, results, strict=True):
            if returned:
                state = {group.removeprefix(CLIENT_STATE): tensors[group] for group in returned}
                self.states.write(client, round, state)
                tensors = {group: named for group, named in tensors.items() if group not in returned}  # noqa: PLW2901
            self.states.touch(client)
            yield client, Sent(tensors, numbers)

    def peak_memory(self) -> int:
        """Return the peak memory of the processes of this machine, in bytes."""
        return self.workers.peak_memory()
