"""Run several experiments at once, in worker processes, with one event listener for each.

For small networks, two processes of one thread each are faster than one process of two threads. Experiments with the
same training never run at the same time: the second reuses the first one's training. A failure of one experiment, even
the death of its process, does not affect the others; its run folder is not damaged, so starting again resumes it.
"""

import importlib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from fedbasis.engines.processes import WorkerDiedError, WorkerProcess, portable, worker_context
from fedbasis.engines.transport import dumps, loads
from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import Experiment, parse
from fedbasis.experiment.reuse import reuse_training
from fedbasis.training.events import Emit, Event
from fedbasis.training.rounds import DivergedError
from fedbasis.training.runs import Run
from pflbed.errors import InputError

Failure = InputError | OSError


@dataclass(frozen=True)
class RunJob:
    """One experiment to run."""

    experiment: Experiment
    training_key: str = ""
    """Jobs with the same key are not run at the same time; the empty key differs from all others."""
    post_step: str = ""
    """``module:function``, called as ``function(prepared, run)`` when the run is done; several separated by commas."""


def _carry_out(job: RunJob, out: Path, emit: Emit) -> Run:
    """Run one job in this process."""
    prepared = prepare(job.experiment, emit)
    reuse_training(prepared, out)
    run = execute(prepared, out, emit)
    for name in filter(None, job.post_step.split(",")):
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)(prepared, run)
    return run


def _work(connection: Connection, out: Path) -> None:
    """Run one job after another, in a worker process, until the pipe is closed."""

    def emit(event: Event) -> None:
        connection.send_bytes(dumps(("event", event)))

    while True:
        raw, post_step = loads(connection.recv_bytes())
        answer: tuple[str, Path | Failure]
        try:
            job = RunJob(parse(raw), post_step=post_step)
            answer = "finished", _carry_out(job, out, emit).folder
        except Exception as error:  # noqa: BLE001  (it is sent to the parent process)
            answer = "failed", _failure(error)
        connection.send_bytes(dumps(answer))


def _failure(error: Exception) -> Failure:
    """Turn any error into one that can be sent between processes, with a message that says what happened and where."""
    if isinstance(error, InputError):
        kind = DivergedError if isinstance(error, DivergedError) else InputError
        return kind(str(error))
    if isinstance(error, OSError):
        return portable(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return InputError(
        f"A run must end without an error, but this one failed with an unexpected {type(error).__name__}: {error} "
        f"({Path(where.filename).name}, line {where.lineno}); its last checkpoint is saved."
    )


def execute_all(experiments: Sequence[Experiment], out: Path, listeners: Sequence[Emit]) -> list[Run]:
    """Run all experiments at the same time; the first failure stops the others, which can be resumed later."""
    done: dict[int, Run] = {}
    for index, result in carry_out([RunJob(one) for one in experiments], out, listeners, len(experiments)):
        if isinstance(result, Exception):
            raise result
        done[index] = result
    return [done[i] for i in range(len(experiments))]


def carry_out(
    jobs: Sequence[RunJob], out: Path, listeners: Sequence[Emit], at_once: int
) -> Iterator[tuple[int, Run | Failure]]:
    """Run all jobs; with ``at_once = 1`` in this process. The work stops when the iteration is stopped.

    Args:
        jobs: The jobs.
        out: The folder of run folders.
        listeners: One event listener for each job.
        at_once: How many run at the same time.

    Yields:
        ``(number of the job, its run)``, or an error instead of the run, as the jobs end.
    """
    if at_once == 1:
        for index, job in enumerate(jobs):
            result: Run | Failure
            try:
                result = _carry_out(job, out, listeners[index])
            except Exception as error:  # noqa: BLE001  (the other jobs continue)
                result = _failure(error)
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
    """A worker process, and its current job."""

    def __init__(self, out: Path) -> None:
        self._process = WorkerProcess(worker_context([__name__]), _work, (out,))
        self.job: int | None = None

    @property
    def connection(self) -> Connection:
        """The pipe of a worker that has a job."""
        assert self._process.connection is not None
        return self._process.connection

    def give(self, number: int, job: RunJob) -> None:
        """Send a job to the process."""
        self._process.send((job.experiment.as_dict(), job.post_step))
        self.job = number

    def take(self, listeners: Sequence[Emit]) -> tuple[int, Run | Failure] | None:
        """Receive one message: pass an event to its listener, or return the job's number and result if it ended."""
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
        """Stop the process."""
        self._process.stop()
        self._process.join()


def _process_died(death: WorkerDiedError) -> InputError:
    memory = "; there may be too little memory for so many at once" if death.killed else ""
    return InputError(
        f"A process must run until its run ends, but this one died ({death}){memory}. The same command resumes the run "
        "from its last checkpoint."
    )


def _next(jobs: Sequence[RunJob], waiting: Sequence[int], running: Iterable[int]) -> int | None:
    """Return the first job that may start now."""
    busy = {jobs[index].training_key for index in running} - {""}
    return next((index for index in waiting if jobs[index].training_key not in busy), None)
