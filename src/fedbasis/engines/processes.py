"""What processes that work for another one have in common."""

import multiprocessing
import os
import resource
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path


def peak_memory(*pids: int) -> int:
    """Return the most memory in bytes that this process and others of this machine have held so far, added up."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return own + sum(_peak_of(pid) for pid in pids)


def _peak_of(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:  # it is gone, or there is no /proc
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def portable(error: OSError) -> OSError:
    """Return the error of a file, whatever its kind, as one that any process understands."""
    return OSError(error.errno, error.strerror or str(error), error.filename)


def end_with_parent(leave: Callable[[], None] | None = None) -> None:
    """From now on, when the parent is gone, however it ended, so is this process; ``leave`` is called before."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            wait([parent.sentinel])
            if leave is not None:
                leave()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
