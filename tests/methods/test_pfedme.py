"""pFedMe against closed forms on quadratics."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from battery import Serial
from fedbasis.methods.base import Adaptation, Context
from fedbasis.networks.batches import Recipe
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import only, without
from methods.helpers.quadratic import PLAIN, QUADRATIC, TINY, bowl, close, last_of, make, points, same, slope, stream
from shapes import shapes_examples


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

    @pytest.mark.parametrize(
        ("strength", "settings"),
        [
            (0.5, {"strength": 0.5}),
            (15.0, {}),
            (0.5, {"new_client_strength": 0.5}),
            (0.0, {"new_client_strength": 0.0}),
        ],
    )
    def test_a_new_client_is_fine_tuned_on_a_leash_bit_for_bit(
        self, recipe: Recipe, strength: float, settings: dict[str, float]
    ) -> None:
        method, data = make("pfedme", TINY, recipe, **settings), shapes_examples(14, 1)
        server, context = method.init(7), Context(7, "new", TINY.workspace())
        plan = Adaptation(epochs=3, rate=0.02, prox=strength)
        own, generic = (personalize(method, server, how, data, context, plan) for how in ("pfedme", "ft-prox"))
        assert same(own.last.tensors, generic.last.tensors)
        assert own.losses == generic.losses
        other = personalize(method, server, "ft-prox", data, context, replace(plan, prox=2 * strength + 1))
        assert not same(own.last.tensors, other.last.tensors)
