"""What a client sent, seen as an update: how far it is from what the client received, and shortened if that is too far.

A method says what its tensors are measured from (``Method.reference``). All of them together are one vector; whole
numbers are choices, not distances, and stay as they are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fedbasis.algorithms.base import Method, Sent
from fedbasis.params import State


def clipped_stream(method: Method, server: State, updates: Iterable[tuple[str, Sent]]) -> Iterable[tuple[str, Sent]]:
    """Shorten every update to the length that the task allows, if it says one."""
    limit = method.task.averaging.clip
    return updates if limit is None else _shortened(method, server, updates, limit)


def _shortened(
    method: Method, server: State, updates: Iterable[tuple[str, Sent]], limit: float
) -> Iterator[tuple[str, Sent]]:
    for client, sent in updates:
        start = method.reference(server, client, sent.tensors)
        yield client, replace(sent, tensors=clipped(sent.tensors, start, limit))


def clipped(sent: State, start: State, limit: float) -> State:
    """Return the tensors at most ``limit`` (L2, all of them as one vector) from their start; short ones as they are."""
    factor = limit / max(length(sent, start), limit)
    if factor == 1.0:
        return sent
    return {
        group: {name: _nearer(tensor, _start(start, group, name, tensor), factor) for name, tensor in tensors.items()}
        for group, tensors in sent.items()
    }


def length(sent: State, start: State) -> float:
    """Measure an update: the L2 norm of all its differences."""
    total = 0.0
    for group, tensors in sent.items():
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                total += float((tensor.double() - _start(start, group, name, tensor)).square().sum())
    return total**0.5


def _start(start: State, group: str, name: str, like: Tensor) -> Tensor:
    """Find what a tensor is measured from, in float64; what has no like is measured from zero."""
    found = start.get(group, {}).get(name)
    if found is None or found.shape != like.shape:
        return torch.zeros_like(like, dtype=torch.float64)
    return found.double()


def _nearer(tensor: Tensor, start: Tensor, factor: float) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return (start + factor * (tensor.double() - start)).to(tensor.dtype)
