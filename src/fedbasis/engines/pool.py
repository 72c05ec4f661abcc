"""Workers in processes of this machine, one thread each: for small networks faster than one process of many threads.

The state that tasks share is written to one file and mapped by every worker, so it is in memory once. Results are
returned in the same way, so only the one that is being read is in this process. A worker that dies is replaced and its
task is run again. Workers are forked from a server process that has imported everything, so a new one starts in
milliseconds, and they share that memory too.
"""

import queue
import shutil
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from fedbasis.engines.base import Result, WorkerContext, WorkFunction
from fedbasis.engines.processes import (
    WorkerDiedError,
    WorkerProcess,
    WorkerStoppedError,
    peak_memory,
    portable,
    worker_context,
)
from fedbasis.engines.transport import dumps, loads
from fedbasis.methods.base import Method
from fedbasis.tensors import packed as pack
from fedbasis.tensors.params import State
from pflbed.errors import InputError
from pflbed.interrupts import deaf_to_interrupts

TRIES = 3
"""How often a task may crash its process before it fails."""
PRELOADED = [__name__, "fedbasis.serving.evaluation"]


class WorkerError(Exception):
    """An error in a worker, with the worker's traceback."""


def error_to_send(error: Exception, where: str) -> Exception:
    """Turn an error of a task into one that can be sent: input and file errors unchanged, others with a traceback."""
    if isinstance(error, InputError):
        return error
    if isinstance(error, OSError):  # a full disk, for example, is not a bug
        return portable(error)
    return WorkerError(f"{error!r} in a worker {where}\n{traceback.format_exc()}")


def task_failed(name: str, how: str, killed: bool) -> InputError:
    """Return the error of a task that ended every process that ran it; ``killed``: by SIGKILL."""
    memory = "; there may be too little memory: lower the number of workers" if killed else ""
    return InputError(
        f"A worker must run until its task is done, but the task of {name} ended its process {TRIES} times "
        f"({how}){memory}."
    )


@dataclass
class _PendingTask:
    """A task that is not done yet."""

    number: int
    name: str
    message: tuple[Any, ...]
    answers: "queue.SimpleQueue[tuple[_PendingTask, Any]]"


class Pool:
    """Worker processes of this machine; they start with the first task and end with ``close``, or with this process.

    Args:
        method: The method whose tasks they run.
        devices: The torch device of every worker.
        threads: The torch threads of every worker.
    """

    same_disk = True

    def __init__(self, method: Method, devices: Sequence[str], threads: int = 1) -> None:
        self._context = worker_context(PRELOADED)
        self._method, self._devices, self._threads = method, list(devices), threads
        self._pending: queue.SimpleQueue[_PendingTask | None] = queue.SimpleQueue()
        self._workers: list[_PoolWorker] = []
        self._scratch: Path | None = None
        self._runs = 0

    def run(
        self, function: WorkFunction, shared: State, items: Sequence[Any], names: Sequence[str]
    ) -> Iterator[Result]:
        """Yield the results in the order of the items; the workers run the tasks in parallel."""
        scratch = self._start()
        self._runs += 1
        shared_file = scratch / f"shared-{self._runs}"
        pack.write(shared_file, shared)
        answers: queue.SimpleQueue[tuple[_PendingTask, Any]] = queue.SimpleQueue()
        for number, (item, name) in enumerate(zip(items, names, strict=True)):
            message = function, shared_file, item, scratch / f"result-{self._runs}-{number}"
            self._pending.put(_PendingTask(number, name, message, answers))
        done: dict[int, tuple[Path, Any]] = {}
        finished = False
        try:
            for number in range(len(items)):
                while number not in done:
                    task, answer = answers.get()
                    if isinstance(answer, BaseException):
                        raise answer
                    done[task.number] = task.message[3], answer
                result_file, rest = done.pop(number)
                state = pack.mapped(result_file)
                result_file.unlink()  # what is mapped stays readable
                yield state, rest
            finished = True
        finally:
            shared_file.unlink(missing_ok=True)
            if not finished:
                self.close()  # the other results are not needed

    def _start(self) -> Path:
        if self._scratch is None:
            method = dumps(self._method)
            self._scratch = Path(tempfile.mkdtemp(prefix="fedbasis-pool-"))
            self._workers = [
                _PoolWorker(
                    WorkerProcess(self._context, _work, (method, device, self._threads), self._scratch), self._pending
                )
                for device in self._devices
            ]
        return self._scratch

    def peak_memory(self) -> int:
        """Return the peak memory of this process and the workers, in bytes; shared memory counts for each."""
        return peak_memory(*(worker.process.pid for worker in self._workers))

    def close(self) -> None:
        """Kill all processes and remove their files."""
        for worker in self._workers:
            worker.process.stop()
        for _ in self._workers:
            self._pending.put(None)
        for worker in self._workers:
            worker.thread.join(timeout=0.1)  # one that is starting a process kills it as soon as it has started
        self._workers, self._pending = [], queue.SimpleQueue()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def __str__(self) -> str:
        places = ", ".join(f"{self._devices.count(place)} on {place}" for place in dict.fromkeys(self._devices))
        threads = f" of {self._threads} threads" if self._threads > 1 else ""
        return f"{len(self._devices)} processes{threads} ({places})"


class _PoolWorker:
    """A worker process, and the thread of this process that sends it one task after another.

    Only this thread waits for the process, so the main thread can receive Ctrl-C at any time.
    """

    def __init__(self, process: WorkerProcess, pending: "queue.SimpleQueue[_PendingTask | None]") -> None:
        self.process, self._pending = process, pending
        self.thread = threading.Thread(target=self._give_tasks, daemon=True)
        with deaf_to_interrupts():
            self.thread.start()

    def _give_tasks(self) -> None:
        while (task := self._pending.get()) is not None:
            try:
                answer = self._ask(task)
            except WorkerStoppedError:
                return
            except Exception as error:  # noqa: BLE001  (it is raised again by the thread that waits for it)
                answer = error
            task.answers.put((task, answer))

    def _ask(self, task: _PendingTask) -> Any:
        """Run a task, again if its process dies, and return the answer."""
        deaths = 0
        while True:
            try:
                self.process.send(task.message)
                return self.process.receive()
            except WorkerDiedError as death:
                deaths += 1
                if deaths == TRIES:
                    return task_failed(task.name, str(death), death.killed)


def _work(connection: Connection, method: bytes, device: str, threads: int) -> None:
    """Run one task after another until the pipe is closed."""
    torch.set_num_threads(threads)
    worker: WorkerContext | None = None
    known, shared = None, State()
    while True:
        message = connection.recv_bytes()
        try:
            if worker is None:
                worker = WorkerContext(loads(method), device)
            function, shared_file, item, result_file = loads(message)
            if shared_file != known:
                worker.cache.clear()
                known, shared = shared_file, pack.mapped(shared_file)
            state, answer = function(worker, shared, item)
            pack.write(result_file, state)
            data = dumps(answer)
        except Exception as error:  # noqa: BLE001  (it is raised again by the process that waits for it)
            data = dumps(error_to_send(error, "process"))
        connection.send_bytes(data)
