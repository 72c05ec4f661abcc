"""FedAvg against modules that are trained and averaged naively."""

import pytest
import torch

from battery import clients, same
from fedbasis.methods.base import Context
from fedbasis.networks.batches import Recipe
from methods.helpers.layers import SEED, build, close, federate, jointly, naive


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_rounds_equal_modules_trained_and_averaged_naively(norm: str, weighting: str, recipe: Recipe) -> None:
    """Several rounds with changing clients, in double precision; nothing is kept by anybody."""
    method, data = build("fedavg", recipe, norm, weighting), clients(3)
    server, kept = federate(method, data, torch.float64)
    wanted, _, _ = naive(method, data, lambda _: True, jointly)
    assert close(server["model"], wanted)
    assert not close(server["model"], method.task.network.initial(SEED), 0.01)
    assert kept == {}


def test_a_part_of_the_steps_is_the_whole_when_put_together(recipe: Recipe) -> None:
    """``only`` takes the steps of an update in pieces; without momentum the pieces add up, bit for bit."""
    from dataclasses import replace

    from fedbasis.methods.fedavg import FedAvg

    method, data = FedAvg.build(None, build("fedavg", replace(recipe, momentum=0.0)).task), clients(1)["a/p00"]
    context = Context(SEED, "c", method.task.network.workspace())
    server = method.init(SEED)
    whole, _ = method.client_update(server, None, data, context)
    first, _ = method.client_update(server, None, data, context, (0, 2))
    second, _ = method.client_update(first.tensors, None, data, context, (2, 99))
    assert same(second.tensors, whole.tensors)
    assert not same(first.tensors, whole.tensors)
