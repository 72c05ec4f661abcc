"""Every method with the arithmetic that GPUs are fast with, compared with float32 on the CPU within its rounding."""

import math
from dataclasses import replace

import pytest
import torch

from battery import FIRST, QUICK, make
from fedbasis.methods import METHODS
from fedbasis.methods.base import Context, Method
from fedbasis.networks.models import Network
from fedbasis.tensors.params import State
from pflbed.errors import InputError
from shapes import shapes_examples

SENDING = FIRST - {"local"}
"""Methods that send something, which can be compared."""
FLAT = {name for name, method in METHODS.items() if method.flat_state}


def with_network(method: Method, **changes: object) -> Method:
    return method.bind(replace(method.task, network=replace(method.task.network, **changes)))  # type: ignore[arg-type]


def updated(method: Method, server: State) -> State:
    """Return what a client sends after one epoch."""
    context = Context(7, "a/p00", method.task.network.workspace(), 0)
    received = method.broadcast(server, "a/p00")
    return method.client_update(received, None, shapes_examples(24), context)[0].tensors


def difference(one: State, other: State, start: State) -> float:
    """Return the distance of two updates, as a share of how far the first one moved from the server's model."""
    model = {name: tensor for named in start.values() for name, tensor in named.items()}
    apart, moved = 0.0, 0.0
    for group, named in one.items():
        for name, tensor in named.items():
            begin = model[name] if name in model and model[name].shape == tensor.shape else torch.zeros_like(tensor)
            apart += float((other[group][name] - tensor).double().square().sum())
            moved += float((tensor - begin).double().square().sum())
    return math.sqrt(apart / moved)


@pytest.mark.parametrize("variant", sorted(SENDING - FLAT))
def test_channels_last_weights_change_roundings_only(variant: str) -> None:
    method = make(variant, QUICK)
    other = with_network(method, channels_last=True)
    convolution = next(p for p in other.task.network.workspace().module.parameters() if p.ndim == 4)
    assert convolution.is_contiguous(memory_format=torch.channels_last)
    assert not convolution.is_contiguous()
    server = method.init(7)
    assert difference(updated(method, server), updated(other, server), server) < 1e-4


@pytest.mark.parametrize("variant", sorted(SENDING - {"per-fedavg-hf"}))
def test_bfloat16_changes_as_much_as_its_rounding(variant: str) -> None:
    """A number of bfloat16 has 8 bits, so one step on 24 images is within some percent, and it is not the same."""
    method = make(variant, replace(QUICK, batch=24))
    server = method.init(7)
    apart = difference(updated(method, server), updated(with_network(method, precision="bf16"), server), server)
    assert 0 < apart < 0.25


def test_differences_of_gradients_need_float32() -> None:
    with pytest.raises(InputError, match=r"must have train.precision 'float32'"):
        with_network(make("per-fedavg-hf", QUICK), precision="bf16")


def test_weights_and_gradients_stay_float32() -> None:
    model = Network("cnn-small", 3, 12, precision="bf16").workspace()
    logits = model.logits(torch.zeros(2, 3, 12, 12))
    logits.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.dtype == torch.float32
    assert {p.dtype for p in model.module.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in model.module.parameters() if p.grad is not None} == {torch.float32}


def test_pfedhn_keeps_the_order_of_its_flat_vectors() -> None:
    assert {"pfedhn"} == FLAT
