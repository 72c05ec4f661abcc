"""A lock between processes: a locked file, which the system unlocks when the process ends."""

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
    """Acquire the lock; yields False where the file system has no locks."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    file = _locked(lock)
    try:
        yield file is not None
    finally:
        if file is not None:
            lock.unlink(missing_ok=True)  # while it is held: a waiting process sees that it is gone, and tries again
            file.close()


def is_held(lock: Path) -> bool:
    """Whether a process holds the lock at this moment."""
    if sys.platform == "win32":
        return lock.exists()
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


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
