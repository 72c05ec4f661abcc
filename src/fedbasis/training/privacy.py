"""Differential privacy of the clients: the server learns from a round nothing but the noisy mean of bounded updates.

Every client's update, all its tensors as one vector, is shortened to at most ``clip``; their sum is divided by the
number of clients that were asked (one that fails, or sends what is no number, counts as an update of zero); Gaussian
noise of deviation ``multiplier * clip / clients`` is added to every number. The method then sees this as if one client
had sent it (``Updates.from_average``), so whatever it does with it costs nothing more. Numbers for the log do not take part.

The server itself is trusted: it sees single updates. McMahan et al., "Learning Differentially Private Recurrent
Language Models", ICLR 2018 (with a fixed number of clients a round). docs/privacy.md says what this
protects and what not.
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
"""So many numbers of the standard normal distribution."""
PIECE = 2**18
VARIANCE = "running_var"
"""What torch calls the statistics of normalization that cannot be negative."""


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """How a run is protected; ``clients`` take part in all, ``sampled`` of them in every round."""

    multiplier: float
    clip: float
    delta: float
    clients: int
    sampled: int
    secret: bool
    """Noise and the choice of clients come from the operating system; if not, from the run's seed, for experiments."""

    def drawing_seed(self, seed: int) -> int:
        """Return what a round's clients are drawn by: who took part must not be known if few are to hide many."""
        return secrets.randbits(63) if self.secret else seed

    def epsilon(self, rounds: int) -> float:
        """Return what the first so many rounds cost."""
        return _epsilon(rounds, self.multiplier, self.clients, self.sampled, self.delta)

    def spent(self, rounds: int) -> dict[str, float]:
        """Return it for the log."""
        return {"epsilon": self.epsilon(rounds), "delta": self.delta}

    def aggregate(
        self, method: Method, server: State, updates: Iterable[tuple[str, Sent]], seed: int, round: int
    ) -> State:
        """Make the server's next state from the noisy mean of the updates."""
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
            for group, named in moved.items() if 0 < factor <= 1 else ():  # no number: an update of zero
                for name, far in named.items():
                    total[group][name].add_(far, alpha=factor)
        if not like:
            raise InputError(f"A mean needs at least one update, but none arrived in round {round + 1}.")
        draw = urandom_normal if self.secret else numpy_generator(seed, "privacy noise", round).standard_normal
        mean: State = {}
        for group, named in like.items():
            noisy = {name: self._noisy(total[group][name], draw) for name in named}
            mean[group] = {name: (old.double() + noisy[name]).to(old.dtype) for name, old in named.items()}
            for name in (name for name in named if name.endswith(VARIANCE)):
                mean[group][name].clamp_(min=0)  # noise knows no sign; what is made of the noisy mean costs nothing
        return method.updates.from_average(server, mean, seed)

    def _noisy(self, total: Tensor, draw: Draw) -> Tensor:
        flat = total.reshape(-1) / self.sampled
        for start in range(0, len(flat), PIECE):
            piece = flat[start : start + PIECE]
            piece += self.multiplier * self.clip / self.sampled * torch.from_numpy(draw(len(piece)))
        return flat.view(total.shape)


def urandom_normal(count: int) -> NDArray[np.float64]:
    """Draw every number from the operating system: there is no seed that could be guessed."""
    from scipy.special import ndtri

    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    return np.asarray(ndtri((bits + 0.5) / 2**53), dtype=np.float64)


@lru_cache
def _epsilon(rounds: int, multiplier: float, clients: int, sampled: int, delta: float) -> float:
    return epsilon(rounds, multiplier, clients, sampled, delta)


def _require_bounded(tensors: State, start: State, client: str) -> None:
    """Everything that counts must be a distance from what all clients received."""
    for group, named in tensors.items():
        for name, tensor in named.items():
            if not tensor.is_floating_point() or start.get(group, {}).get(name, torch.empty(0)).shape != tensor.shape:
                raise InputError(
                    f"With [privacy] everything that is sent must be a change of what was received, but "
                    f"'{group}/{name}' of {client} is not; leave [privacy] out or choose another method."
                )
