"""Per-FedAvg, pFedMe and L2GD against closed forms, exact derivatives and naive loops.

``Quadratic`` is a network whose cross entropy is a quadratic function of its weights, in float64: with the logits
``(-log(exp(q) - 1), 0)`` and label 0 the cross entropy is q. So the methods run as they are, on a problem whose
solutions are known.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from conftest import shapes_examples
from fedbasis.engines.client_state import ClientStates
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Context, Method, Task
from fedbasis.methods.fedavg import FedAvg
from fedbasis.methods.l2gd import L2GD
from fedbasis.methods.per_fedavg import PerFedAvg
from fedbasis.networks.models import Network
from fedbasis.networks.train import Examples, Preprocessing, Recipe
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import State, Tensors, only, without
from helpers import Serial

Array = np.ndarray[Any, np.dtype[np.float64]]


class Quadratic(nn.Module):
    """For every image ``1 + 1/2 sum_j c_j (w_j - b_j)^2``; its red pixels give b, its green ones c."""

    classifier_name = "none"

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.3, -0.2], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        q = 1 + (curvature(x[:, 1, 0]) * (self.w - x[:, 0, 0]) ** 2).sum(1) / 2
        return torch.stack([-torch.log(torch.expm1(q)), torch.zeros_like(q)], 1)


class Smooth(nn.Module):
    """A network without kinks, normalized by the batch."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(432, 5), nn.BatchNorm1d(5), nn.Tanh()).double()
        self.fc = nn.Linear(5, classes).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.hidden(x))  # type: ignore[no-any-return]


def curvature(green: Any) -> Any:
    return 0.5 + 2 * green


def quadratic(classes: int) -> nn.Module:
    return Quadratic()


def smooth(classes: int) -> nn.Module:
    return Smooth(classes)


