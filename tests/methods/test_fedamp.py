"""FedAMP against double loops and autograd."""

from typing import Any

import numpy as np
import pytest
import torch

from fedbasis.methods.base import Task
from fedbasis.methods.fedamp import FedAMP, FedAMPConfig, by_cosine, by_distance
from fedbasis.methods.shared.client_models import gram
from fedbasis.tensors.seeding import torch_generator
from methods.helpers.related import (
    DATA,
    NAMES,
    SEED,
    alone,
    assert_own_way_is_ft_prox,
    assert_parameters_close,
    context_of,
    equal,
    one_step,
    parameters,
    task_of,
    train,
)


def amp(task: Task, **config: Any) -> FedAMP:
    return FedAMP.build(FedAMPConfig(**config), task)


class TestFedAMP:
    @pytest.mark.parametrize(("alpha", "capped"), [(0.3, 0), (2.0, 4)])
    def test_u_is_a_double_loop_over_the_clients(self, alpha: float, capped: int) -> None:
        task, sigma = task_of(), 2.0
        method = amp(task, alpha=alpha, sigma=sigma)
        states, _, _ = train(method, [NAMES[:2], NAMES])
        server, found = states[-1], 0
        flat = {name: parameters(task, server[f"client/{name}"]) for name in NAMES}
        for m in NAMES:
            xi = {}
            for j in NAMES:
                if j != m:
                    distance = float((flat[m] - flat[j]).square().sum())
                    xi[j] = alpha * np.exp(-distance / sigma) / sigma
            if sum(xi.values()) > 3 / 4:
                found += 1
                xi = {j: weight * 3 / 4 / sum(xi.values()) for j, weight in xi.items()}
            xi[m] = 1 - sum(xi.values())
            cloud = method.broadcast(server, m)["model"]
            for name, tensor in cloud.items():
                wanted = sum(xi[j] * server[f"client/{j}"][name].double() for j in NAMES)
                torch.testing.assert_close(tensor, wanted.float(), rtol=1e-5, atol=1e-6)
        assert found == capped

    def test_u_is_half_a_gradient_step_on_the_sum_of_a(self) -> None:
        """As the paper writes it: 1 - alpha A' and alpha A', where the derivative of ||w_i - w_j||^2 has a 2."""
        w = torch.randn(4, 6, generator=torch_generator("w"), dtype=torch.float64)
        alpha, sigma = 0.7, 8.0
        free = w.clone().requires_grad_()
        pairs = [(i, j) for i in range(4) for j in range(i)]
        total = sum(1 - torch.exp(-(free[i] - free[j]).square().sum() / sigma) for i, j in pairs)
        total.backward()  # type: ignore[union-attr]
        assert free.grad is not None
        xi = by_distance(w @ w.T, alpha, sigma)
        torch.testing.assert_close(xi @ w, w - alpha / 2 * free.grad)

    @pytest.mark.parametrize("own", [None, 0.1, 0.6])
    def test_cosine_attention_is_a_softmax_over_the_others(self, own: float | None) -> None:
        w = torch.randn(5, 6, generator=torch_generator("w"), dtype=torch.float64) + 1
        xi = by_cosine(w @ w.T, 3.0, own)
        self_weight = 0.2 if own is None else own
        for m in range(5):
            scores = {
                j: np.exp(3.0 * float(w[m] @ w[j] / (w[m].norm() * w[j].norm()))) for j in range(5) if j != m
            }  # fmt: skip
            for j in range(5):
                wanted = self_weight if j == m else (1 - self_weight) * scores[j] / sum(scores.values())
                assert float(xi[m, j]) == pytest.approx(wanted)

    @pytest.mark.parametrize("config", [{"alpha": 1.0, "sigma": 2.0}, {}, {"attention": "cosine"}])
    def test_weights_are_shares(self, config: dict[str, Any]) -> None:
        method = amp(task_of(), **config)
        for rounds in ([NAMES[:1]], [NAMES[:3], NAMES]):
            states, _, _ = train(method, rounds)
            xi = states[-1]["relations"]["attention"]
            torch.testing.assert_close(xi.sum(1), torch.ones(len(xi)))
            assert bool((xi >= 0).all())
            assert bool((xi.diagonal() >= 1 / len(xi) - 1e-6).all())
            assert method.insight.diagnostics(states[-1])["self_weight"] == pytest.approx(float(xi.diagonal().mean()))

    def test_gram_gives_the_distances_of_parameters(self) -> None:
        task = task_of()
        models = [task.initial(seed) for seed in range(3)]
        flat = torch.stack([parameters(task, model) for model in models])
        torch.testing.assert_close(gram(models, task.parameters), flat @ flat.T)

    @pytest.mark.parametrize("config", [{"alpha": 1.0, "sigma": 2.0}, {"attention": "cosine"}])
    def test_equal_clients_get_their_own_model_back_bit_for_bit(self, config: dict[str, Any]) -> None:
        method = amp(task_of(), **config)
        _, _, log = train(method, [NAMES[:1]])
        update = log[0][NAMES[0]]
        server = method.aggregate(method.init(SEED), [(name, update) for name in NAMES], SEED)
        assert equal(method.broadcast(server, NAMES[2])["model"], update.tensors["model"])

    def test_without_lambda_every_client_trains_alone_bit_for_bit(self) -> None:
        task = task_of()
        states, _, _ = train(amp(task, lam=0.0, start="own", alpha=1.0, sigma=5.0), [NAMES] * 3)
        for name, model in alone(task, 3).items():
            assert equal(states[-1][f"client/{name}"], model)

    @pytest.mark.parametrize("start", ["own", "cloud"])
    def test_a_step_follows_autograd_through_the_pull_towards_u(self, start: Any) -> None:
        task = task_of(batch=64, momentum=0.0)
        method = amp(task, lam=2.0, alpha=4.0, sigma=20.0, start=start)
        states, engine, _ = train(method, [NAMES] * 2)
        received, kept = method.broadcast(states[-1], NAMES[2]), engine.states[NAMES[2]]
        u = parameters(task, received["model"])
        begin = kept["model"] if start == "own" else received["model"]
        wanted = one_step(task, begin, DATA[NAMES[2]], lambda w: 2.0 / (2 * 4.0) * (w - u).square().sum())
        sent, _ = method.client_update(received, kept, DATA[NAMES[2]], context_of(task, NAMES[2], 2))
        assert_parameters_close(sent.tensors["model"], wanted)
        other = one_step(task, kept["model"], DATA[NAMES[2]], lambda w: 0 * w.sum())
        assert not torch.allclose(other["fc.weight"], wanted["fc.weight"], atol=1e-4)

    def test_the_pull_in_the_cloud_holds_a_client_back(self) -> None:
        """From u itself the pull is zero at first; over several steps it keeps a client nearer to u."""
        task, moved = task_of("none", epochs=4), []
        for lam in (0.0, 5.0):
            method = amp(task, lam=lam, alpha=1.0, sigma=5.0)
            received = method.broadcast(method.init(SEED), NAMES[0])
            sent, _ = method.client_update(received, None, DATA[NAMES[0]], context_of(task, NAMES[0]))
            moved.append((parameters(task, sent.tensors["model"]) - parameters(task, received["model"])).norm())
        assert moved[1] < 0.8 * moved[0]

    def test_alpha_falls_by_its_factor(self) -> None:
        task = task_of(epochs=1)
        method = amp(task, alpha=8.0, alpha_decay=0.5, decay_every=2, sigma=1e3)
        states, _, _ = train(method, [NAMES[:3]] * 5)
        sent = [float(method.broadcast(state, NAMES[0])["relations"]["alpha"]) for state in states]
        assert sent == [8.0, 8.0, 4.0, 4.0, 2.0, 2.0]
        for state, alpha in zip(states[1:], sent[1:], strict=True):
            flat = [parameters(task, state[f"client/{name}"]) for name in NAMES[:3]]
            wanted = alpha / 1e3 * np.exp(-float((flat[0] - flat[1]).square().sum()) / 1e3)
            assert float(state["relations"]["attention"][0, 1]) == pytest.approx(wanted, rel=1e-4)

    def test_a_new_client_is_fitted_as_by_fine_tuning_with_a_leash_of_lambda_over_alpha(self) -> None:
        method = amp(task_of(), lam=2.0, alpha=8.0, sigma=20.0)
        states, _, _ = train(method, [NAMES])
        assert_own_way_is_ft_prox(method, "amp", states[-1], 0.25)
