"""Workers in the processes of a Ray cluster, on this machine or on many.

The state that tasks share is put into the cluster's object store once, and so are images that several tasks need; every
machine fetches them once. All else is sent with the task, so the other machines need this package but none of the data.
A worker gets its next task before it is done with the last one. A worker that dies is replaced and its task is run
again.
"""

import socket
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fedbasis
from fedbasis.engines.base import Result, WorkerContext, WorkFunction
from fedbasis.engines.pool import TRIES, WorkerError, error_to_send, task_failed
from fedbasis.engines.processes import peak_memory
from fedbasis.engines.ray.connection import RayConnection, placement_of
from fedbasis.engines.ray.transfer import ObjectCache, extract, from_arrays, insert
from fedbasis.engines.transport import dumps, loads
from fedbasis.methods.base import Method
from fedbasis.tensors import packed as pack
from fedbasis.tensors.params import State
from pflbed.errors import InputError

IN_FLIGHT = 2
"""How many tasks a worker has at a time: one that runs, and the next one, which is sent meanwhile."""
START_SECONDS = 300.0
"""How long a cluster may take to start the first worker."""


class RayWorker:
    """The actor that runs on the cluster: it runs one task after another."""

    def __init__(self, method: bytes, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._method, self._device = method, device
        self._worker: WorkerContext | None = None
        self._known, self._shared = 0, State()

    def hello(self) -> tuple[str, tuple[str, str]]:
        """Return the name of the actor's machine, and its versions of fedbasis and torch."""
        return socket.gethostname(), _versions()

    def do(
        self, function: WorkFunction, number: int, block: NDArray[np.uint8], item: Any, *objects: Any
    ) -> tuple[Any, Any]:
        """Run a task with the shared state of this number; return its small result, or an error, and its tensors."""
        try:
            if self._worker is None:
                self._worker = WorkerContext(loads(self._method), self._device)
            if number != self._known:
                self._worker.cache.clear()
                self._known, self._shared = number, pack.unpacked(block.copy())  # the store is read-only
            state, rest = function(
                self._worker, self._shared, insert(item, [from_arrays(arrays) for arrays in objects])
            )
            return rest, pack.packed(state)
        except Exception as error:  # noqa: BLE001  (it is raised again by the process that waits for it)
            return error_to_send(error, f"at {socket.gethostname()}"), None


def _versions() -> tuple[str, str]:
    return fedbasis.__version__, torch.__version__


@dataclass
class _PendingTask:
    """A task that is not done yet."""

    number: int
    name: str
    item: Any
    deaths: int = 0
    """How many workers died while they ran it."""
    answer: Any = None
    """A reference to the small result, then that result."""
    tensors: Any = None
    """A reference to the tensors, which stay in the object store until they are read."""


@dataclass
class _RayWorkerHandle:
    """An actor, with its pending tasks."""

    actor: Any
    hello: Any
    """A reference to its first answer; None once that is received."""
    pending: deque[_PendingTask] = field(default_factory=deque)
    """Its tasks, in the order in which it runs them."""

    @property
    def next(self) -> Any:
        """The reference to its next answer, or None if it has no task."""
        if self.hello is not None:
            return self.hello
        return self.pending[0].answer if self.pending else None


class Cluster:
    """Workers in a Ray cluster; they start with the first task and end with ``close``.

    Args:
        method: The method whose tasks they run.
        workers: The number of workers; None: as many as fit.
        threads: The torch threads of every worker.
        device: A torch device, or "auto".
    """

    same_disk = False

    def __init__(self, method: Method, workers: int | None = None, threads: int = 1, device: str = "auto") -> None:
        self._connection = RayConnection((workers or 1) * threads)
        self._ray = self._connection.ray
        try:
            self.plan = placement_of(self._ray.cluster_resources(), workers, threads, device)
        except InputError:
            self._connection.close()
            raise
        self._method = method
        self._sent_method: Any = None
        self._workers: list[_RayWorkerHandle] = []
        self._object_cache = ObjectCache(self._ray.put)
        self._runs, self._failed = 0, 0

    def run(
        self, function: WorkFunction, shared: State, items: Sequence[Any], names: Sequence[str]
    ) -> Iterator[Result]:
        """Yield the results in the order of the items; the workers run the tasks in parallel."""
        self._workers = self._workers or [self._start_worker() for _ in range(self.plan.count)]
        self._runs += 1
        call = function, self._runs, self._ray.put(pack.packed(shared))
        waiting = deque(_PendingTask(i, name, item) for i, (item, name) in enumerate(zip(items, names, strict=True)))
        done: dict[int, _PendingTask] = {}
        finished = False
        try:
            for task in tuple(waiting):
                while True:
                    while task.number not in done:
                        self._assign(call, waiting)
                        self._collect(waiting, done)
                    try:
                        block = self._ray.get(done.pop(task.number).tensors)
                        break
                    except self._ray.exceptions.RayError as lost:  # with the machine that held it
                        self._count_death(task, lost)
                        waiting.appendleft(task)
                task.item = task.tensors = None
                yield pack.unpacked(block.copy()), task.answer
            finished = True
        finally:
            if not finished:
                self._stop_workers()  # the other results are not needed

    def _assign(self, call: tuple[WorkFunction, int, Any], waiting: deque[_PendingTask]) -> None:
        """Send tasks to workers, first to those that have none."""
        for few in range(IN_FLIGHT):
            for handle in self._workers:
                if waiting and handle.hello is None and len(handle.pending) == few:
                    task = waiting.popleft()
                    item, objects = extract(task.item)
                    do = handle.actor.do.options(num_returns=2)
                    task.answer, task.tensors = do.remote(*call, item, *(self._object_cache.sent(c) for c in objects))
                    handle.pending.append(task)

    def _collect(self, waiting: deque[_PendingTask], done: dict[int, _PendingTask]) -> None:
        """Wait until a worker has started, has finished a task, or has died."""
        errors = self._ray.exceptions
        expected = {handle.next: handle for handle in self._workers if handle.next is not None}
        ready, _ = self._ray.wait(list(expected), timeout=START_SECONDS, fetch_local=False)
        if not ready and all(handle.hello is not None for handle in self._workers):
            raise InputError(
                f"{self._connection} must have room for a worker of {self.plan.cpus} CPUs and {self.plan.gpus:g} GPUs, "
                f"but started none within {START_SECONDS:g} seconds; wait for free resources, or lower machine.workers "
                "or machine.threads."
            )
        for handle in (expected[reference] for reference in ready):
            try:
                answer = self._ray.get(handle.next)
            except errors.RayTaskError as error:
                raise WorkerError(f"A worker could not read its task\n{error}") from error
            except errors.RayError as lost:
                self._replace(handle, waiting, lost)
                continue
            if handle.hello is not None:
                _check(*answer)
                handle.hello, self._failed = None, 0
            else:
                if isinstance(answer, Exception):
                    raise answer
                task = handle.pending.popleft()
                task.answer = answer
                done[task.number] = task

    def _replace(self, handle: _RayWorkerHandle, waiting: deque[_PendingTask], lost: Exception) -> None:
        """Start a new worker in place of a dead one, whose tasks are run next."""
        if handle.hello is not None:
            self._failed += 1
            if self._failed == TRIES:
                raise WorkerError(f"No worker could start at {self._connection}\n{lost}") from lost
        else:
            self._count_death(handle.pending[0], lost)  # the others had not started
        waiting.extendleft(reversed(handle.pending))
        self._ray.kill(handle.actor)  # it may still run if only the connection failed
        self._workers[self._workers.index(handle)] = self._start_worker()

    def _count_death(self, task: _PendingTask, lost: Exception) -> None:
        task.deaths += 1
        if task.deaths == TRIES:
            memory = isinstance(lost, self._ray.exceptions.OutOfMemoryError)
            raise task_failed(task.name, type(lost).__name__, memory) from lost

    def _start_worker(self) -> _RayWorkerHandle:
        plan = self.plan
        if self._sent_method is None:
            self._sent_method = self._ray.put(dumps(self._method))
        kind = self._ray.remote(num_cpus=plan.cpus, num_gpus=plan.gpus, max_restarts=0)(RayWorker)
        actor = kind.remote(self._sent_method, plan.device, plan.cpus)
        return _RayWorkerHandle(actor, actor.hello.remote())

    def _stop_workers(self) -> None:
        for handle in self._workers if self._ray.is_initialized() else []:
            self._ray.kill(handle.actor)
        self._workers = []

    def peak_memory(self) -> int:
        """Return the peak memory of this process, in bytes, without the workers."""
        return peak_memory()

    def close(self) -> None:
        """Stop the workers, and the cluster if it was started here."""
        self._stop_workers()
        self._object_cache.clear()
        self._sent_method = None
        self._connection.close()

    def __str__(self) -> str:
        threads = f" of {self.plan.cpus} threads" if self.plan.cpus > 1 else ""
        return f"{self.plan.count} processes{threads} on {self.plan.device}, in {self._connection}"


def _check(place: str, versions: tuple[str, str]) -> None:
    if versions != _versions():
        (here, torch_here), (there, torch_there) = _versions(), versions
        raise InputError(
            f"All machines must have the same fedbasis and torch for the same results, but here they are {here} and "
            f"{torch_here}, and at {place} {there} and {torch_there}; install the same ones."
        )
