"""The engine that updates clients one after another in this process, each when it is asked for."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fedbasis.engines.base import ClientData, Result, WorkerContext, WorkFunction
from fedbasis.engines.client_state import ClientStates
from fedbasis.engines.processes import peak_memory
from fedbasis.engines.simulation import Simulation
from fedbasis.methods.base import Method
from fedbasis.tensors.params import State


class InProcess:
    """One worker, in this process: one working model serves all jobs in turn."""

    same_disk = True

    def __init__(self, method: Method, device: torch.device | str = "cpu") -> None:
        self._worker = WorkerContext(method, device)

    def run(self, job: WorkFunction, shared: State, items: Sequence[Any], names: Sequence[str]) -> Iterator[Result]:
        """Yield the results in the order of the items, each made when it is asked for."""
        self._worker.cache.clear()
        for item in items:
            yield job(self._worker, shared, item)

    def peak_memory(self) -> int:
        """Return the most bytes that this process has held so far."""
        return peak_memory()

    def close(self) -> None:
        """Nobody has to go."""

    def __str__(self) -> str:
        return f"1 process on {self._worker.device}"


class Serial(Simulation):
    """Clients updated one after another."""

    def __init__(
        self,
        method: Method,
        data: ClientData,
        seed: int,
        device: torch.device | str = "cpu",
        kept: ClientStates | None = None,
    ) -> None:
        super().__init__(InProcess(method, device), data, seed, kept)
