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
from fedbasis.engines.base import Result, WorkerContext, WorkFunction
from fedbasis.engines.pool import TRIES, WorkerError, crashed
from fedbasis.engines.processes import peak_memory, portable
from fedbasis.engines.ray.connection import RayConnection, placement_of
from fedbasis.engines.ray.transfer import ObjectCache, extract, from_arrays, insert
from fedbasis.methods.base import Method
from fedbasis.tensors import packed as pack
from fedbasis.tensors.params import State
from pflbed.errors import InputError

IN_FLIGHT = 2
"""So many jobs a worker has at a time: one to do, and the next one, which travels meanwhile."""
PATIENCE = 300.0
"""So many seconds a cluster may take to give us the first worker."""


class RayWorker:
    """What runs at the cluster: a desk, and the shared state it has now."""

    def __init__(self, method: Method, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._method, self._device = method, device
        self._worker: WorkerContext | None = None
        self._known, self._shared = 0, State()

    def hello(self) -> tuple[str, tuple[str, str]]:
        """Say where this is, and what is installed there."""
        return socket.gethostname(), _versions()

    def do(self, job: WorkFunction, number: int, block: NDArray[np.uint8], item: Any, *objects: Any) -> tuple[Any, Any]:
        """Do a job with the shared state of this number; return what is small, or an error, and the tensors' bytes."""
        try:
            if self._worker is None:
                self._worker = WorkerContext(self._method, self._device)
            if number != self._known:
                self._worker.cache.clear()
                self._known, self._shared = number, pack.unpacked(block.copy())  # nobody may write to the store
            state, rest = job(self._worker, self._shared, insert(item, [from_arrays(arrays) for arrays in objects]))
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
class _PendingTask:
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
class _WorkerHandle:
    """A worker as seen from here."""

    actor: Any
    hello: Any
    """Comes when the worker has found its place; nothing once it has been heard."""
    pending: deque[_PendingTask] = field(default_factory=deque)
    """What it was given, in the order in which it does it."""

    @property
    def next(self) -> Any:
        """What will be heard of it next, if anything."""
        if self.hello is not None:
            return self.hello
        return self.pending[0].answer if self.pending else None


class Cluster:
    """So many workers of a cluster; they start with the first job and end with ``close``."""

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
        self._task: Any = None
        self._workers: list[_WorkerHandle] = []
        self._object_cache = ObjectCache(self._ray.put)
        self._sent, self._failed = 0, 0

    def run(self, job: WorkFunction, shared: State, items: Sequence[Any], names: Sequence[str]) -> Iterator[Result]:
        """Yield the results in the order of the items; all workers are kept busy in the meantime."""
        self._workers = self._workers or [self._start_worker() for _ in range(self.plan.count)]
        self._sent += 1
        call = job, self._sent, self._ray.put(pack.packed(shared))
        waiting = deque(_PendingTask(i, name, item) for i, (item, name) in enumerate(zip(items, names, strict=True)))
        came: dict[int, _PendingTask] = {}
        finished = False
        try:
            for task in tuple(waiting):
                while True:
                    while task.number not in came:
                        self._assign(call, waiting)
                        self._collect(waiting, came)
                    try:
                        block = self._ray.get(came.pop(task.number).tensors)
                        break
                    except self._ray.exceptions.RayError as lost:  # with the machine where it lay
                        waiting.extendleft([_count_failure(task, lost)])
                task.item = task.tensors = None
                yield pack.unpacked(block.copy()), task.answer
            finished = True
        finally:
            if not finished:
                self._stop_workers()  # nobody wants the other results: leave no worker busy with them

    def _assign(self, call: tuple[WorkFunction, int, Any], waiting: deque[_PendingTask]) -> None:
        """Hand out jobs, first to those who have none."""
        for few in range(IN_FLIGHT):
            for handle in self._workers:
                if waiting and handle.hello is None and len(handle.pending) == few:
                    task = waiting.popleft()
                    item, objects = extract(task.item)
                    do = handle.actor.do.options(num_returns=2)
                    task.answer, task.tensors = do.remote(*call, item, *(self._object_cache.sent(c) for c in objects))
                    handle.pending.append(task)

    def _collect(self, waiting: deque[_PendingTask], came: dict[int, _PendingTask]) -> None:
        """Wait until a worker is there or is done with a job, or dies."""
        errors = self._ray.exceptions
        expected = {handle.next: handle for handle in self._workers if handle.next is not None}
        ready, _ = self._ray.wait(list(expected), timeout=PATIENCE, fetch_local=False)
        if not ready and all(handle.hello is not None for handle in self._workers):
            raise InputError(
                f"{self._connection} must have room for a worker of {self.plan.cpus} CPUs and {self.plan.gpus:g} GPUs, "
                f"but gave none within {PATIENCE:g} seconds; wait until others are done, or ask for less."
            )
        for handle in (expected[reference] for reference in ready):
            try:
                answer = self._ray.get(handle.next)
            except errors.RayTaskError as error:
                raise WorkerError(f"A worker did not understand its job\n{error}") from error
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
                came[task.number] = task

    def _replace(self, handle: _WorkerHandle, waiting: deque[_PendingTask], lost: Exception) -> None:
        """Put a new worker in the place of a dead one; its jobs are the first to be done again."""
        if handle.hello is not None:
            self._failed += 1
            if self._failed == TRIES:
                raise WorkerError(f"No worker could start at {self._connection}\n{lost}") from lost
        else:
            _count_failure(handle.pending[0], lost)  # the others did not even begin
        waiting.extendleft(reversed(handle.pending))
        self._ray.kill(handle.actor)  # it may only be out of reach
        self._workers[self._workers.index(handle)] = self._start_worker()

    def _start_worker(self) -> _WorkerHandle:
        plan = self.plan
        if self._task is None:
            self._task = self._ray.put(self._method)
        kind = self._ray.remote(num_cpus=plan.cpus, num_gpus=plan.gpus, max_restarts=0)(RayWorker)
        actor = kind.remote(self._task, plan.device, plan.cpus)
        return _WorkerHandle(actor, actor.hello.remote())

    def _stop_workers(self) -> None:
        for handle in self._workers if self._ray.is_initialized() else []:
            self._ray.kill(handle.actor)
        self._workers = []

    def peak_memory(self) -> int:
        """Return the most bytes that this process has held so far; the workers may be anywhere."""
        return peak_memory()

    def close(self) -> None:
        """End the workers, and the cluster if it was started here."""
        self._stop_workers()
        self._object_cache.clear()
        self._task = None
        self._connection.close()

    def __str__(self) -> str:
        threads = f" of {self.plan.cpus} threads" if self.plan.cpus > 1 else ""
        return f"{self.plan.count} processes{threads} on {self.plan.device}, in {self._connection}"


def _count_failure(task: _PendingTask, lost: Exception) -> _PendingTask:
    task.tries += 1
    if task.tries == TRIES:
        raise crashed(task.name, type(lost).__name__) from lost
    return task


def _check(place: str, versions: tuple[str, str]) -> None:
    if versions != _versions():
        (here, torch_here), (there, torch_there) = _versions(), versions
        raise InputError(
            f"All machines must have the same fedbasis and torch for the same results, but here they are {here} and "
            f"{torch_here}, and at {place} {there} and {torch_there}; install the same ones."
        )
