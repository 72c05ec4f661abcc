"""Ctrl-C reaches every process of a terminal; only the one that the user started should hear it."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker


@contextlib.contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Start processes that do not hear Ctrl-C: their parent ends them."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # it comes with the first process, and its start would end the deafness
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # one for this process is heard afterwards
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
