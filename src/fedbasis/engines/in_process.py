"""One worker, in this process: it runs one task after another, each when its result is requested."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fedbasis.engines.base import Result, WorkerContext, WorkFunction
from fedbasis.engines.processes import peak_memory
from fedbasis.methods.base import Method
from fedbasis.tensors.params import State


class InProcess:
    """One worker, in this process; all tasks use one working model in turn."""

    same_disk = True

    def __init__(self, method: Method, device: torch.device | str = "cpu") -> None:
        self._worker = WorkerContext(method, device)

    def run(
        self, function: WorkFunction, shared: State, items: Sequence[Any], names: Sequence[str]
    ) -> Iterator[Result]:
        """Yield the results in the order of the items, each computed when it is requested."""
        self._worker.cache.clear()
        for item in items:
            yield function(self._worker, shared, item)

    def peak_memory(self) -> int:
        """Return the peak memory of this process, in bytes."""
        return peak_memory()

    def close(self) -> None:
        """Do nothing: there is no process to stop."""

    def __str__(self) -> str:
        return f"1 process on {self._worker.device}"
