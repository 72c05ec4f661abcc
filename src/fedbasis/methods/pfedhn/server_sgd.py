"""The server's SGD with momentum: on the hypernetwork, on its output bias, and on the embeddings of all clients.

The arithmetic is that of one ``torch.optim.SGD`` over all these tensors. There an embedding has the gradient zero in
the steps of other clients, and its momentum still moves it. So an embedding is moved on by ``s`` such steps at once
when it is next used: ``v + rate * u * (m + ... + m^s)`` and ``u * m^s``, with ``u`` its velocity, ``m`` the momentum.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedbasis.tensors.params import Tensors


class ServerSGD:
    """SGD along steps that are given, on copies of named tensors.

    Args:
        tensors: The tensors to move.
        velocity: Their velocities from the steps before; empty: none.
        rate: The learning rate.
        momentum: The share of the last step that is added again.
    """

    def __init__(self, tensors: Mapping[str, Tensor], velocity: Tensors, rate: float, momentum: float) -> None:
        self.tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        self.velocity: Tensors = {}
        if momentum:
            self.velocity = {
                name: velocity[name].clone() if name in velocity else torch.zeros_like(tensor)
                for name, tensor in self.tensors.items()
            }
        self._rate, self._momentum = rate, momentum

    def step(self, steps: Mapping[str, Tensor], share: float = 1.0) -> None:
        """Move every tensor, in place, along a share of the given steps."""
        for name, tensor in self.tensors.items():
            if self._momentum:
                velocity = self.velocity[name].mul_(self._momentum).add_(steps[name], alpha=share)
                tensor.add_(velocity, alpha=self._rate)
            else:
                tensor.add_(steps[name], alpha=share * self._rate)


class EmbeddingSGD:
    """The same on embeddings, of which a step moves one by its gradient and the others by their momentum only.

    Args:
        embeddings: The embeddings that are known, by client.
        velocity: Their velocities from the steps before; one that is missing is zero.
        rate: The learning rate.
        momentum: The share of the last step that is added again.
    """

    def __init__(self, embeddings: Tensors, velocity: Tensors, rate: float, momentum: float) -> None:
        self._embeddings, self._velocity = dict(embeddings), dict(velocity)
        self._rate, self._momentum = rate, momentum
        self._at: dict[str, int] = {}

    def before(self, step: int, client: str, first: Tensor) -> Tensor:
        """Return a client's embedding before a step, numbered from 0; ``first`` is the one of an unknown client."""
        self._embeddings.setdefault(client, first)
        idle, self._at[client] = step - self._at.get(client, 0), step
        if idle and client in self._velocity:
            share = self._momentum**idle
            reach = self._momentum * (1 - share) / (1 - self._momentum)
            self._embeddings[client] = self._embeddings[client] + self._rate * reach * self._velocity[client]
            self._velocity[client] = share * self._velocity[client]
        return self._embeddings[client]

    def move(self, step: int, client: str, towards: Tensor) -> None:
        """Take a step with this client's embedding, which was asked for before the step."""
        if self._momentum:
            before = self._velocity.get(client)
            towards = towards if before is None else self._momentum * before + towards
            self._velocity[client] = towards
        self._embeddings[client] = self._embeddings[client] + self._rate * towards
        self._at[client] = step + 1

    def after(self, steps: int) -> tuple[Tensors, Tensors]:
        """Return all embeddings and their velocities after so many steps."""
        for client, embedding in list(self._embeddings.items()):
            self.before(steps, client, embedding)
        return self._embeddings, self._velocity
