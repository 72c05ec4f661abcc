"""Clipping: scale a client's change down to a maximal L2 norm.

The change is the difference from ``Updates.reference``, by default from what the client received. All tensors together
are one vector. Integer tensors are choices, not distances, and are not changed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import sqrt

from torch import Tensor

from fedbasis.methods.base import Method, Sent
from fedbasis.tensors.params import State


def clip_updates(method: Method, server: State, updates: Iterable[tuple[str, Sent]]) -> Iterable[tuple[str, Sent]]:
    """Clip every update to ``task.averaging.clip``; without a limit, return the updates unchanged."""
    limit = method.task.averaging.clip
    return updates if limit is None else _shortened(method, server, updates, limit)


def _shortened(
    method: Method, server: State, updates: Iterable[tuple[str, Sent]], limit: float
) -> Iterator[tuple[str, Sent]]:
    for client, sent in updates:
        start = method.updates.reference(server, client, sent.tensors)
        yield client, replace(sent, tensors=clipped(sent.tensors, start, limit))


def clipped(sent: State, start: State, limit: float) -> State:
    """Return tensors whose distance from ``start`` (L2, all of them as one vector) is at most ``limit``."""
    moved = differences(sent, start)
    factor = shortening(moved, limit)
    if factor == 1.0:
        return sent
    scaled: State = {}
    for group, named in moved.items():
        starts = {name: _start(start, group, name, sent[group][name]) for name in named}
        scaled[group] = {n: (starts[n] + factor * change).to(sent[group][n].dtype) for n, change in named.items()}
    return {group: {**tensors, **scaled[group]} for group, tensors in sent.items()}


def differences(sent: State, start: State) -> State:
    """Return the difference of every float tensor from its start, in float64; a missing start is zero."""
    return {
        group: {
            name: tensor.double() - _start(start, group, name, tensor)
            for name, tensor in tensors.items()
            if tensor.is_floating_point()
        }
        for group, tensors in sent.items()
    }


def shortening(moved: State, limit: float) -> float:
    """Return the factor, at most one, that scales a difference to the norm ``limit``; NaN if the norm is NaN."""
    length = sqrt(sum(float(tensor.square().sum()) for tensors in moved.values() for tensor in tensors.values()))
    return limit / max(length, limit)


def _start(start: State, group: str, name: str, like: Tensor) -> Tensor | float:
    tensor = start.get(group, {}).get(name)
    return 0.0 if tensor is None or tensor.shape != like.shape else tensor.double()
