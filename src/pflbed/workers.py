"""Worker processes that read images: each gets one small job after another over a pipe and answers with a line of JSON.

A worker is a ``python -c`` child process, not one of ``multiprocessing``: a fork in a process with torch's threads may
hang, and spawn and forkserver import the user's script again, which fails without the guard
``if __name__ == "__main__"``. When the pipe closes, however the parent ended, the worker exits. Jobs and answers are
JSON, so nothing that is read can be executed.
"""

import contextlib
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from pflbed.errors import InputError
from pflbed.images import Opener
from pflbed.interrupts import deaf_to_interrupts

Job = dict[str, Any]
Work = Callable[[Opener, Job], Any]
SMALL = 512
"""For fewer rows it takes longer to start processes than to read the images."""
_START = "import sys; sys.path[:] = {path!r}; from pflbed.workers import serve; serve()"


def cores() -> int:
    """The processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def how_many(workers: int | None, rows: int) -> int:
    """The number of processes: as given, else one per core if there are enough rows."""
    if workers is None:
        return cores() if rows >= SMALL else 1
    if workers < 1:
        raise InputError(f"workers must be at least 1 process, got {workers}; leave it out to use all cores")
    return workers


def run_jobs(
    work: Work, open_image: Opener, jobs: Mapping[int, Job], workers: int
) -> Generator[tuple[int, Any], None, None]:
    """Yield each job's key with ``work(open_image, job)``, in the order they get done; close it to stop the workers.

    Functions that other processes cannot import (of the script itself, or local ones) are called in this process.
    """
    names = [_name(work), _name(open_image)]
    workers = min(workers, len(jobs))
    if workers <= 1 or None in names or not sys.executable or getattr(sys, "frozen", False):
        for key, job in jobs.items():
            yield key, work(open_image, job)
        return
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for key in jobs:
        todo.put(key)
    answers: queue.SimpleQueue[tuple[int, bytes, int]] = queue.SimpleQueue()
    with _started(workers) as processes:
        drivers = [threading.Thread(target=_drive, args=(p, names, jobs, todo, answers)) for p in processes]
        try:
            with deaf_to_interrupts():
                for driver in drivers:
                    driver.start()
            for _ in jobs:
                key, line, code = answers.get()
                if code < 0:
                    raise InputError(
                        f"A process reading images must live until they are read, but one was ended by signal {-code}; "
                        "run the same again to go on from there, with fewer workers if memory is short"
                    )
                # A worker that failed sends no error: run the job here, where the same error is raised.
                yield key, json.loads(line) if line else work(open_image, jobs[key])
        finally:
            for process in processes:
                process.kill()  # it has no state to save
            for driver in drivers:
                if driver.ident is not None:
                    driver.join()


def _drive(
    process: "subprocess.Popen[bytes]",
    names: list[str | None],
    jobs: Mapping[int, Job],
    todo: "queue.SimpleQueue[int]",
    answers: "queue.SimpleQueue[tuple[int, bytes, int]]",
) -> None:
    """Send jobs to one worker; if it has exited, return its job and the following ones as not done."""
    code = 0
    first_line = json.dumps(names).encode() + b"\n"
    while True:
        try:
            key = todo.get_nowait()
        except queue.Empty:
            return
        line = b"" if code else _ask(process, first_line + json.dumps(jobs[key]).encode() + b"\n")
        first_line = b""
        if not line:
            code = code or process.wait() or 1
        answers.put((key, line, code))


def _ask(process: "subprocess.Popen[bytes]", question: bytes) -> bytes:
    """The complete answer of a worker, or nothing if it has exited."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(question)
        process.stdin.flush()
        line = process.stdout.readline()
    except OSError:
        return b""
    return line if line.endswith(b"\n") else b""


@contextlib.contextmanager
def _started(count: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Start workers and end them on exit."""
    command = [sys.executable, "-c", _START.format(path=[str(entry) for entry in sys.path])]
    # The same encoding of file names as here; and no threads for linear algebra, which workers do not use.
    settings = {"PYTHONUTF8": str(sys.flags.utf8_mode), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with deaf_to_interrupts():
            for _ in range(count):
                processes.append(
                    subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **settings}
                    )
                )
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            with contextlib.suppress(BrokenPipeError), process:  # close the pipes and wait
                pass


def _name(function: Callable[..., Any]) -> str | None:
    """The name by which another process can import a function, or None."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in {None, "__main__"} or getattr(sys.modules.get(str(module)), name, None) is not function:
        return None
    return f"{module}:{name}"


def _find(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def serve() -> None:
    """The main loop of a worker: the first line names the functions, every other line is a job."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # other output must not mix with the answers
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(lines,), daemon=True).start()
        work, open_image = (_find(name) for name in json.loads(lines.get()))
        while True:
            answers.write(json.dumps(work(open_image, json.loads(lines.get()))).encode() + b"\n")
            answers.flush()
    finally:
        os._exit(1)  # without a message: the parent runs the job again and gets the error


def _listen(lines: "queue.SimpleQueue[bytes]") -> None:
    """Read in a thread, so that a closed pipe is noticed during a job."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)
