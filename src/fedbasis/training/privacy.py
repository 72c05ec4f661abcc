"""Differential privacy of the clients: a method gets only the noisy mean of clipped updates.

Every client's update, all its tensors as one vector, is clipped to the norm ``clip``. The sum is divided by the number
of sampled clients (a client that fails, or sends NaN, counts as an update of zero). Gaussian noise of standard
deviation ``multiplier * clip / clients`` is added to every number. The method then computes the next state from this
mean (``Updates.from_average``), which is post-processing and costs no privacy. Numbers for the log are not protected.

The server itself is trusted: it receives single updates. McMahan et al., "Learning Differentially Private Recurrent
Language Models", ICLR 2018 (with a fixed number of clients a round). docs/how-to/privacy.md explains what is protected
and what is not.
"""

import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbasis.methods.base import Method, Sent
from fedbasis.tensors.params import State, require_same, shapes
from fedbasis.tensors.seeding import numpy_generator
from fedbasis.training.accounting import epsilon
from fedbasis.training.clipping import differences, shortening
from pflbed.errors import InputError

Draw = Callable[[int], NDArray[np.float64]]
"""A function from a count to that many standard normal numbers."""
PIECE = 2**18
VARIANCE = "running_var"
"""The suffix of torch's names of running variances, which cannot be negative."""


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """The Gaussian mechanism of a run.

    Args:
        multiplier: The noise multiplier.
        clip: The maximal L2 norm of an update.
        delta: The delta at which epsilon is computed.
        clients: The number of clients.
        sampled: The number of clients in every round.
        secret: Whether noise and client sampling use the operating system's randomness; if not, they use the run's
            seed, which is for experiments.
    """

    multiplier: float
    clip: float
    delta: float
    clients: int
    sampled: int
    secret: bool

    def drawing_seed(self, seed: int) -> int:
        """Return the seed of client sampling, which must be secret for privacy amplification by sampling."""
        return secrets.randbits(63) if self.secret else seed

    def epsilon(self, rounds: int) -> float:
        """Return epsilon after this number of rounds."""
        return _epsilon(rounds, self.multiplier, self.clients, self.sampled, self.delta)

    def spent(self, rounds: int) -> dict[str, float]:
        """Return epsilon and delta after this number of rounds, for the log."""
        return {"epsilon": self.epsilon(rounds), "delta": self.delta}

    def aggregate(
        self, method: Method, server: State, updates: Iterable[tuple[str, Sent]], seed: int, round: int
    ) -> State:
        """Return the server's next state, from the noisy mean of the updates."""
        like: State = {}
        total: State = {}
        for client, sent in updates:
            tensors = method.updates.as_averageable(server, sent.tensors)
            start = method.updates.reference(server, client, tensors)
            _require_bounded(tensors, start, client)
            like = like or {group: {name: start[group][name] for name in named} for group, named in tensors.items()}
            for group in {**like, **tensors}:
                require_same(tensors.get(group, {}), shapes(like.get(group, {})), f"The update of {client}")
            moved = differences(tensors, start)
            factor = shortening(moved, self.clip)
            total = total or {g: {n: torch.zeros_like(t) for n, t in named.items()} for g, named in moved.items()}
            for group, named in moved.items() if 0 < factor <= 1 else ():  # NaN: an update of zero
                for name, change in named.items():
                    total[group][name].add_(change, alpha=factor)
        if not like:
            raise InputError(f"A mean needs at least one update, but none was received in round {round + 1}.")
        draw = urandom_normal if self.secret else numpy_generator(seed, "privacy noise", round).standard_normal
        mean: State = {}
        for group, named in like.items():
            noisy = {name: self._noisy(total[group][name], draw) for name in named}
            mean[group] = {name: (old.double() + noisy[name]).to(old.dtype) for name, old in named.items()}
            for name in (name for name in named if name.endswith(VARIANCE)):
                mean[group][name].clamp_(min=0)  # noise can make it negative; clamping is post-processing
        return method.updates.from_average(server, mean, seed)

    def _noisy(self, total: Tensor, draw: Draw) -> Tensor:
        flat = total.reshape(-1) / self.sampled
        for start in range(0, len(flat), PIECE):
            piece = flat[start : start + PIECE]
            piece += self.multiplier * self.clip / self.sampled * torch.from_numpy(draw(len(piece)))
        return flat.view(total.shape)


def urandom_normal(count: int) -> NDArray[np.float64]:
    """Draw standard normal numbers from the operating system's randomness."""
    from scipy.special import ndtri

    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    return np.asarray(ndtri((bits + 0.5) / 2**53), dtype=np.float64)


@lru_cache
def _epsilon(rounds: int, multiplier: float, clients: int, sampled: int, delta: float) -> float:
    return epsilon(rounds, multiplier, clients, sampled, delta)


def _require_bounded(tensors: State, start: State, client: str) -> None:
    """Raise an ``InputError`` unless every tensor is a float tensor with a reference of the same shape."""
    for group, named in tensors.items():
        for name, tensor in named.items():
            if not tensor.is_floating_point() or start.get(group, {}).get(name, torch.empty(0)).shape != tensor.shape:
                raise InputError(
                    f"With [privacy] every sent tensor must be a change of a received one, but "
                    f"'{group}/{name}' of {client} is not; remove [privacy] or choose another method."
                )
