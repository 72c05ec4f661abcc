"""Carry out several experiments at once, in a few processes that take one after another, with one observer each.

Two processes of one thread each beat one process of two threads for small networks. Experiments that train alike never
run at the same time: the second takes over the first one's training. A process that fails or is killed leaves its run
as it was, so starting again goes on from there.
"""

import importlib
import multiprocessing
import queue
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedbasis.config import Experiment, parse
from fedbasis.experiment import Observer, execute, prepare
from fedbasis.lending import lend
from fedbasis.processes import end_with_parent
from fedbasis.runs import Run
from pflbed.errors import InputError
from pflbed.interrupts import deaf_to_interrupts

EVENTS = ("decoding", "bad_images", "working", "client", "round", "served")


@dataclass(frozen=True)
class Job:
    """One experiment to carry out."""

    experiment: Experiment
    alike: str = ""
    """Jobs with the same text here are not done at the same time; the empty text is like no other."""
    after: str = ""
    """``module:function`` that is called with what was prepared and the run when it is done; several with commas."""


class _Relay(Observer):
    """Send every event to the parent process."""

    def __init__(self, index: int, events: Any) -> None:
        self._index, self._events = index, events
        for name in EVENTS:
            setattr(self, name, lambda *args, _name=name: self._events.put((self._index, _name, args)))

    def started(self, run: Run, method: str, rounds_done: int, rounds: int, jobs_done: int, jobs: int) -> None:
        """Tell that the run begins."""
        self._events.put((self._index, "started", (run, method, rounds_done, rounds, jobs_done, jobs)))


def _carry_out(job: Job, out: Path, observer: Observer) -> Run:
    """Do one job in this process."""
    prepared = prepare(job.experiment, observer)
    lend(prepared, out)
    run = execute(prepared, out, observer)
    for name in filter(None, job.after.split(",")):
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)(prepared, run)
    return run


def _work(tasks: Any, out: Path, events: Any) -> None:
    end_with_parent()
    for index, raw, after in iter(tasks.get, None):
        try:
            run = _carry_out(Job(parse(raw), after=after), out, _Relay(index, events))
            events.put((index, "finished", run.folder))
        except InputError as error:
            events.put((index, "failed", error))
        except OSError as error:
            events.put((index, "failed", OSError(error.errno, error.strerror or str(error), error.filename)))


def execute_all(experiments: Sequence[Experiment], out: Path, observers: Sequence[Observer]) -> list[Run]:
    """Run all experiments side by side; the first failure stops the others, which can be taken up again later."""
    done: dict[int, Run] = {}
    for index, result in carry_out([Job(one) for one in experiments], out, observers, len(experiments)):
        if isinstance(result, Exception):
            raise result
        done[index] = result
    return [done[i] for i in range(len(experiments))]


def carry_out(
    jobs: Sequence[Job], out: Path, observers: Sequence[Observer], at_once: int
) -> Iterator[tuple[int, Run | InputError | OSError]]:
    """Do all jobs, so many at a time, and yield ``(number, run)`` as they end, or what was wrong with one.

    One at a time is done in this process. Whoever stops iterating stops the work.
    """
    if at_once == 1:
        for index, job in enumerate(jobs):
            try:
                yield index, _carry_out(job, out, observers[index])
            except (InputError, OSError) as error:
                yield index, error
        return
    context = multiprocessing.get_context("spawn")
    events, tasks = context.Queue(), [context.Queue() for _ in range(min(at_once, len(jobs)))]
    workers = [context.Process(target=_work, args=(mine, out, events), daemon=True) for mine in tasks]
    waiting, busy = list(range(len(jobs))), dict[int, int]()
    try:
        with deaf_to_interrupts():
            for worker in workers:
                worker.start()
        while waiting or busy:
            for number in range(len(workers)):
                chosen = None if number in busy else _next(jobs, waiting, busy.values())
                if chosen is not None:
                    waiting.remove(chosen)
                    busy[number] = chosen
                    tasks[number].put((chosen, jobs[chosen].experiment.as_dict(), jobs[chosen].after))
            ended = _take(events, workers, observers, busy)
            if ended is not None:
                yield ended
    finally:
        started = [worker for worker in workers if worker.pid is not None]
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.join()
        for channel in (events, *tasks):
            channel.close()


def _next(jobs: Sequence[Job], waiting: Sequence[int], running: Iterable[int]) -> int | None:
    """Choose the first job that may begin."""
    taken = {jobs[index].alike for index in running} - {""}
    return next((index for index in waiting if jobs[index].alike not in taken), None)


def _take(
    events: Any, workers: Sequence[BaseProcess], observers: Sequence[Observer], busy: dict[int, int]
) -> tuple[int, Run | InputError | OSError] | None:
    """Pass one event on; return what ended with it, if anything."""
    try:
        index, event, value = events.get(timeout=0.5)
    except queue.Empty:
        dead = [workers[number] for number in busy if not workers[number].is_alive()]
        if dead and events.empty():
            raise InputError(
                f"A training process ended before its work was done (exit code {dead[0].exitcode}); "
                "run the same command again to go on from its last checkpoint."
            ) from None
        return None
    if event not in ("finished", "failed"):
        getattr(observers[index], event)(*value)
        return None
    del busy[next(number for number, task in busy.items() if task == index)]
    return index, Run(value) if event == "finished" else value
