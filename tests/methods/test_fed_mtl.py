"""Fed-MTL against closed forms and autograd."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from fedbasis.methods.base import Adaptation, Task
from fedbasis.methods.fed_mtl import FedMTL, FedMTLConfig, relations
from fedbasis.networks.train import local_sgd
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import Tensors
from fedbasis.tensors.seeding import torch_generator
from methods.helpers.related import (
    DATA,
    NAMES,
    alone,
    assert_own_way_is_ft_prox,
    assert_parameters_close,
    context_of,
    equal,
    one_step,
    parameters,
    personal,
    task_of,
    train,
)


def mtl(task: Task, **config: Any) -> FedMTL:
    return FedMTL.build(FedMTLConfig(**config), task)


class TestFedMTL:
    @pytest.mark.parametrize("norm", ["batch", "none"])
    @pytest.mark.parametrize("epsilon", [1e-6, 1e-2])
    def test_omega_is_its_closed_form_by_a_matrix_square_root_of_all_of_w(self, norm: str, epsilon: float) -> None:
        task = task_of(norm)
        states, _, _ = train(mtl(task, epsilon=epsilon), [NAMES[:3], NAMES[1:]])
        w = torch.stack([parameters(task, states[-1][f"client/{name}"]) for name in NAMES], 1).numpy()
        square = w.T @ w
        square += epsilon * np.mean([column @ column for column in w.T]) * np.eye(len(NAMES))
        root = scipy.linalg.sqrtm(square)
        wanted = np.linalg.inv(root / np.trace(root))
        np.testing.assert_allclose(states[-1]["relations"]["omega"].numpy(), wanted, rtol=1e-4, atol=1e-4)
        exact = relations(torch.from_numpy(w.T @ w), epsilon)
        np.testing.assert_allclose(exact.numpy(), wanted, rtol=1e-7)

    def test_omega_minimises_the_penalty_among_all_with_inverses_of_trace_one(self) -> None:
        w = torch.randn(30, 5, generator=torch_generator("w"), dtype=torch.float64)
        w += w.mean(1, keepdim=True)
        square, epsilon = w.T @ w, 1e-3
        ridged = square + epsilon * square.diagonal().mean() * torch.eye(5, dtype=torch.float64)
        sigma = torch.linalg.inv(relations(square, epsilon))
        assert float(sigma.trace()) == pytest.approx(1)

        def objective(covariance: Tensor) -> float:
            return float((ridged @ torch.linalg.inv(covariance)).trace())

        best = objective(sigma)
        for i in range(20):
            direction = torch.randn(5, 5, generator=torch_generator("direction", i), dtype=torch.float64)
            direction = direction + direction.T
            direction -= direction.trace() / 5 * torch.eye(5, dtype=torch.float64)
            step = 1e-3 * float(torch.linalg.eigvalsh(sigma)[0]) / float(torch.linalg.matrix_norm(direction, 2))
            up, down = objective(sigma + step * direction), objective(sigma - step * direction)
            assert min(up, down) > best
            curved = (up - best) + (down - best)  # second order; the first order must vanish beside it
            assert abs(up - down) < 0.05 * curved

    @pytest.mark.parametrize("norm", ["batch", "none"])
    def test_a_step_follows_autograd_through_the_trace_with_the_others_fixed(self, norm: str) -> None:
        task = task_of(norm, batch=64, momentum=0.0)
        method = mtl(task, l1=0.02, l2=0.03)
        states, engine, _ = train(method, [NAMES, NAMES[:2]])
        client, server = NAMES[1], states[-1]
        column = NAMES.index(client)
        omega = server["relations"]["omega"].double()
        w = torch.stack([parameters(task, server[f"client/{name}"]) for name in NAMES], 1)

        def penalty(own: Tensor) -> Tensor:
            whole = torch.cat([w[:, :column], own[:, None], w[:, column + 1 :]], 1)
            return 0.02 * (whole @ omega @ whole.T).trace() + 0.03 * whole.square().sum()

        received = method.broadcast(server, client)
        assert set(received) == {"pull", "relations"}
        assert set(received["pull"]) == task.parameters
        assert received["relations"]["own"].numel() == 1
        kept = engine.states[client]
        assert equal(kept["model"], server[f"client/{client}"])
        sent, after = method.client_update(received, kept, DATA[client], context_of(task, client, 2))
        wanted = one_step(task, kept["model"], DATA[client], penalty)
        assert_parameters_close(sent.tensors["model"], wanted)
        plain = one_step(task, kept["model"], DATA[client], lambda own: 0 * own.sum())
        assert not torch.allclose(plain["fc.weight"], wanted["fc.weight"], atol=1e-4)
        assert after is not None
        assert equal(after["model"], sent.tensors["model"])

    @pytest.mark.parametrize("norm", ["batch", "group"])
    def test_without_penalties_every_client_trains_alone_bit_for_bit(self, norm: str) -> None:
        task = task_of(norm)
        states, engine, _ = train(mtl(task, l1=0.0, l2=0.0), [NAMES] * 3)
        for name, model in alone(task, 3).items():
            assert equal(states[-1][f"client/{name}"], model)
            assert equal(engine.states[name]["model"], model)

    def test_relations_draw_the_models_together(self) -> None:
        task = task_of("none", epochs=3)
        spreads = []
        for l1 in (0.0, 0.01):
            states, _, _ = train(mtl(task, l1=l1), [NAMES] * 3)
            w = torch.stack([parameters(task, states[-1][f"client/{name}"]) for name in NAMES])
            spreads.append(float((w - w.mean(0)).norm() / w.norm()))
        assert spreads[1] < 0.9 * spreads[0]

    def test_a_client_seen_for_the_first_time_starts_from_the_mean_without_relations(self) -> None:
        task = task_of()
        method = mtl(task, l1=0.5)
        states, _, log = train(method, [NAMES[:2], NAMES[2:]])
        context = context_of(task, NAMES[3], 1)
        context.model.load(states[1]["model"])
        local_sgd(context.model, DATA[NAMES[3]], task.recipe, context.generator("batches"))
        assert equal(log[1][NAMES[3]].tensors["model"], context.model.tensors())
        assert states[-1]["relations"]["omega"].shape == (4, 4)

    def test_a_new_client_is_fitted_as_by_fine_tuning_with_a_leash_of_twice_l1(self) -> None:
        task = task_of()
        method = mtl(task, l1=0.25)
        states, _, _ = train(method, [NAMES])
        assert_own_way_is_ft_prox(method, "mtl", states[-1], 0.5)
        heavier = personal(mtl(task, l1=0.25, l2=0.4), "mtl", states[-1])
        lighter = personal(mtl(task, l1=0.25, l2=0.1), "mtl", states[-1])
        assert parameters(task, heavier).norm() < parameters(task, lighter).norm()

    def test_a_new_client_follows_autograd(self) -> None:
        task = task_of(batch=64)
        method, data = mtl(task, l1=0.3, l2=0.2), DATA[NAMES[0]]
        states, _, _ = train(method, [NAMES])
        centre = parameters(task, states[-1]["model"])

        def two_steps(start: Tensors) -> Tensors:
            for _ in range(2):
                module = task.network.build()
                module.load_state_dict(start, strict=False)
                moved = one_step(
                    replace(task, recipe=replace(task.recipe, rate=0.05, decay=0.0)), start, data,
                    lambda own: 0.3 * (own - centre).square().sum() + 0.2 * own.square().sum(),
                )  # fmt: skip
                start = {**start, **moved}
            return {name: start[name] for name in task.parameters}

        plan = Adaptation(epochs=2, rate=0.05, decay=0.0, momentum=0.0, batch=64)
        got = personalize(method, states[-1], "mtl", data, context_of(task, "new"), plan).last.tensors
        assert_parameters_close(got, two_steps(states[-1]["model"]))
