"""A supervised worker process, and helpers for worker processes."""

import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedbasis.engines.transport import dumps, loads
from pflbed.interrupts import deaf_to_interrupts

STARTING = threading.Lock()
"""One process is started at a time: several threads may replace dead ones."""
EXIT_SECONDS = 60.0
"""How long a process that has closed its pipe may take to exit before it is killed."""


def worker_context(preloaded: Sequence[str]) -> Any:
    """Return the multiprocessing context of worker processes.

    Workers are forked from a server process that has imported the modules ``preloaded``, so a new one starts in
    milliseconds and they share that memory. Where the system cannot do so, every worker imports what it needs.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preloaded))
    return context


class WorkerDiedError(Exception):
    """The process of a worker has ended; ``exit_code`` is minus the signal's number if a signal ended it."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code

    @property
    def killed(self) -> bool:
        """Whether it was ended by SIGKILL, as the Linux kernel does when memory runs out."""
        return self.exit_code == -signal.SIGKILL


class WorkerStoppedError(Exception):
    """The worker was stopped by ``stop``; it starts no new process."""


class WorkerProcess:
    """A worker process of this one, and the pipe to it.

    The process calls ``target(connection, *args)``. It starts with the first message. If it dies, ``send`` or
    ``receive`` raises ``WorkerDiedError``, and the next message starts another one. It ignores Ctrl-C. It ends when
    this process ends, for whatever reason, and then removes the folder ``scratch``. It never imports the user's script,
    so the script needs no guard ``if __name__ == "__main__"``. Every process has its own pipe, because a process that
    is killed while it writes would block a shared one. Any thread may call ``stop``; use the rest from one thread.
    """

    def __init__(
        self, context: Any, target: Callable[..., None], args: tuple[Any, ...] = (), scratch: Path | None = None
    ) -> None:
        self._context, self._target, self._args, self._scratch = context, target, args, scratch
        self._lock = threading.Lock()
        self._stopped = False
        self._process: BaseProcess | None = None
        self.connection: Connection | None = None
        """The pipe, for ``multiprocessing.connection.wait``; None while there is no process."""

    @property
    def pid(self) -> int | None:
        """The id of the process, or None before it has started."""
        return None if self._process is None else self._process.pid

    def send(self, message: Any) -> None:
        """Send a message; start a process if there is none, or if the last one died while it was idle."""
        data = dumps(message)
        for new in (self.connection is None, True):
            try:
                (self.connection or self._start()).send_bytes(data)
                return
            except OSError:
                end = self._end()
                if new or isinstance(end, WorkerStoppedError):
                    raise end from None

    def receive(self) -> Any:
        """Wait for the next message of the process."""
        if self.connection is None:
            raise WorkerDiedError(None)
        try:
            data = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise self._end() from None
        return loads(data)

    def stop(self) -> None:
        """Kill the process, also one that is just being started."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def join(self) -> None:
        """Wait until a stopped process is gone, and close the pipe."""
        if self._process is not None:
            self._process.join()
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _start(self) -> Connection:
        if self._stopped:
            raise WorkerStoppedError
        ours, theirs = self._context.Pipe()
        args = (theirs, self._scratch, self._target, self._args)
        process = self._context.Process(target=_run, args=args, daemon=True)
        with STARTING, deaf_to_interrupts(), _main_left_out():
            process.start()
        theirs.close()  # so that the pipe ends with the process
        with self._lock:
            self._process, self.connection = process, ours
            if self._stopped:
                process.kill()
        connection: Connection = ours
        return connection

    def _end(self) -> WorkerDiedError | WorkerStoppedError:
        """Wait for a process whose pipe is closed, and return the error that tells how it ended."""
        assert self._process is not None
        if not wait([self._process.sentinel], timeout=EXIT_SECONDS):
            self._process.kill()
        with STARTING:  # starting a process also collects exit codes of children, and each can be read only once
            self.join()
        return WorkerStoppedError() if self._stopped else WorkerDiedError(self._process.exitcode)


@contextlib.contextmanager
def _main_left_out() -> Iterator[None]:
    """Keep a process that starts now from importing the user's script; what it needs of it is pickled by value."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _run(connection: Connection, scratch: Path | None, target: Callable[..., None], args: tuple[Any, ...]) -> None:
    """Run in the new process: call the target until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent(scratch)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        target(connection, *args)
    _remove(scratch)


def _end_with_parent(scratch: Path | None) -> None:
    """Start a thread that ends this process when its parent has ended."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            wait([parent.sentinel])
            _remove(scratch)
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def peak_memory(*pids: int | None) -> int:
    """Return the sum of the peak memory of this process and of others of this machine, in bytes.

    ``ru_maxrss`` is asked only where there is no /proc: on Linux a process that was started by a larger one has the
    larger one's peak there.
    """
    own = _peak_of(os.getpid())
    if not own:
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return own + sum(_peak_of(pid) for pid in pids if pid is not None)


def reset_peak_memory() -> int:
    """Forget what this process has held so far, so that the next peak is that of what it does next.

    Returns:
        0, or this process's peak in bytes where the system cannot forget it: only a higher one is a new one.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return peak_memory()
    return 0


def _peak_of(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:  # it is gone, or there is no /proc
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def portable(error: OSError) -> OSError:
    """Return a file error of any subclass as a plain ``OSError``, which can be pickled."""
    return OSError(error.errno, error.strerror or str(error), error.filename)
