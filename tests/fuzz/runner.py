"""Run a target on many mutants and count how its reader ended: read, refused, a traceback, or a hang."""

import resource
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from pflbed.errors import InputError

Attempt = Callable[[], object]
Make = Callable[[Path], Callable[[Random], Attempt]]
"""(empty folder) -> (generator -> a call of the reader on one mutant)."""
MEMORY = 4 * 2**30
"""Bytes of address space of a child process."""
RESIDENT = 10**9
"""Bytes of memory that a child process may really use."""
LONGEST = 100_000
"""Characters of a message."""
LONG = 300
"""Seconds for one mutant; one that takes longer hangs. Generous, because machines are busy."""


class HangError(BaseException):
    """A mutant took too long; no reader catches it."""


@dataclass(frozen=True)
class Target:
    """A kind of file and its reader."""

    name: str
    make: Make
    unreadable: tuple[type[BaseException], ...] = ()
    """Exceptions that the reader's caller handles, besides ``InputError``."""


@dataclass
class Outcome:
    """What became of the mutants of one target."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    tracebacks: list[str] = field(default_factory=list)
    """The first of each kind, with the number of the mutant."""
    slowest: float = 0.0
    """Seconds of processor time of the slowest mutant."""

    @property
    def mutants(self) -> int:
        """How many were tried."""
        return self.counts.total()


TARGETS: dict[str, Target] = {}


def target(name: str, unreadable: tuple[type[BaseException], ...] = ()) -> Callable[[Make], Make]:
    """Register a target.

    The function gets an empty folder, writes a good file into it, and returns a function that writes a mutant of it and
    returns the call of the reader. The name begins with the package, such as "pflbed card".
    """

    def register(make: Make) -> Make:
        TARGETS[name] = Target(name, make, unreadable)
        return make

    return register


def run_target(chosen: Target, count: int, seed: int, seconds: int = 0) -> Outcome:
    """Try ``count`` mutants in this process; mutant i depends on the target's name, the seed and i alone.

    Args:
        chosen: The target.
        count: How many mutants.
        seed: Another seed gives other mutants.
        seconds: A mutant that takes longer is a hang; 0 waits for ever.

    Returns:
        The counts.
    """
    outcome = Outcome(chosen.name)
    seen: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        prepared = chosen.make(Path(folder))
        for i in range(count):
            attempt = prepared(Random(f"{chosen.name} {seed} {i}"))
            began = time.process_time()
            try:
                with time_limit(seconds):
                    attempt()
                outcome.counts["ok"] += 1
            except HangError:
                outcome.counts["hang"] += 1
                outcome.tracebacks.append(f"mutant {i}: it took more than {seconds} seconds")
            except InputError as error:
                short = len(str(error)) <= LONGEST
                outcome.counts["refused" if short else "traceback"] += 1
                if not short:
                    outcome.tracebacks.append(f"mutant {i}: a message of {len(str(error)):,} characters")
            except chosen.unreadable:
                outcome.counts["refused"] += 1
            except Exception as error:  # noqa: BLE001 - it is what we look for
                outcome.counts["traceback"] += 1
                frame = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{type(error).__name__} {frame.filename}:{frame.lineno}"
                if where not in seen:
                    seen.add(where)
                    outcome.tracebacks.append(f"mutant {i}: {''.join(traceback.format_exception(error))}")
            outcome.slowest = max(outcome.slowest, time.process_time() - began)
    return outcome


def peak_memory() -> int:
    """The most resident memory that this process had, in bytes (on Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise ``HangError`` in the block after some seconds; 0 is no limit."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise HangError

    if not seconds:
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def limited_memory(size: int = MEMORY) -> Iterator[None]:
    """Give this process no more address space, until the block ends."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
