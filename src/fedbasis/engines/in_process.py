"""The engine that updates clients one after another in this process, each when it is asked for."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fedbasis.engines.base import Data, Desk, Job, Result
from fedbasis.engines.client_state import Kept
from fedbasis.engines.processes import peak_memory
from fedbasis.engines.simulation import Federation
from fedbasis.methods.base import Method
from fedbasis.tensors.params import State


class Here:
    """One worker, in this process: one working model serves all jobs in turn."""

    same_disk = True

    def __init__(self, method: Method, device: torch.device | str = "cpu") -> None:
        self._desk = Desk(method, device)

    def run(self, job: Job, shared: State, items: Sequence[Any], names: Sequence[str]) -> Iterator[Result]:
        """Yield the results in the order of the items, each made when it is asked for."""
        self._desk.notes.clear()
        for item in items:
            yield job(self._desk, shared, item)

    def peak_memory(self) -> int:
        """Return the most bytes that this process has held so far."""
        return peak_memory()

    def close(self) -> None:
        """Nobody has to go."""

    def __str__(self) -> str:
        return f"1 process on {self._desk.device}"


class Serial(Federation):
    """Clients updated one after another."""

    def __init__(
        self, method: Method, data: Data, seed: int, device: torch.device | str = "cpu", kept: Kept | None = None
    ) -> None:
        super().__init__(Here(method, device), data, seed, kept)
