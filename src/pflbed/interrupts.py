"""Ctrl-C reaches every process of a terminal; only the one that the user started should hear it."""

import contextlib
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Start processes that do not hear Ctrl-C: their parent ends them."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # one for this process is heard afterwards
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
