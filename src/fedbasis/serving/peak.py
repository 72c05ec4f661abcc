"""Peak memory of serving one client: how much more a process held than at the start, in bytes.

Memory that earlier clients freed is first given back to the system; otherwise a client could use it without a trace.
Linux with glibc only: elsewhere a process cannot forget an earlier peak.
"""

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from fedbasis.engines.processes import peak_memory, reset_peak_memory


class PeakMemory:
    """Measures from when it is made until ``stop`` is first called; ``bytes`` is None if that is not possible here."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.bytes: int | None = None
        trim = _malloc_trim()
        self._running = trim is not None and torch.device(device).type == "cpu"
        if trim is not None and self._running:
            trim(0)
            self._running = reset_peak_memory() == 0
            self._before = peak_memory()  # what it holds now

    def stop(self) -> None:
        """End the measurement; later calls change nothing."""
        if self._running:
            self.bytes, self._running = max(0, peak_memory() - self._before), False


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        return None
    return trim
