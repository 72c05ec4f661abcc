"""APFL against FedAvg, training alone, autograd and closed forms."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedbasis.methods.base import Adaptation, Context, Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples
from fedbasis.networks.models import Network
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import State, Tensors
from methods.helpers.linear import (
    SEED,
    assert_near,
    build,
    clients,
    dots,
    equal,
    matrix,
    minimum,
    problem,
    run,
)
from shapes import shapes_examples


def apfl_by_autograd(
    task: Task, received: Tensors, own: Tensors, alpha: float, alpha_rate: float, data: Examples
) -> tuple[nn.Module, Tensors, float, Tensors]:
    """Algorithm 1 of the paper: torch differentiates the mixture with respect to v and alpha; batches are full."""
    recipe, module, mixed = task.recipe, task.network.build().train(), task.network.build().train()
    module.load_state_dict(received, strict=False)
    v = {name: own[name].clone().requires_grad_() for name in task.parameters}
    buffers = {n: own[n].clone() if n in own else b.clone() for n, b in mixed.named_buffers()}
    share = torch.tensor(alpha, requires_grad=True)
    settings: dict[str, Any] = {"lr": recipe.rate, "momentum": recipe.momentum, "weight_decay": recipe.decay}
    optimizers = [torch.optim.SGD(leaves, **settings) for leaves in (module.parameters(), v.values())]
    inputs = recipe.preprocessing(data.pixels)
    for _ in range(recipe.epochs):
        for optimizer in optimizers:
            optimizer.zero_grad()
        share.grad = None
        fixed = {name: p.detach().clone() for name, p in module.named_parameters()}
        mixture = {name: share * v[name] + (1 - share) * fixed[name] for name in v}
        logits = torch.func.functional_call(mixed, {**mixture, **buffers}, (inputs,))
        nn.functional.cross_entropy(logits, data.labels).backward()  # type: ignore[no-untyped-call]
        nn.functional.cross_entropy(module(inputs), data.labels).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        assert share.grad is not None
        with torch.no_grad():
            share.sub_(alpha_rate * share.grad).clamp_(0, 1)
    return module, {name: leaf.detach() for name, leaf in v.items()}, float(share.detach()), buffers


class TestAPFL:
    @pytest.mark.parametrize("settings", [{"alpha": 0.0}, {"alpha": 0.4}, {"adaptive": True}])
    def test_what_is_sent_is_fedavg_bit_for_bit(self, task: Task, settings: dict[str, Any]) -> None:
        """The global model is trained by its own gradient alone."""
        rounds = [["c0", "c1", "c2"], ["c1", "c2"], ["c0", "c1"]]
        average, _, sent = run(build("fedavg", task), clients(), rounds)
        apfl, kept, also = run(build("apfl", task, **settings), clients(), rounds)
        assert equal(average["model"], apfl["model"])
        for one, other in zip(sent, also, strict=True):
            assert all(equal(one[client].tensors["model"], other[client].tensors["model"]) for client in one)
        assert not equal(kept["c0"]["personal"], also[-1]["c0"].tensors["model"])

    def test_alpha_one_is_training_alone_bit_for_bit(self, task: Task) -> None:
        rounds = [["c0", "c1", "c2"], ["c1", "c2"], ["c0", "c1"]]
        _, alone, _ = run(build("local", task), clients(), rounds)
        for alpha, same in ((1.0, True), (0.9, False)):
            _, kept, _ = run(build("apfl", task, alpha=alpha), clients(), rounds)
            assert all(equal(kept[client]["personal"], alone[client]["model"]) is same for client in alone)

    @pytest.mark.parametrize("norm", ["batch", "none"])
    @pytest.mark.parametrize("alpha_rate", [None, 0.3, 50.0])
    def test_steps_equal_autograd_through_the_mixture(
        self, recipe: Recipe, norm: str, alpha_rate: float | None
    ) -> None:
        """v, alpha, w and the mixture's statistics, over four steps with momentum and decay, from v other than w."""
        task = Task(Network("cnn-small", 3, 12, {"norm": norm}), replace(recipe, batch=12, epochs=4), 3)
        settings = {"alpha": 0.35} if alpha_rate is None else {"adaptive": True, "alpha_rate": alpha_rate}
        method, data = build("apfl", task, **settings), shapes_examples(12)
        received, own = task.initial(1), task.initial(2)
        before: State = {"personal": own, "mixture": {"alpha": torch.tensor(0.35)}}
        context = Context(SEED, "c", task.network.workspace())
        sent, kept = method.client_update({"model": received}, before, data, context)
        module, v, alpha, buffers = apfl_by_autograd(task, received, own, 0.35, alpha_rate or 0.0, data)
        assert kept is not None
        close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(sent.tensors["model"][name], parameter.detach(), **close)
            torch.testing.assert_close(kept["personal"][name], v[name], **close)
        for name in kept["personal"].keys() - v.keys():
            torch.testing.assert_close(kept["personal"][name], buffers[name], **close)
        assert float(kept["mixture"]["alpha"]) == pytest.approx(alpha, abs=1e-4)
        assert (alpha_rate is None) == (alpha == pytest.approx(0.35, abs=1e-3))

    def test_alpha_stays_between_zero_and_one_and_is_kept(self, task: Task) -> None:
        method = build("apfl", task, adaptive=True, alpha_rate=100.0)
        shares = []
        for rounds in (1, 2, 3):
            _, kept, _ = run(method, clients(2), [["c0", "c1"]] * rounds)
            shares += [float(state["mixture"]["alpha"]) for state in kept.values()]
        assert all(0 <= share <= 1 for share in shares)
        assert {0.0, 1.0} & set(shares)

    def test_alpha_one_serves_a_new_client_as_fine_tuning_does(self, task: Task) -> None:
        data, context = shapes_examples(13), Context(SEED, "new", task.network.workspace())
        plan = Adaptation(epochs=3, rate=0.05, decay=1e-2, batch=5)
        method = build("apfl", task, alpha=1.0)
        server, _, _ = run(method, clients(2), [["c0", "c1"]])
        own = personalize(method, server, "apfl", data, context, plan)
        generic = personalize(method, server, "ft", data, context, plan)
        assert equal(own.last.tensors, generic.last.tensors)
        assert own.losses == generic.losses

    def test_alpha_zero_serves_a_new_client_with_the_global_parameters(self, task: Task) -> None:
        data, context = shapes_examples(13), Context(SEED, "new", task.network.workspace())
        method = build("apfl", task, alpha=0.0)
        server = method.init(SEED)
        outcome = personalize(method, server, "apfl", data, context, Adaptation(epochs=2, rate=0.05))
        assert all(torch.equal(outcome.last.tensors[name], server["model"][name]) for name in task.parameters)

    @pytest.mark.parametrize("alpha", [0.25, 0.5])
    def test_new_client_follows_the_mixtures_gradient_flow(self, quadratic: Task, alpha: float) -> None:
        """With w fixed the mixture moves by ``alpha^2`` of the rate; plain steps have a closed form."""
        method, data, steps, rate = build("apfl", quadratic, alpha=alpha), dots()["c3"], 25, 0.2
        server = method.init(SEED)
        plan = Adaptation(epochs=steps, rate=rate, decay=0.0, momentum=0.0, batch=100)
        context = Context(SEED, "new", quadratic.network.workspace())
        outcome = personalize(method, server, "apfl", data, context, plan)
        hessian, linear_term = problem(data)
        best, start = minimum(hessian, linear_term), matrix(server["model"])
        shrink = np.linalg.matrix_power(np.eye(4) - rate * alpha**2 * hessian, steps)
        assert_near(matrix(outcome.last.tensors), best + (start - best) @ shrink, 1e-10)

    def test_new_client_learns_alpha_where_asked(self, quadratic: Task) -> None:
        """The first step of v has no slope in alpha (v is w); the second has the inner product."""
        method, data, rate = build("apfl", quadratic, adaptive=True, alpha_rate=0.7), dots()["c3"], 0.2
        server = method.init(SEED)
        plan = Adaptation(epochs=2, rate=rate, decay=0.0, momentum=0.0, batch=100)
        context = Context(SEED, "new", quadratic.network.workspace())
        outcome = personalize(method, server, "apfl", data, context, plan)
        hessian, linear_term = problem(data)
        w = matrix(server["model"])
        v = w - rate * 0.5 * (w @ hessian - linear_term)
        gradient = (0.5 * v + 0.5 * w) @ hessian - linear_term
        alpha = 0.5 - 0.7 * float(((v - w) * gradient).sum())
        v = v - rate * 0.5 * gradient
        assert float(outcome.last.learned["alpha"]) == pytest.approx(alpha, abs=1e-10)
        assert_near(matrix(outcome.last.tensors), alpha * v + (1 - alpha) * w, 1e-10)
