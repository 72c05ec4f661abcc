"""Carry out several experiments at once, each in a process of its own with one observer's view of them all.

Two processes of one thread each beat one process of two threads for small networks. A process that fails or is
killed leaves its run as it was, so starting again goes on from there.
"""

import multiprocessing
import queue
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedbasis.config import Experiment, parse
from fedbasis.experiment import Observer, execute, prepare
from fedbasis.processes import end_with_parent
from fedbasis.runs import Run
from pflbed.errors import InputError
from pflbed.interrupts import deaf_to_interrupts

EVENTS = ("decoding", "bad_images", "working", "client", "round", "served")


class _Relay(Observer):
    """Send every event to the parent process."""

    def __init__(self, index: int, events: Any) -> None:
        self._index, self._events = index, events
        for name in EVENTS:
            setattr(self, name, lambda *args, _name=name: self._events.put((self._index, _name, args)))

    def started(self, run: Run, method: str, rounds_done: int, rounds: int, jobs_done: int, jobs: int) -> None:
        """Tell that the run begins."""
        self._events.put((self._index, "started", (run, method, rounds_done, rounds, jobs_done, jobs)))


def _work(index: int, raw: dict[str, Any], out: Path, events: Any) -> None:
    end_with_parent()
    try:
        run = execute(prepare(parse(raw), _Relay(index, events)), out, _Relay(index, events))
        events.put((index, "finished", run.folder))
    except InputError as error:
        events.put((index, "failed", error))
    except OSError as error:
        events.put((index, "failed", OSError(error.errno, error.strerror or str(error), error.filename)))


def execute_all(experiments: Sequence[Experiment], out: Path, observers: Sequence[Observer]) -> list[Run]:
    """Run all experiments side by side; the first failure stops the others, which can be taken up again later."""
    context = multiprocessing.get_context("spawn")
    events = context.Queue()
    workers = [
        context.Process(target=_work, args=(i, experiment.as_dict(), out, events), daemon=True)
        for i, experiment in enumerate(experiments)
    ]
    finished: dict[int, Path] = {}
    try:
        with deaf_to_interrupts():
            for worker in workers:
                worker.start()
        while len(finished) < len(workers):
            _take(events, workers, observers, finished)
    finally:
        started = [worker for worker in workers if worker.pid is not None]
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.join()
        events.close()
    return [Run(finished[i]) for i in range(len(workers))]


def _take(
    events: Any, workers: Sequence[BaseProcess], observers: Sequence[Observer], finished: dict[int, Path]
) -> None:
    try:
        index, event, value = events.get(timeout=0.5)
    except queue.Empty:
        dead = [w for i, w in enumerate(workers) if i not in finished and not w.is_alive()]
        if dead and events.empty():
            raise InputError(
                f"A training process ended before its work was done (exit code {dead[0].exitcode}); "
                "run the same command again to go on from its last checkpoint."
            ) from None
        return
    if event == "finished":
        finished[index] = value
    elif event == "failed":
        raise value
    else:
        getattr(observers[index], event)(*value)
