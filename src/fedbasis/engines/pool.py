"""Workers in processes of this machine, one thread each: for small networks that beats one process of many threads.

The state that jobs share is written to one file and mapped by every worker, so it is in memory once; results come back
the same way, so that only the one that is looked at is in this process. A worker that dies is replaced and its job is
done again. Workers come from a server process that has imported everything, which makes a new one a matter of
milliseconds and lets them share that memory too.
"""

import contextlib
import multiprocessing
import queue
import shutil
import signal
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from fedbasis.engines.base import Result, WorkerContext, WorkFunction
from fedbasis.engines.processes import end_with_parent, peak_memory, portable
from fedbasis.methods.base import Method
from fedbasis.tensors import packed as pack
from fedbasis.tensors.params import State
from pflbed.errors import InputError
from pflbed.interrupts import deaf_to_interrupts

TRIES = 3
"""So often a job may end the process that does it."""
PRELOADED = [__name__, "fedbasis.serving.evaluation", "torch._dynamo"]
"""The last one is imported by the first optimizer of a process, and takes a second."""
STARTING = threading.Lock()
"""One process is started at a time: several threads may replace dead ones."""
START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


@dataclass
class _PendingTask:
    """One job on its way."""

    number: int
    name: str
    message: tuple[Any, ...]
    answers: "queue.SimpleQueue[tuple[_PendingTask, Any]]"
    tries: int = 0


class WorkerError(Exception):
    """What went wrong in a worker, with the place where it did."""


def crashed(name: str, how: str) -> InputError:
    """Say that a job ended every process that tried it."""
    return InputError(
        f"A worker must live through its job, but the one for {name} ended its process {TRIES} times ({how}); there "
        "may be too little memory: lower the number of workers."
    )


class Pool:
    """So many processes; they start with the first job and end with ``close``, or with this process."""

    same_disk = True

    def __init__(self, method: Method, devices: Sequence[str], threads: int = 1) -> None:
        self._context: Any = multiprocessing.get_context(START)
        if START == "forkserver":
            self._context.set_forkserver_preload(PRELOADED)
        self._method, self._devices, self._threads = method, list(devices), threads
        self._pending: queue.SimpleQueue[_PendingTask | None] = queue.SimpleQueue()
        self._workers: list[_WorkerHandle] = []
        self._scratch: Path | None = None
        self._sent = 0

    def run(self, job: WorkFunction, shared: State, items: Sequence[Any], names: Sequence[str]) -> Iterator[Result]:
        """Yield the results in the order of the items; all workers are kept busy in the meantime."""
        scratch = self._start()
        self._sent += 1
        place = scratch / f"shared-{self._sent}"
        pack.write(place, shared)
        answers: queue.SimpleQueue[tuple[_PendingTask, Any]] = queue.SimpleQueue()
        for number, (item, name) in enumerate(zip(items, names, strict=True)):
            message = job, place, item, scratch / f"result-{self._sent}-{number}"
            self._pending.put(_PendingTask(number, name, message, answers))
        came: dict[int, tuple[Path, Any]] = {}
        finished = False
        try:
            for number in range(len(items)):
                while number not in came:
                    task, answer = answers.get()
                    if isinstance(answer, BaseException):
                        raise answer
                    came[task.number] = task.message[3], answer
                result, rest = came.pop(number)
                state = pack.mapped(result)
                result.unlink()  # what is mapped stays readable
                yield state, rest
            finished = True
        finally:
            place.unlink(missing_ok=True)
            if not finished:
                self.close()  # nobody wants the other results: leave no worker busy with them

    def _start(self) -> Path:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="fedbasis-pool-"))
            self._workers = [
                _WorkerHandle(self._context, (self._method, device, self._threads, self._scratch), self._pending)
                for device in self._devices
            ]
        return self._scratch

    def peak_memory(self) -> int:
        """Return the most bytes that this process and the workers have held so far; what they share counts for each."""
        return peak_memory(*(handle.process.pid or 0 for handle in self._workers if handle.process is not None))

    def close(self) -> None:
        """End all processes at once and remove what they left."""
        for handle in self._workers:
            handle.kill()
        for _ in self._workers:
            self._pending.put(None)
        for handle in self._workers:
            handle.thread.join(timeout=0.1)  # one that still starts its process ends it as soon as it is there
        self._workers, self._pending = [], queue.SimpleQueue()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def __str__(self) -> str:
        places = ", ".join(f"{self._devices.count(place)} on {place}" for place in dict.fromkeys(self._devices))
        threads = f" of {self._threads} threads" if self._threads > 1 else ""
        return f"{len(self._devices)} processes{threads} ({places})"


