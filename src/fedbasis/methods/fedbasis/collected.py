"""The local models of the warm start's last rounds, in the server's state: bases are clustered from all of them.

With few clients a round, one round has hardly more models than there are bases. So models of several rounds can be
kept until they are clustered, each with the model that it was trained from. They are mapped from the disk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fedbasis.methods.base import MODEL, Update
from fedbasis.tensors.params import State, Tensors

PREFIX = "local_"
"""All groups of collected models begin with it; they stay at the server."""


@dataclass(frozen=True)
class LocalModels:
    """The models of one round, the model that all of them were trained from, and their weights in a mean."""

    start: Tensors
    models: Sequence[Tensors]
    weights: Sequence[float]

    @classmethod
    def of(cls, start: Tensors, received: Sequence[Update], weights: Sequence[float]) -> "LocalModels":
        """Take the models of a round's updates."""
        return cls(start, [sent.tensors[MODEL] for _, sent in received], weights)

    def to_state(self, round: int) -> State:
        """Return them as groups of the server's state."""
        weights = torch.tensor(self.weights, dtype=torch.float64)
        return {
            f"{PREFIX}start_{round}": self.start,
            f"{PREFIX}weights_{round}": {"weights": weights},
            **{f"{PREFIX}model_{round}_{i}": model for i, model in enumerate(self.models)},
        }


def collected(server: State) -> Iterator[LocalModels]:
    """Yield the models that a server's state holds, round by round."""
    begin = f"{PREFIX}weights_"
    for round in sorted(int(group.removeprefix(begin)) for group in server if group.startswith(begin)):
        weights = server[f"{begin}{round}"]["weights"].tolist()
        models = [server[f"{PREFIX}model_{round}_{i}"] for i in range(len(weights))]
        yield LocalModels(server[f"{PREFIX}start_{round}"], models, weights)


def without_collected(server: State) -> State:
    """Return a server's state without these groups."""
    return {group: tensors for group, tensors in server.items() if not group.startswith(PREFIX)}
