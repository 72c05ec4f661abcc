"""Ctrl-C is sent to every process of a terminal; processes and threads started here ignore it."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker


@contextlib.contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Block SIGINT in processes and threads that are started in this context; their parent ends them.

    Python handles a signal in the main thread, but the system may deliver it to any thread that does not block it. Then
    a main thread that waits for a lock does not wake up.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # its start would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # delivered here afterwards
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