class _WorkerHandle:
    """A worker process and the thread here that starts it, keeps it busy, and replaces it when it dies.

    Nothing waits for a process to start but its own thread, so Ctrl-C is heard meanwhile.
    """

    def __init__(self, context: Any, task: tuple[Any, ...], pending: "queue.SimpleQueue[_PendingTask | None]") -> None:
        self._context, self._task, self._pending = context, task, pending
        self._ended = False
        self._lock = threading.Lock()
        self.process: BaseProcess | None = None
        self._line: Connection | None = None
        self.thread = threading.Thread(target=self._serve_tasks, daemon=True)
        self.thread.start()

    def _start_process(self) -> Connection | None:
        """Start a process; nothing comes of it if nobody wants it any more."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, *self._task), daemon=True)
        with deaf_to_interrupts(), _main_left_out(unless=self._task[0]):
            process.start()
        theirs.close()  # so that the end of the process is the end of the line
        with self._lock:
            if self._ended:
                process.kill()
                return None
            self.process, self._line = process, ours
        return self._line

    def _serve_tasks(self) -> None:
        while (task := self._pending.get()) is not None and not self._ended:
            try:
                answer = self._ask(task)
            except Exception as error:  # noqa: BLE001  (it is raised again by whoever waits for it)
                answer = (error,)
            if answer is not None:
                task.answers.put((task, answer[0]))

    def _ask(self, task: _PendingTask) -> tuple[Any] | None:
        """Have the job done, again if its process dies of it, and return its answer; none if nobody wants it now."""
        while True:
            line = self._line or self._start_process()
            if line is None:
                return None
            with contextlib.suppress(EOFError, OSError):
                line.send(task.message)
                return (line.recv(),)
            if self._ended or self.process is None:
                return None
            self.process.join()
            line.close()
            self._line, code = None, self.process.exitcode
            task.tries += 1
            if task.tries == TRIES:
                return (crashed(task.name, f"exit code {code}"),)

    def kill(self) -> None:
        """End the process at once."""
        with self._lock:
            self._ended = True
            if self.process is not None:
                self.process.kill()


@contextlib.contextmanager
def _main_left_out(unless: Method) -> Iterator[None]:
    """Keep processes that start now from importing the user's script, which explodes if it lacks the guard
    ``if __name__ == "__main__"``; it is needed only where the method itself was written there.
    """
    with STARTING:
        main = sys.modules["__main__"]
        if type(unless).__module__ != "__main__":
            sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _work(line: Connection, method: Method, device: str, threads: int, scratch: Path) -> None:
    """Be a worker: do one job after another until the line ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(leave=lambda: shutil.rmtree(scratch, ignore_errors=True))
    torch.set_num_threads(threads)
    worker = WorkerContext(method, device)
    known, shared = None, State()
    with contextlib.suppress(EOFError, OSError):
        while True:
            job, place, item, result = line.recv()
            try:
                if place != known:
                    worker.cache.clear()
                    known, shared = place, pack.mapped(place)
                state, answer = job(worker, shared, item)
                pack.write(result, state)
            except InputError as error:
                answer = error
            except OSError as error:  # a full disk, for example, is nobody's bug
                answer = portable(error)
            except Exception as error:  # noqa: BLE001  (it is raised again by whoever waits for it)
                answer = WorkerError(f"{error!r} in a worker process\n{traceback.format_exc()}")
            line.send(answer)
    shutil.rmtree(scratch, ignore_errors=True)  # nobody is there any more to do it