PLAIN = Recipe(
    preprocessing=Preprocessing(2, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    epochs=1,
    batch=4,
    rate=0.1,
    momentum=0.0,
    decay=0.0,
)
QUADRATIC = Network(f"{__name__}:quadratic", 2, 2)
TINY = Network("cnn-small", 3, 12, {"norm": "batch"})


def make(name: str, network: Network, recipe: Recipe, **config: Any) -> Method:
    return METHODS[name].build(METHODS[name].Config(**config), Task(network, recipe, 10))


def fedavg(network: Network, recipe: Recipe) -> FedAvg:
    return FedAvg.build(None, Task(network, recipe, 10))


def points(count: int, seed: int) -> Examples:
    """Images of two pixels for ``Quadratic``."""
    rng = np.random.default_rng(seed)
    pixels = torch.from_numpy(rng.integers(0, 256, (count, 1, 2, 3), dtype=np.uint8))
    return Examples(pixels, torch.zeros(count, dtype=torch.int64))


def slope(w: Array, data: Examples, rows: Any = slice(None)) -> Array:
    """The gradient of the mean over some rows, by hand."""
    x = data.pixels.numpy()[rows].astype(np.float64) / 255
    return np.asarray((curvature(x[:, 0, :, 1]) * (w - x[:, 0, :, 0])).mean(0))


def bowl(data: Examples) -> tuple[Array, Array]:
    """The curvature c and the centre b of ``1/2 sum c (w - b)^2``, which the mean over the data is up to a constant."""
    at_zero = slope(np.zeros(2), data)
    c = slope(np.ones(2), data) - at_zero
    return c, -at_zero / c


def stream(context: Context, data: Examples, batch: int, epochs: int, purpose: str = "batches") -> list[Array]:
    """The batches of some epochs, by hand."""
    generator = context.generator(purpose)
    orders = [torch.randperm(len(data), generator=generator) for _ in range(epochs)]
    return [part.numpy() for order in orders for part in torch.split(order, batch)]


def rounds_of(
    method: Method, data: dict[str, Examples], rounds: int, server: State | None = None
) -> Iterator[tuple[State, ClientStates]]:
    engine, server = Serial(method, data, seed=7), server or method.init(7)
    for number in range(rounds):
        server = method.aggregate(server, engine.map(server, list(data), number), 7)
        yield server, engine.states


def last_of(method: Method, data: dict[str, Examples], rounds: int) -> tuple[State, ClientStates]:
    return list(rounds_of(method, data, rounds))[-1]


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def close(got: Tensor, wanted: Array, tolerance: float = 1e-11) -> None:
    np.testing.assert_allclose(got.numpy(), wanted, rtol=tolerance, atol=tolerance)


def test_the_cross_entropy_of_the_network_is_the_quadratic() -> None:
    data, model = points(5, 0), QUADRATIC.workspace()
    loss = nn.functional.cross_entropy(model.module(PLAIN.preprocessing(data.pixels, torch.float64)), data.labels)
    loss.backward()  # type: ignore[no-untyped-call]
    close(model.gradients[0], slope(model.weights[0].numpy(), data))


class TestPerFedAvg:
    @pytest.mark.parametrize(
        ("name", "count", "epochs", "roles"),
        [
            ("per-fedavg-fo", 12, 2, [(0, 1), (2, 3), (4, 5)]),
            ("per-fedavg-fo", 12, 1, [(0, 1), (2, 0)]),
            ("per-fedavg-fo", 4, 1, [(0, 0)]),
            ("per-fedavg-hf", 12, 2, [(0, 1, 2), (3, 4, 5)]),
            ("per-fedavg-hf", 16, 1, [(0, 1, 2), (3, 0, 1)]),
            ("per-fedavg-hf", 8, 1, [(0, 1, 0)]),
            ("per-fedavg-hf", 4, 1, [(0, 0, 0)]),
        ],
    )
    def test_local_steps_are_the_one_step_formula_on_quadratics(
        self, name: str, count: int, epochs: int, roles: list[tuple[int, ...]]
    ) -> None:
        """``roles`` says by hand which batches play D, D' and D''; differences of gradients are exact here."""
        a, recipe = 0.2, replace(PLAIN, epochs=epochs, momentum=0.9, decay=0.05)
        method, data = make(name, QUADRATIC, recipe, inner_rate=a), points(count, 1)
        context = Context(3, "c", QUADRATIC.workspace(), 2)
        server = method.init(0)
        sent, kept = method.client_update(server, None, data, context)
        w, velocity, losses = server["model"]["w"].numpy().copy(), np.zeros(2), []
        parts = stream(context, data, 4, epochs)
        for one, two, *three in roles:
            inner = w - a * slope(w, data, parts[one])
            v = slope(inner, data, parts[two])
            c = slope(np.ones(2), data, parts[three[0]]) - slope(np.zeros(2), data, parts[three[0]]) if three else 0.0
            velocity = 0.9 * velocity + (1 - a * c) * v + 0.05 * w
            x = data.pixels.numpy()[parts[two]] / 255
            losses.append(1 + (curvature(x[:, 0, :, 1]) * (inner - x[:, 0, :, 0]) ** 2).sum(1).mean() / 2)
            w = w - 0.1 * velocity
        close(sent.tensors["model"]["w"], w, 1e-10)
        assert sent.numbers["loss"] == pytest.approx(np.mean(losses))
        assert kept is None

    @pytest.mark.parametrize("chain", [True, False])
    def test_hf_is_the_exact_derivative_of_the_meta_objective(self, chain: bool) -> None:
        """For D'' = D autograd through the inner step (``chain``), else the Hessian by double backward.

        Both go through the batch normalization; the difference of gradients is off by the square of delta.
        """
        a, network = 0.3, Network(f"{__name__}:smooth", 3, 12)
        module = network.build()
        buffers = dict(module.named_buffers())
        start = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
        sets = [shapes_examples(6, seed % 2, seed=seed) for seed in range(3)]
        one, two, three = ((PLAIN.preprocessing(d.pixels, torch.float64), d.labels) for d in sets)
        three = one if chain else three

        def loss(w: Tensors, batch: tuple[Tensor, Tensor]) -> Tensor:
            copies = {name: buffer.clone() for name, buffer in buffers.items()}
            return nn.functional.cross_entropy(functional_call(module, {**w, **copies}, (batch[0],)), batch[1])

        def slopes(value: Tensor, at: Tensors) -> tuple[Tensor, ...]:
            return torch.autograd.grad(value, list(at.values()), create_graph=True)

        inner = {n: p - a * g for (n, p), g in zip(start.items(), slopes(loss(start, one), start), strict=True)}
        v = slopes(loss(inner, two), inner)
        if chain:
            wanted = slopes(loss(inner, two), start)
        else:
            dots = [(g * u.detach()).sum() for g, u in zip(slopes(loss(start, three), start), v, strict=True)]
            products = slopes(torch.stack(dots).sum(), start)
            wanted = tuple(u - a * h for u, h in zip(v, products, strict=True))
        exact, first_order = (torch.cat([t.detach().reshape(-1) for t in parts]) for parts in (wanted, v))
        assert float((exact - first_order).norm() / exact.norm()) > 0.05
        for delta, tolerance in ((1e-2, 1e-2), (1e-3, 1e-4), (1e-4, 1e-6)):
            method, model = make("per-fedavg-hf", network, PLAIN, inner_rate=a, delta=delta), network.workspace()
            assert isinstance(method, PerFedAvg)
            method.meta_gradient(model, [one, two, three])
            got = torch.cat([p.grad.reshape(-1) for p in model.module.parameters() if p.grad is not None])
            assert float((got - exact).norm() / exact.norm()) < tolerance

    @pytest.mark.parametrize(("name", "roles"), [("per-fedavg-fo", 2), ("per-fedavg-hf", 3)])
    def test_without_inner_step_it_is_fedavg_on_the_second_batches(self, name: str, roles: int, recipe: Recipe) -> None:
        """One group of batches: the weights are FedAvg's on D', the statistics FedAvg's on D, bit for bit."""
        one = replace(recipe, epochs=1)
        data, context = shapes_examples(8 * roles), Context(7, "c", TINY.workspace())
        average, still = fedavg(TINY, one), make(name, TINY, one, inner_rate=0.0)
        server, weights = average.init(7), average.task.parameters
        got = still.client_update(server, None, data, context)[0].tensors["model"]
        moving = make(name, TINY, one, inner_rate=0.5).client_update(server, None, data, context)[0].tensors["model"]
        on_d, on_d2 = (
            average.client_update(server, None, data, context, step)[0].tensors["model"] for step in ((0, 1), (1, 2))
        )
        assert same(only(got, weights), only(on_d2, weights))
        for tensors in (got, moving):
            assert same(without(tensors, weights), without(on_d, weights))
        assert not same(only(moving, weights), only(on_d2, weights))

    @pytest.mark.parametrize(("name", "roles"), [("per-fedavg-fo", 2), ("per-fedavg-hf", 3)])
    def test_without_inner_step_and_with_equal_batches_it_is_fedavg_bit_for_bit(
        self, name: str, roles: int, recipe: Recipe
    ) -> None:
        """A client whose images are all one image has equal batches; whole rounds with all state are then equal."""
        images = shapes_examples(3)
        data = {
            f"c{i}": Examples(images.pixels[i : i + 1].repeat(8, 1, 1, 1), images.labels[i : i + 1].repeat(8))
            for i in range(3)
        }
        average, _ = last_of(fedavg(TINY, replace(recipe, epochs=2)), data, 3)
        method = make(name, TINY, replace(recipe, epochs=2 * roles), inner_rate=0.0)
        server, kept = last_of(method, data, 3)
        assert same(server["model"], average["model"])
        assert not kept


class TestPFedMe:
    def test_theta_and_w_are_the_closed_form_on_a_quadratic(self) -> None:
        """K steps bring theta ``(1 - s (c + decay + lambda))^K`` close to its optimum; w follows by rate * lambda."""
        lam, s, steps, decay = 3.0, 0.15, 4, 0.2
        recipe = replace(PLAIN, decay=decay, momentum=0.9)  # which the steps on theta do not use
        method = make("pfedme", QUADRATIC, recipe, strength=lam, inner_steps=steps, inner_rate=s)
        data, server = points(4, 1), method.init(0)
        sent, kept = method.client_update(server, None, data, Context(3, "c", QUADRATIC.workspace()))
        w, (c, b) = server["model"]["w"].numpy(), bowl(data)
        best = (c * b + lam * w) / (c + decay + lam)
        theta = best + (1 - s * (c + decay + lam)) ** steps * (w - best)
        assert kept is not None
        close(kept["personal"]["w"], theta)
        close(sent.tensors["model"]["w"], w - 0.1 * lam * (w - theta))

    def test_local_rounds_go_on_from_theta_batch_by_batch(self) -> None:
        method = make("pfedme", QUADRATIC, replace(PLAIN, epochs=1), strength=4.0, inner_steps=2, inner_rate=0.1)
        data, server = points(12, 1), method.init(0)
        context = Context(3, "c", QUADRATIC.workspace())
        sent, kept = method.client_update(server, None, data, context)
        w = server["model"]["w"].numpy().copy()
        theta = w.copy()
        for rows in stream(context, data, 4, 1):
            for _ in range(2):
                theta = theta - 0.1 * (slope(theta, data, rows) + 4.0 * (theta - w))
            w = w - 0.1 * 4.0 * (w - theta)
        assert kept is not None
        close(kept["personal"]["w"], theta)
        close(sent.tensors["model"]["w"], w)

    def test_converges_to_the_minimum_of_the_moreau_envelopes(self) -> None:
        """The envelope of ``c/2 (w - b)^2`` is ``k/2 (w - b)^2`` with ``k = c lambda / (c + lambda)``."""
        lam = 2.0
        config = {"strength": lam, "inner_steps": 15, "inner_rate": 0.28}
        method = make("pfedme", QUADRATIC, replace(PLAIN, rate=0.5), **config)
        data = {f"c{i}": points(3, 5 + i) for i in range(3)}
        server, kept = last_of(method, data, 40)
        bowls = [bowl(examples) for examples in data.values()]
        k = [c * lam / (c + lam) for c, _ in bowls]
        wanted = sum(ki * b for ki, (_, b) in zip(k, bowls, strict=True)) / sum(k)
        close(server["model"]["w"], np.asarray(wanted), 1e-7)
        for state, (c, b) in zip(kept.values(), bowls, strict=True):
            close(state["personal"]["w"], (c * b + lam * np.asarray(wanted)) / (c + lam), 1e-7)
        plain = sum(c * b for c, b in bowls) / sum(c for c, _ in bowls)
        assert np.abs(wanted - plain).max() > 1e-3  # another model than the minimum of the mean loss

    def test_without_pull_w_stays_and_theta_goes(self, recipe: Recipe) -> None:
        method = make("pfedme", TINY, recipe, strength=0.0)
        data = {"a": shapes_examples(18), "b": shapes_examples(21, 1)}
        first, weights = method.init(7), method.task.parameters
        server, kept = last_of(method, data, 2)
        assert same(only(server["model"], weights), only(first["model"], weights))
        for state in kept.values():
            assert not same(only(state["personal"], weights), only(first["model"], weights))

    @pytest.mark.parametrize("beta", [0.0, 0.25, 1.0, 2.0])
    def test_the_server_goes_beta_of_the_way(self, recipe: Recipe, beta: float) -> None:
        """Beyond the mean with the parameters, never with the variances."""
        method = make("pfedme", TINY, recipe, beta=beta)
        data = {"a": shapes_examples(18), "b": shapes_examples(21, 1)}
        first = method.init(7)
        updates = list(Serial(method, data, seed=7).map(first, list(data), 0))
        got = method.aggregate(first, updates, 7)["model"]
        mean = method.mean(updates)
        for name, tensor in got.items():
            share = beta if name in method.task.parameters else min(beta, 1.0)
            wanted = (1 - share) * first["model"][name].double() + share * mean[name].double()
            torch.testing.assert_close(tensor.double(), wanted, rtol=1e-5, atol=1e-6)
            if share in (0.0, 1.0):
                assert torch.equal(tensor, (first["model"], mean)[int(share)][name])

    def test_theta_and_w_share_the_statistics(self, recipe: Recipe) -> None:
        method = make("pfedme", TINY, recipe)
        server, weights = method.init(7), method.task.parameters
        sent, kept = method.client_update(server, None, shapes_examples(18), Context(7, "c", TINY.workspace()))
        assert kept is not None
        assert same(without(sent.tensors["model"], weights), without(kept["personal"], weights))
        assert not same(without(sent.tensors["model"], weights), without(server["model"], weights))
        assert not same(only(sent.tensors["model"], weights), only(kept["personal"], weights))

    @pytest.mark.parametrize("strength", [0.5, 15.0])
    def test_a_new_client_is_fine_tuned_on_a_leash_bit_for_bit(self, recipe: Recipe, strength: float) -> None:
        method, data = make("pfedme", TINY, recipe, strength=strength), shapes_examples(14, 1)
        server, context = method.init(7), Context(7, "new", TINY.workspace())
        plan = Adaptation(epochs=3, rate=0.02, prox=strength)
        own, generic = (personalize(method, server, how, data, context, plan) for how in ("pfedme", "ft-prox"))
        assert same(own.last.tensors, generic.last.tensors)
        assert own.losses == generic.losses
        other = personalize(method, server, "ft-prox", data, context, replace(plan, prox=2 * strength))
        assert not same(own.last.tensors, other.last.tensors)


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
