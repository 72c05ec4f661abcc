"""FedProx against FedAvg, autograd and the penalized minimum."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedbasis.methods.base import Context, Task
from methods.helpers.linear import SEED, assert_near, build, clients, dots, equal, matrix, minimum, problem, run
from shapes import shapes_examples


class TestFedProx:
    @pytest.mark.parametrize("weighting", ["uniform", "examples"])
    def test_without_a_pull_it_is_fedavg_bit_for_bit(self, task: Task, weighting: Any) -> None:
        task, rounds = replace(task, weighting=weighting), [["c0", "c1", "c2"]] * 2
        average, _, _ = run(build("fedavg", task), clients(), rounds)
        prox, _, _ = run(build("fedprox", task, mu=0.0), clients(), rounds)
        pulled, _, _ = run(build("fedprox", task, mu=0.5), clients(), rounds)
        assert equal(average["model"], prox["model"])
        assert not equal(average["model"], pulled["model"])

    def test_steps_equal_autograd_through_the_penalty(self, task: Task) -> None:
        """Several steps with momentum and decay: torch differentiates the loss with its penalty."""
        task = replace(task, recipe=replace(task.recipe, batch=12, epochs=4))
        method, data = build("fedprox", task, mu=0.7), shapes_examples(12)
        server = method.init(SEED)
        sent, kept = method.client_update(server, None, data, Context(SEED, "c", task.network.workspace()))
        assert kept is None
        module, recipe = task.network.build(SEED).train(), task.recipe
        start = {name: p.detach().clone() for name, p in module.named_parameters()}
        optimizer = torch.optim.SGD(module.parameters(), recipe.rate, recipe.momentum, weight_decay=recipe.decay)
        for _ in range(recipe.epochs):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(recipe.preprocessing(data.pixels)), data.labels)
            far = sum((p - start[name]).square().sum() for name, p in module.named_parameters())
            (loss + 0.7 / 2 * far).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(sent.tensors["model"][name], parameter.detach(), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("mu", [0.3, 4.0, 1e4])
    def test_long_training_ends_at_the_penalized_minimum(self, quadratic: Task, mu: float) -> None:
        """(H + mu I)^-1 (B + mu w_t); a huge mu leaves the model where it was."""
        task = replace(quadratic, recipe=replace(quadratic.recipe, rate=1 / (1.1 + mu), epochs=80))
        method, data = build("fedprox", task, mu=mu), dots()["c1"]
        server = method.init(SEED)
        sent, _ = method.client_update(server, None, data, Context(SEED, "c", task.network.workspace()))
        hessian, linear_term = problem(data)
        start = matrix(server["model"])
        wanted = minimum(hessian + mu * np.eye(4), linear_term + mu * start)
        assert_near(matrix(sent.tensors["model"]), wanted)
        if mu > 100:
            assert_near(wanted, start, 1e-3)
