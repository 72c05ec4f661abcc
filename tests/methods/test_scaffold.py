"""SCAFFOLD against FedAvg, the paper's algorithm and closed forms."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedbasis.methods.base import Context, Task
from methods.helpers.linear import SEED, assert_near, build, clients, dots, equal, matrix, minimum, problem, run
from pflbed.errors import InputError


class TestScaffold:
    @pytest.mark.parametrize("weighting", ["uniform", "examples"])
    def test_first_round_is_fedavg_bit_for_bit(self, task: Task, weighting: Any) -> None:
        """All variates are zero then; in the second round they are not."""
        task, everyone = replace(task, weighting=weighting), ["c0", "c1", "c2"]
        for rounds, same in ((1, True), (2, False)):
            average, _, _ = run(build("fedavg", task), clients(), [everyone] * rounds)
            scaffold, _, _ = run(build("scaffold", task), clients(), [everyone] * rounds)
            assert equal(average["model"], scaffold["model"]) is same

    @pytest.mark.parametrize(("momentum", "weighting"), [(0.0, "uniform"), (0.0, "examples"), (0.9, "uniform")])
    def test_reaches_the_optimum_of_the_mean_where_fedavg_does_not(
        self, quadratic: Task, momentum: float, weighting: Any
    ) -> None:
        """With momentum 0.9, variates divided by the plain number of steps diverge."""
        recipe = replace(quadratic.recipe, momentum=momentum, rate=0.03 if momentum else 0.2, epochs=8)
        task, data = replace(quadratic, recipe=recipe, weighting=weighting), dots()
        shares = np.array([task.weight(len(examples)) for examples in data.values()])
        shares /= shares.sum()
        problems = [problem(examples) for examples in data.values()]
        hessian = sum(share * h for share, (h, _) in zip(shares, problems, strict=True))
        linear_term = sum(share * b for share, (_, b) in zip(shares, problems, strict=True))
        best = minimum(np.asarray(hessian), np.asarray(linear_term))
        rounds = [list(data)] * 25
        scaffold, kept, _ = run(build("scaffold", task), data, rounds)
        assert_near(matrix(scaffold["model"]), best, 1e-5)
        for client, (h, b) in zip(data, problems, strict=True):  # every variate is the client's gradient there
            assert_near(matrix(kept[client]["control"]), best @ h - b, 1e-5)
        average, _, _ = run(build("fedavg", task), data, rounds)
        assert np.abs(matrix(average["model"]) - best).max() > 1e-3
        if momentum == 0:
            # FedAvg stops where w = mean of (w P_m + w*_m (I - P_m)) with P_m = (I - eta H_m)^K
            powers = [np.linalg.matrix_power(np.eye(4) - recipe.rate * h, recipe.epochs) for h, _ in problems]
            total = sum(share * (np.eye(4) - p) for share, p in zip(shares, powers, strict=True))
            ends = [minimum(h, b) @ (np.eye(4) - p) for (h, b), p in zip(problems, powers, strict=True)]
            drift = sum(share * end for share, end in zip(shares, ends, strict=True))
            assert_near(matrix(average["model"]), minimum(np.asarray(total), np.asarray(drift)))

    def test_equals_the_algorithm_of_the_paper(self, quadratic: Task) -> None:
        """Algorithm 1 with option II, written naively, with some of the clients in every round."""
        data, population = dots(), 4
        rounds = [["c0", "c1"], ["c1", "c2"], ["c3", "c0"], ["c2"], ["c0", "c1", "c2", "c3"]]
        recipe = quadratic.recipe
        x = matrix(build("scaffold", quadratic).init(SEED)["model"])
        c, own = np.zeros_like(x), {client: np.zeros_like(x) for client in data}
        for chosen in rounds:
            models, changes = [], []
            for client in chosen:
                hessian, linear_term = problem(data[client])
                y = x.copy()
                for _ in range(recipe.epochs):
                    y = y - recipe.rate * (y @ hessian - linear_term - own[client] + c)
                new = own[client] - c + (x - y) / (recipe.epochs * recipe.rate)
                models.append(y - x)
                changes.append(new - own[client])
                own[client] = new
            x = x + np.mean(models, axis=0)
            c = c + len(chosen) / population * np.mean(changes, axis=0)
        server, kept, log = run(build("scaffold", quadratic, population=population), data, rounds)
        assert_near(matrix(server["model"]), x, 1e-11)
        assert_near(matrix(server["control"]), c, 1e-11)
        for client in data:
            assert_near(matrix(kept[client]["control"]), own[client], 1e-11)
        assert_near(matrix(log[-1]["c3"].tensors["control"]), changes[-1], 1e-11)

    def test_server_variate_is_the_mean_of_the_clients(self, task: Task) -> None:
        """Over the whole population, or over those seen so far where it is unknown; for parameters alone."""
        data, rounds = clients(3), [["c0", "c1"], ["c1"], ["c2", "c0"], ["c1"]]
        for population in (5, None):
            server, kept, log = run(build("scaffold", task, population=population), data, rounds)
            assert server["control"].keys() == task.parameters
            for name, tensor in server["control"].items():
                total = torch.stack([state["control"][name] for state in kept.values()]).sum(0)
                torch.testing.assert_close(tensor, total / (population or 3), rtol=1e-3, atol=1e-5)
            again, _, _ = run(build("scaffold", task, population=population), data, rounds[:1])
            mean = torch.stack([sent.tensors["control"]["fc.bias"] for sent in log[0].values()]).mean(0)
            torch.testing.assert_close(again["control"]["fc.bias"], mean * (2 / (population or 2)))

    def test_variate_is_the_weighted_mean_gradient_along_the_path(self, quadratic: Task) -> None:
        """With momentum m, the gradient of step k of K moves the model by eta (1 - m^(K - k + 1)) / (1 - m)."""
        momentum, steps, rate = 0.8, 7, 0.05
        recipe = replace(quadratic.recipe, momentum=momentum, epochs=steps, rate=rate)
        method, data = build("scaffold", replace(quadratic, recipe=recipe)), dots()["c2"]
        hessian, linear_term = problem(data)
        server = method.init(SEED)
        _, kept = method.client_update(server, None, data, Context(SEED, "c", quadratic.network.workspace()))
        assert kept is not None
        w, velocity, gradients = matrix(server["model"]).copy(), np.zeros((2, 4)), []
        for _ in range(steps):
            gradients.append(w @ hessian - linear_term)
            velocity = momentum * velocity + gradients[-1]
            w = w - rate * velocity
        weights = [(1 - momentum ** (steps - k)) / (1 - momentum) for k in range(steps)]
        assert_near(matrix(kept["control"]), np.average(gradients, axis=0, weights=weights), 1e-11)

    def test_too_small_a_population_is_refused(self, task: Task) -> None:
        with pytest.raises(InputError, match="'population' must be the number of clients"):
            run(build("scaffold", task, population=1), clients(2), [["c0", "c1"]])
