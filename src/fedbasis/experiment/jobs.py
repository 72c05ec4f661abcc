"""Carry out several experiments at once, in a few processes that take one after another, with one observer each.

Two processes of one thread each beat one process of two threads for small networks. Experiments that train alike never
run at the same time: the second takes over the first one's training. Whatever goes wrong with one of them, even the
death of its process, is that one's failure alone; its run stays as it was, so starting again goes on from there.
"""

import contextlib
import importlib
import multiprocessing
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedbasis.engines.processes import end_with_parent, portable
from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import Experiment, parse
from fedbasis.experiment.reuse import reuse_training
from fedbasis.training.events import Emit
from fedbasis.training.runs import Run
from pflbed.errors import InputError
from pflbed.interrupts import deaf_to_interrupts

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


def _work(line: Connection, out: Path) -> None:
    """Do what comes down the line, one after another, in a process of its own."""
    end_with_parent()
    while True:
        try:
            raw, post_step = line.recv()
        except (EOFError, ConnectionResetError):
            return
        answer: tuple[str, Path | Failure]
        try:
            answer = (
                "finished",
                _carry_out(
                    RunJob(parse(raw), post_step=post_step), out, lambda event: line.send(("event", event))
                ).folder,
            )
        except Exception as error:  # noqa: BLE001  (it is told to whoever waits for it)
            answer = "failed", _told(error)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # whoever waited has died: so shall we
            line.send(answer)


def _told(error: Exception) -> Failure:
    """Make of any error one that can travel between processes and says in a sentence what happened, and where."""
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
    workers, waiting = list[_Worker](), list(range(len(jobs)))
    try:
        while len(workers) < min(at_once, len(jobs)):
            workers.append(_Worker(out))
        while waiting or any(worker.job is not None for worker in workers):
            for worker in workers:
                running = [other.job for other in workers if other.job is not None]
                chosen = _next(jobs, waiting, running) if worker.job is None else None
                if chosen is not None:
                    waiting.remove(chosen)
                    worker.give(chosen, jobs[chosen])
            lines = wait([worker.line for worker in workers if worker.job is not None])
            for worker in [worker for worker in workers if worker.line in lines]:
                ended = worker.take(listeners)
                if ended is not None:
                    yield ended
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process that does jobs, and the line to it; when it dies, a new one takes its place.

    Every process has a line of its own, since one that is killed while it writes would block a line shared by all.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self.job: int | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_work, args=(theirs, self._out), daemon=True)
        with deaf_to_interrupts():
            self._process.start()
        theirs.close()  # so that the line ends with the process

    def give(self, number: int, job: RunJob) -> None:
        """Let the process do a job."""
        self.job = number
        with contextlib.suppress(OSError):  # it died just now: ``take`` finds out
            self.line.send((job.experiment.as_dict(), job.post_step))

    def take(self, listeners: Sequence[Emit]) -> tuple[int, Run | Failure] | None:
        """Pass one event on; return the job's number and what came of it, if it ended."""
        number = self.job
        assert number is not None
        try:
            event, value = self.line.recv()
        except (EOFError, OSError):
            self.end()
            event, value = "failed", self._death()
            self._start()
        if event not in ("finished", "failed"):
            listeners[number](value)
            return None
        self.job = None
        return number, Run(value) if event == "finished" else value

    def _death(self) -> InputError:
        return InputError(
            f"A process must live until its run ends, but this one was ended (exit code {self._process.exitcode}); "
            "there may be too little memory for so many at once. The same command goes on from its last checkpoint."
        )

    def end(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()
        self.line.close()


def _next(jobs: Sequence[RunJob], waiting: Sequence[int], running: Iterable[int]) -> int | None:
    """Choose the first job that may begin."""
    taken = {jobs[index].training_key for index in running} - {""}
    return next((index for index in waiting if jobs[index].training_key not in taken), None)
