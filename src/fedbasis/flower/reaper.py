"""A small process that stops all processes of a deployment when its parent has ended, for whatever reason.

It reads process ids from its standard input. When that is closed, because the parent closed it, was stopped or was
killed, it sends SIGTERM, and then SIGKILL, to these processes and to all that have the deployment's mark.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

MARK = "FEDBASIS_DEPLOYMENT"
"""The environment variable of a deployment's processes; its value, the mark, is unique to the deployment."""
GRACE_SECONDS = 4.0


def marked(mark: str) -> set[int]:
    """Return the ids of the processes of this machine with a mark, on systems with /proc."""
    processes, variable = set(), f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ended = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX"
            if not ended and variable in (folder / "environ").read_bytes().split(b"\0"):
                processes.add(int(folder.name))
    return processes - {os.getpid()}


def end(processes: set[int], mark: str) -> None:
    """Stop processes and all with the mark: first by SIGTERM, then by SIGKILL."""

    def send_signal(number: int) -> set[int]:
        left = {process for process in processes if _alive(process)} | marked(mark)
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, number)
        return left

    ends = time.monotonic() + GRACE_SECONDS
    if send_signal(signal.SIGTERM):
        while time.monotonic() < ends and send_signal(0):
            time.sleep(0.05)
    while send_signal(signal.SIGKILL):
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
    """Wait until standard input is closed, then stop the processes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    processes = {int(line) for line in sys.stdin if line.strip().isdecimal()}
    end(processes, sys.argv[1])


if __name__ == "__main__":
    main()
