"""Workers in the processes of a Ray cluster, at this machine or at many.

The state that jobs share is put into the cluster's store once, and so are images that many jobs look at; every machine
fetches them once. All else travels with the job, so the other machines need this package and nothing of the data. A
worker has its next job before it is done with one. A worker that dies is replaced and its job is done again.
"""

import socket
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fedbasis
from fedbasis.engines.base import Desk, Job, Result
from fedbasis.engines.pool import TRIES, WorkerError, deadly
from fedbasis.engines.processes import peak_memory, portable
from fedbasis.engines.ray.connection import Connection, crew_of
from fedbasis.engines.ray.transfer import Shelf, loaded, restored, unloaded
from fedbasis.methods.base import Method
from fedbasis.tensors import packed as pack
from fedbasis.tensors.params import State
from pflbed.errors import InputError

IN_FLIGHT = 2
"""So many jobs a worker has at a time: one to do, and the next one, which travels meanwhile."""
PATIENCE = 300.0
"""So many seconds a cluster may take to give us the first worker."""


class Worker:
    """What runs at the cluster: a desk, and the shared state it has now."""

    def __init__(self, method: Method, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._method, self._device = method, device
        self._desk: Desk | None = None
        self._known, self._shared = 0, State()

    def greet(self) -> tuple[str, tuple[str, str]]:
        """Say where this is, and what is installed there."""
        return socket.gethostname(), _versions()

    def do(self, job: Job, number: int, block: NDArray[np.uint8], item: Any, *cargo: Any) -> tuple[Any, Any]:
        """Do a job with the shared state of this number; return what is small, or an error, and the tensors' bytes."""
        try:
            if self._desk is None:
                self._desk = Desk(self._method, self._device)
            if number != self._known:
                self._desk.notes.clear()
                self._known, self._shared = number, pack.unpacked(block.copy())  # nobody may write to the store
            state, rest = job(self._desk, self._shared, loaded(item, [restored(arrays) for arrays in cargo]))
            return rest, pack.packed(state)
        except InputError as error:
            return error, None
        except OSError as error:
            return portable(error), None
        except Exception as error:  # noqa: BLE001  (it is raised again by whoever waits for it)
            return WorkerError(f"{error!r} in a worker at {socket.gethostname()}\n{traceback.format_exc()}"), None


def _versions() -> tuple[str, str]:
    return fedbasis.__version__, torch.__version__


@dataclass
class _Order:
    """One job on its way."""

    number: int
    name: str
    item: Any
    tries: int = 0
    answer: Any = None
    """A reference to what will come, then what came: something small ..."""
    tensors: Any = None
    """... and a block, which stays in the store until it is wanted."""


@dataclass
class _Hand:
    """A worker as seen from here."""

    actor: Any
    greeting: Any
    """Comes when the worker has found its place; nothing once it has been heard."""
    orders: deque[_Order] = field(default_factory=deque)
    """What it was given, in the order in which it does it."""

    @property
    def next(self) -> Any:
        """What will be heard of it next, if anything."""
        if self.greeting is not None:
            return self.greeting
        return self.orders[0].answer if self.orders else None


class Cluster:
    """So many workers of a cluster; they start with the first job and end with ``close``."""

    same_disk = False

    def __init__(self, method: Method, workers: int | None = None, threads: int = 1, device: str = "auto") -> None:
        self._connection = Connection((workers or 1) * threads)
        self._ray = self._connection.ray
        try:
            self.plan = crew_of(self._ray.cluster_resources(), workers, threads, device)
        except InputError:
            self._connection.close()
            raise
        self._method = method
        self._task: Any = None
        self._crew: list[_Hand] = []
        self._shelf = Shelf(self._ray.put)
        self._sent, self._failed = 0, 0

    def run(self, job: Job, shared: State, items: Sequence[Any], names: Sequence[str]) -> Iterator[Result]:
        """Yield the results in the order of the items; all workers are kept busy in the meantime."""
        self._crew = self._crew or [self._hired() for _ in range(self.plan.count)]
        self._sent += 1
        task = job, self._sent, self._ray.put(pack.packed(shared))
        todo = deque(_Order(i, name, item) for i, (item, name) in enumerate(zip(items, names, strict=True)))
        came: dict[int, _Order] = {}
        finished = False
        try:
            for order in tuple(todo):
                while True:
                    while order.number not in came:
                        self._give(task, todo)
                        self._hear(todo, came)
                    try:
                        block = self._ray.get(came.pop(order.number).tensors)
                        break
                    except self._ray.exceptions.RayError as lost:  # with the machine where it lay
                        todo.extendleft([_blamed(order, lost)])
                order.item = order.tensors = None
                yield pack.unpacked(block.copy()), order.answer
            finished = True
        finally:
            if not finished:
                self._dismiss()  # nobody wants the other results: leave no worker busy with them

    def _give(self, task: tuple[Job, int, Any], todo: deque[_Order]) -> None:
        """Hand out jobs, first to those who have none."""
        for few in range(IN_FLIGHT):
            for hand in self._crew:
                if todo and hand.greeting is None and len(hand.orders) == few:
                    order = todo.popleft()
                    item, cargo = unloaded(order.item)
                    do = hand.actor.do.options(num_returns=2)
                    order.answer, order.tensors = do.remote(*task, item, *(self._shelf.sent(c) for c in cargo))
                    hand.orders.append(order)

    def _hear(self, todo: deque[_Order], came: dict[int, _Order]) -> None:
        """Wait until a worker is there or is done with a job, or dies."""
        errors, waiting = self._ray.exceptions, {hand.next: hand for hand in self._crew if hand.next is not None}
        ready, _ = self._ray.wait(list(waiting), timeout=PATIENCE, fetch_local=False)
        if not ready and all(hand.greeting is not None for hand in self._crew):
            raise InputError(
                f"{self._connection} must have room for a worker of {self.plan.cpus} CPUs and {self.plan.gpus:g} GPUs, "
                f"but gave none within {PATIENCE:g} seconds; wait until others are done, or ask for less."
            )
        for hand in (waiting[reference] for reference in ready):
            try:
                answer = self._ray.get(hand.next)
            except errors.RayTaskError as error:
                raise WorkerError(f"A worker did not understand its job\n{error}") from error
            except errors.RayError as lost:
                self._replace(hand, todo, lost)
                continue
            if hand.greeting is not None:
                _check(*answer)
                hand.greeting, self._failed = None, 0
            else:
                if isinstance(answer, Exception):
                    raise answer
                order = hand.orders.popleft()
                order.answer = answer
                came[order.number] = order

    def _replace(self, hand: _Hand, todo: deque[_Order], lost: Exception) -> None:
        """Put a new worker in the place of a dead one; its jobs are the first to be done again."""
        if hand.greeting is not None:
            self._failed += 1
            if self._failed == TRIES:
                raise WorkerError(f"No worker could start at {self._connection}\n{lost}") from lost
        else:
            _blamed(hand.orders[0], lost)  # the others did not even begin
        todo.extendleft(reversed(hand.orders))
        self._ray.kill(hand.actor)  # it may only be out of reach
        self._crew[self._crew.index(hand)] = self._hired()

    def _hired(self) -> _Hand:
        plan = self.plan
        if self._task is None:
            self._task = self._ray.put(self._method)
        kind = self._ray.remote(num_cpus=plan.cpus, num_gpus=plan.gpus, max_restarts=0)(Worker)
        actor = kind.remote(self._task, plan.device, plan.cpus)
        return _Hand(actor, actor.greet.remote())

    def _dismiss(self) -> None:
        for hand in self._crew if self._ray.is_initialized() else []:
            self._ray.kill(hand.actor)
        self._crew = []

    def peak_memory(self) -> int:
        """Return the most bytes that this process has held so far; the workers may be anywhere."""
        return peak_memory()

    def close(self) -> None:
        """End the workers, and the cluster if it was started here."""
        self._dismiss()
        self._shelf.clear()
        self._task = None
        self._connection.close()

    def __str__(self) -> str:
        threads = f" of {self.plan.cpus} threads" if self.plan.cpus > 1 else ""
        return f"{self.plan.count} processes{threads} on {self.plan.device}, in {self._connection}"


def _blamed(order: _Order, lost: Exception) -> _Order:
    order.tries += 1
    if order.tries == TRIES:
        raise deadly(order.name, type(lost).__name__) from lost
    return order


def _check(place: str, versions: tuple[str, str]) -> None:
    if versions != _versions():
        (here, torch_here), (there, torch_there) = _versions(), versions
        raise InputError(
            f"All machines must have the same fedbasis and torch for the same results, but here they are {here} and "
            f"{torch_here}, and at {place} {there} and {torch_there}; install the same ones."
        )
