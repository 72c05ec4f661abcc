"""One process at a time makes a thing, the others wait: a locked file, which the system lets go when a process dies."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl


@contextmanager
def alone(lock: Path) -> Iterator[bool]:
    """Wait until no other process is at it, then keep others out; False where there are no such locks."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    file = _locked(lock)
    try:
        yield file is not None
    finally:
        if file is not None:
            lock.unlink(missing_ok=True)  # while it is held: whoever waited for it sees that it is gone, and tries anew
            file.close()


def _locked(lock: Path) -> BinaryIO | None:
    if sys.platform == "win32":
        return None
    while True:
        file = lock.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                return file
        except FileNotFoundError:
            pass
        except OSError:  # some network folders have no locks
            file.close()
            return None
        file.close()
