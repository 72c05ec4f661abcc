"""Carry out several experiments at once, in a few processes that take one after another, with one observer each.

Two processes of one thread each beat one process of two threads for small networks. Experiments that train alike never
run at the same time: the second takes over the first one's training. Whatever goes wrong with one of them, even the
death of its process, is that one's failure alone; its run stays as it was, so starting again goes on from there.
"""

import importlib
import multiprocessing
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from fedbasis.engines.processes import WorkerDiedError, WorkerProcess, portable
from fedbasis.engines.transport import dumps, loads
from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import Experiment, parse
from fedbasis.experiment.reuse import reuse_training
from fedbasis.training.events import Emit, Event
from fedbasis.training.runs import Run
from pflbed.errors import InputError

Failure = InputError | OSError


@dataclass(frozen=True)
class RunJob:
    """One experiment to carry out."""

    experiment: Experiment
    training_key: str = ""
    """Jobs with the same text here are not done at the same time; the empty text is like no other."""
    post_step: str = ""
    """``module:function`` that is called with what was prepared and the run when it is done; several with commas."""


def _carry_out(job: RunJob, out: Path, emit: Emit) -> Run:
    """Do one job in this process."""
    prepared = prepare(job.experiment, emit)
    reuse_training(prepared, out)
    run = execute(prepared, out, emit)
    for name in filter(None, job.post_step.split(",")):
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)(prepared, run)
    return run


def _work(connection: Connection, out: Path) -> None:
    """Be a worker: do one job after another until the pipe ends."""

    def emit(event: Event) -> None:
        connection.send_bytes(dumps(("event", event)))

    while True:
        raw, post_step = loads(connection.recv_bytes())
        answer: tuple[str, Path | Failure]
        try:
            job = RunJob(parse(raw), post_step=post_step)
            answer = "finished", _carry_out(job, out, emit).folder
        except Exception as error:  # noqa: BLE001  (the parent process is told)
            answer = "failed", _told(error)
        connection.send_bytes(dumps(answer))


def _told(error: Exception) -> Failure:
    """Turn any error into one that travels between processes and says in a sentence what happened, and where."""
    if isinstance(error, InputError):
        return InputError(str(error))
    if isinstance(error, OSError):
        return portable(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return InputError(
        f"A run must end well, but this one met an error that nobody foresaw, {type(error).__name__}: {error} "
        f"({Path(where.filename).name}, line {where.lineno}); what it did until then is kept."
    )


def execute_all(experiments: Sequence[Experiment], out: Path, listeners: Sequence[Emit]) -> list[Run]:
    """Run all experiments side by side; the first failure stops the others, which can be taken up again later."""
    done: dict[int, Run] = {}
    for index, result in carry_out([RunJob(one) for one in experiments], out, listeners, len(experiments)):
        if isinstance(result, Exception):
            raise result
        done[index] = result
    return [done[i] for i in range(len(experiments))]


def carry_out(
    jobs: Sequence[RunJob], out: Path, listeners: Sequence[Emit], at_once: int
) -> Iterator[tuple[int, Run | Failure]]:
    """Do all jobs, so many at a time, and yield ``(number, run)`` as they end, or what was wrong with one.

    One at a time is done in this process. Whoever stops iterating stops the work.
    """
    if at_once == 1:
        for index, job in enumerate(jobs):
            result: Run | Failure
            try:
                result = _carry_out(job, out, listeners[index])
            except Exception as error:  # noqa: BLE001  (the other jobs go on)
                result = _told(error)
            yield index, result
        return
    workers, waiting = [_JobWorker(out) for _ in range(min(at_once, len(jobs)))], list(range(len(jobs)))
    try:
        while waiting or any(worker.job is not None for worker in workers):
            for worker in workers:
                running = [other.job for other in workers if other.job is not None]
                chosen = _next(jobs, waiting, running) if worker.job is None else None
                if chosen is not None:
                    waiting.remove(chosen)
                    worker.give(chosen, jobs[chosen])
            ready = wait([worker.connection for worker in workers if worker.job is not None])
            for worker in [worker for worker in workers if worker.job is not None and worker.connection in ready]:
                ended = worker.take(listeners)
                if ended is not None:
                    yield ended
    finally:
        for worker in workers:
            worker.stop()


class _JobWorker:
    """A worker process, and the job it does now."""

    def __init__(self, out: Path) -> None:
        self._process = WorkerProcess(multiprocessing.get_context("spawn"), _work, (out,))
        self.job: int | None = None

    @property
    def connection(self) -> Connection:
        """The pipe of a worker that has a job."""
        assert self._process.connection is not None
        return self._process.connection

    def give(self, number: int, job: RunJob) -> None:
        """Let the process do a job."""
        self._process.send((job.experiment.as_dict(), job.post_step))
        self.job = number

    def take(self, listeners: Sequence[Emit]) -> tuple[int, Run | Failure] | None:
        """Pass one event on; return the job's number and what came of it, if it ended."""
        number = self.job
        assert number is not None
        try:
            event, value = self._process.receive()
        except WorkerDiedError as death:
            event, value = "failed", _process_died(death)
        if event not in ("finished", "failed"):
            listeners[number](value)
            return None
        self.job = None
        return number, Run(value) if event == "finished" else value

    def stop(self) -> None:
        """End the process."""
        self._process.stop()
        self._process.join()


def _process_died(death: WorkerDiedError) -> InputError:
    memory = "; there may be too little memory for so many at once" if death.killed else ""
    return InputError(
        f"A process must live until its run ends, but this one was ended ({death}){memory}. The same command goes on "
        "from its last checkpoint."
    )


def _next(jobs: Sequence[RunJob], waiting: Sequence[int], running: Iterable[int]) -> int | None:
    """Choose the first job that may begin."""
    taken = {jobs[index].training_key for index in running} - {""}
    return next((index for index in waiting if jobs[index].training_key not in taken), None)
