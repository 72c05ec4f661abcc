"""What a client sent, seen as an update: how far it is from what the client received, and shortened if that is too far.

A method says what its tensors are measured from (``Updates.reference``). All of them together are one vector; whole
numbers are choices, not distances, and stay as they are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import sqrt

from torch import Tensor

from fedbasis.methods.base import Method, Sent
from fedbasis.tensors.params import State


def clip_updates(method: Method, server: State, updates: Iterable[tuple[str, Sent]]) -> Iterable[tuple[str, Sent]]:
    """Shorten every update to the length that the task allows, if it says one."""
    limit = method.task.averaging.clip
    return updates if limit is None else _shortened(method, server, updates, limit)


def _shortened(
    method: Method, server: State, updates: Iterable[tuple[str, Sent]], limit: float
) -> Iterator[tuple[str, Sent]]:
    for client, sent in updates:
        start = method.updates.reference(server, client, sent.tensors)
        yield client, replace(sent, tensors=clipped(sent.tensors, start, limit))


def clipped(sent: State, start: State, limit: float) -> State:
    """Return the tensors at most ``limit`` (L2, all of them as one vector) from their start; short ones as they are."""
    moved = differences(sent, start)
    factor = shortening(moved, limit)
    if factor == 1.0:
        return sent
    near: State = {}
    for group, named in moved.items():
        starts = {name: _start(start, group, name, sent[group][name]) for name in named}
        near[group] = {n: (starts[n] + factor * far).to(sent[group][n].dtype) for n, far in named.items()}
    return {group: {**tensors, **near[group]} for group, tensors in sent.items()}


def differences(sent: State, start: State) -> State:
    """Return how far every tensor is from its start, in float64; what has no like there is measured from zero."""
    return {
        group: {
            name: tensor.double() - _start(start, group, name, tensor)
            for name, tensor in tensors.items()
            if tensor.is_floating_point()
        }
        for group, tensors in sent.items()
    }


def shortening(moved: State, limit: float) -> float:
    """Return the factor that makes a difference no longer than ``limit``: at most one; NaN if it has no length."""
    length = sqrt(sum(float(tensor.square().sum()) for tensors in moved.values() for tensor in tensors.values()))
    return limit / max(length, limit)


def _start(start: State, group: str, name: str, like: Tensor) -> Tensor | float:
    found = start.get(group, {}).get(name)
    return 0.0 if found is None or found.shape != like.shape else found.double()
