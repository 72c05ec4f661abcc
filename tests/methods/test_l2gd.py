"""L2GD against FedAvg, local training, and the paper's iterations on quadratics."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedbasis.methods.base import Adaptation, Context
from fedbasis.methods.l2gd import L2GD
from fedbasis.networks.batches import Recipe
from fedbasis.serving.personalize import personalize
from methods.helpers.quadratic import (
    PLAIN,
    QUADRATIC,
    TINY,
    Array,
    bowl,
    close,
    fedavg,
    last_of,
    make,
    points,
    rounds_of,
    same,
    slope,
    stream,
)
from shapes import shapes_examples


class TestL2GD:
    def test_a_full_pull_and_the_recipes_epochs_are_fedavg_bit_for_bit(self, recipe: Recipe) -> None:
        data = {f"c{i}": shapes_examples(14 + 3 * i, i % 2, seed=i) for i in range(3)}
        method = make("l2gd", TINY, recipe, pull=1.0, probability=None)
        for (server, _), (average, _) in zip(
            rounds_of(method, data, 3), rounds_of(fedavg(TINY, recipe), data, 3), strict=True
        ):
            assert same(server["model"], average["model"])

    def test_no_pull_is_local_training_bit_for_bit(self, recipe: Recipe) -> None:
        data = {f"c{i}": shapes_examples(14 + 3 * i, i % 2, seed=i) for i in range(2)}
        method, local, model = make("l2gd", TINY, recipe, pull=0.0, probability=None), fedavg(TINY, recipe), {}
        _, kept = last_of(method, data, 3)
        for client, examples in data.items():
            model = local.init(7)
            for number in range(3):
                model = dict(
                    local.client_update(model, None, examples, Context(7, client, TINY.workspace(), number))[0].tensors
                )
            assert same(kept[client]["personal"], model["model"])

    def test_the_fixed_point_on_quadratics(self) -> None:
        """A round is ``y = x - pull (x - xbar)``, ``x = y - rate c (y - b)``; its fixed point solves linear equations.

        For small steps it is the minimum of the paper's objective with ``lambda = pull / rate``.
        """
        data = {f"c{i}": points(4, 5 + i) for i in range(3)}
        bowls = [bowl(examples) for examples in data.values()]
        c, b = (np.stack(kind) for kind in zip(*bowls, strict=True))

        def fixed(rate: float, pull: float) -> tuple[Array, Array]:
            keep = 1 - rate * c  # x = keep y + rate c b
            whole = 1 - keep * (1 - pull)  # whole x = keep pull xbar + rate c b
            mean = (rate * c * b / whole).mean(0) / (1 - (keep * pull / whole).mean(0))
            return mean, (keep * pull * mean + rate * c * b) / whole

        mean, x = fixed(1e-7, 2e-7)
        np.testing.assert_allclose(c * (x - b) + 2 * (x - mean), 0, atol=1e-6)  # the objective's gradient
        method = make("l2gd", QUADRATIC, replace(PLAIN, rate=0.1), pull=0.2, probability=None)
        server, kept = last_of(method, data, 180)
        mean, x = fixed(0.1, 0.2)
        close(server["model"]["w"], mean, 1e-9)
        for state, own in zip(kept.values(), x, strict=True):
            close(state["personal"]["w"], own, 1e-9)

    def test_rounds_are_the_iterations_of_the_paper(self) -> None:
        """The paper's algorithm, coin by coin with its own step sizes, for clients of different sizes."""
        alpha, lam, p, rounds = 0.3, 0.4, 0.3, 6
        data = {"a": points(8, 1), "b": points(12, 2), "c": points(4, 3)}
        size = len(data)
        rate, pull = alpha / (size * (1 - p)), alpha * lam / (size * p)
        method = make("l2gd", QUADRATIC, replace(PLAIN, rate=rate), pull=pull, probability=p)
        assert isinstance(method, L2GD)
        coins = [method.run(7, number, 99) for number in range(rounds)]
        assert len(set(coins)) > 3
        assert max(heads for heads, _ in coins) > 1
        x = {client: method.init(7)["model"]["w"].numpy().copy() for client in data}
        for number, ((heads, tails), (server, kept)) in enumerate(
            zip(coins, rounds_of(method, data, rounds), strict=True)
        ):
            parts = {
                client: iter(stream(Context(7, client, QUADRATIC.workspace(), number), examples, 4, tails))
                for client, examples in data.items()
            }
            for head in [True] * heads + [False] * tails:
                mean = sum(x.values()) / size
                for client, examples in data.items():
                    if head:
                        x[client] = x[client] - alpha * lam / (size * p) * (x[client] - mean)
                    else:
                        now = slope(x[client], examples, next(parts[client]))
                        x[client] = x[client] - alpha / (size * (1 - p)) * now
            for client in data:
                close(kept[client]["personal"]["w"], x[client])
            close(server["model"]["w"], np.asarray(sum(x.values()) / size))

    def test_the_coin_is_fair_to_its_probability_and_common_to_all(self) -> None:
        p, count = 0.3, 4000
        method = make("l2gd", QUADRATIC, PLAIN, probability=p)
        assert isinstance(method, L2GD)
        runs = np.array([method.run(1, number, 5) for number in range(count)])
        assert [method.run(1, 3, epoch) for epoch in (1, 2, 50)] == [tuple(runs[3])] * 3
        assert method.run(2, 3, 5) != method.run(1, 3, 5) or method.run(2, 4, 5) != method.run(1, 4, 5)
        for column, stop in ((0, 1 - p), (1, p)):  # geometric: mean and share of every length
            values = runs[:, column]
            assert values.min() == 1
            assert values.mean() == pytest.approx(1 / stop, rel=0.05)
            for length in (1, 2, 3):
                assert (values == length).mean() == pytest.approx(stop * (1 - stop) ** (length - 1), abs=0.025)
        assert runs[:, 0].sum() / runs.sum() == pytest.approx(p, rel=0.05)

    def test_without_pull_a_new_client_is_fine_tuned_bit_for_bit(self, recipe: Recipe) -> None:
        method, data = make("l2gd", TINY, recipe, pull=0.0, probability=0.4), shapes_examples(14, 1)
        server, context, plan = method.init(7), Context(7, "new", TINY.workspace()), Adaptation(epochs=3, rate=0.02)
        own, generic = (personalize(method, server, how, data, context, plan) for how in ("l2gd", "ft"))
        assert same(own.last.tensors, generic.last.tensors)
        assert own.losses == generic.losses

    @pytest.mark.parametrize("probability", [0.3, None])
    def test_a_new_client_alternates_between_steps_and_pulls(self, probability: float | None) -> None:
        """The same alternation with a mean that stays; never a pull after the last step."""
        method = make("l2gd", QUADRATIC, replace(PLAIN, epochs=2), pull=0.4, probability=probability)
        assert isinstance(method, L2GD)
        data, context, server = points(8, 1), Context(7, "new", QUADRATIC.workspace()), method.init(0)
        plan = Adaptation(epochs=6, rate=0.1, decay=0.01, momentum=0.5, batch=4)
        outcome = personalize(method, server, "l2gd", data, context, plan)
        mean = server["model"]["w"].numpy()
        parts, round_, x, velocity, pulls = iter(stream(context, data, 4, 6, "adapt")), 0, mean.copy(), np.zeros(2), 0
        left = 12
        while left:
            heads, tails = (1, 4) if probability is None else method.run(7, round_, 2)
            for _ in range(heads):
                x = x - 0.4 * (x - mean)
            pulls += round_ > 0
            for _ in range(min(tails, left)):
                velocity = 0.5 * velocity + slope(x, data, next(parts)) + 0.01 * x
                x = x - 0.1 * velocity
            left -= min(tails, left)
            round_ += 1
        assert pulls >= 2
        close(outcome.last.tensors["w"], x)

    def test_statistics_are_pulled_with_their_layers(self, recipe: Recipe) -> None:
        method = make("l2gd", TINY, replace(recipe, rate=0.0, decay=0.0), pull=0.25, probability=None)
        data, model = shapes_examples(8), TINY.workspace()
        mean, own = (method.task.initial(seed) for seed in (1, 2))
        own = {name: tensor + 1 for name, tensor in own.items()}
        pulled = {name: tensor + 0.25 * (mean[name] - tensor) for name, tensor in own.items()}
        sent, _ = method.client_update({"model": mean}, {"personal": own}, data, Context(7, "c", model))
        alone, _ = fedavg(TINY, replace(recipe, rate=0.0, decay=0.0)).client_update(
            {"model": pulled}, None, data, Context(7, "c", model)
        )
        for name, tensor in sent.tensors["model"].items():
            torch.testing.assert_close(tensor, alone.tensors["model"][name])
