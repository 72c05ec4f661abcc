"""The engine that updates clients one after another in this process."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from fedbasis.algorithms.base import Context, Method, Sent
from fedbasis.params import State, is_finite
from fedbasis.train import Examples


class Serial:
    """One working model serves all clients in turn; each loads its own state into it."""

    def __init__(
        self, method: Method, data: Mapping[str, Examples], seed: int, device: torch.device | str = "cpu"
    ) -> None:
        self.kept: dict[str, State] = {}
        self._method, self._data, self._seed = method, data, seed
        self._model = method.task.network.workspace(device)

    def map(self, server: State, clients: Sequence[str], round: int) -> Iterator[tuple[str, Sent]]:
        """Update the named clients in this order and yield ``(client, what it sent)``."""
        for client in clients:
            context = Context(self._seed, client, self._model, round)
            received = self._method.broadcast(server, client)
            sent, kept = self._method.client_update(received, self.kept.get(client), self._data[client], context)
            if kept is not None and is_finite(kept):
                self.kept[client] = kept
            yield client, sent
