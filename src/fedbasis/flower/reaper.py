"""A small process that ends all others of a deployment when whoever started them is gone, however that one ended.

It reads process numbers from its input. When that closes, because its parent closed it, was stopped or was killed, it
asks these processes and all that bear the deployment's mark to end, and ends those that do not.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

MARK = "FEDBASIS_DEPLOYMENT"
"""Every process of a deployment has this variable, with a value of its own."""
GRACE_SECONDS = 4.0


def marked(mark: str) -> set[int]:
    """Return the processes of this machine that bear a mark, as far as the system shows them (Linux does)."""
    found, wanted = set(), f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ended = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX"
            if not ended and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found - {os.getpid()}


def end(processes: set[int], mark: str) -> None:
    """End processes and all that bear the mark: first politely, then not."""

    def tell(number: int) -> set[int]:
        left = {process for process in processes if _alive(process)} | marked(mark)
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, number)
        return left

    ends = time.monotonic() + GRACE_SECONDS
    if tell(signal.SIGTERM):
        while time.monotonic() < ends and tell(0):
            time.sleep(0.05)
    while tell(signal.SIGKILL):
        time.sleep(0.05)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX"
    return not Path("/proc/self").exists()


def main() -> None:
    """Wait for the end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    processes = {int(line) for line in sys.stdin if line.strip().isdecimal()}
    end(processes, sys.argv[1])


if __name__ == "__main__":
    main()
