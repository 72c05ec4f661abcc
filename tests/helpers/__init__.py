"""What several test files use."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from fedbasis.engines.base import ClientData
from fedbasis.engines.client_state import ClientStates
from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.methods.base import Method

MINUTES = 1200.0
"""Longer than anything takes that happens at all; no test that passes waits for it."""


class Serial(Simulation):
    """Clients updated one after another in this process."""

    def __init__(
        self,
        method: Method,
        data: ClientData,
        seed: int,
        device: torch.device | str = "cpu",
        kept: ClientStates | None = None,
    ) -> None:
        super().__init__(InProcess(method, device), data, seed, kept)


def wait_until(happened: Callable[[], bool]) -> None:
    """Wait for something that happens sooner or later, on a busy machine later."""
    until = time.monotonic() + MINUTES
    while not happened():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
