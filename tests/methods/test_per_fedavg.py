"""Per-FedAvg, first-order and Hessian-free, against the one-step formula and FedAvg."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedbasis.methods.base import Context, Method
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples
from fedbasis.tensors.params import only, without
from methods.helpers.quadratic import (
    PLAIN,
    QUADRATIC,
    TINY,
    Array,
    close,
    curvature,
    fedavg,
    last_of,
    make,
    points,
    same,
    slope,
    stream,
)
from shapes import shapes_examples


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
        method, data = make(name, QUADRATIC, recipe, inner_rate=a, steps="epochs"), points(count, 1)
        context = Context(3, "c", QUADRATIC.workspace(), 2)
        self.follow(method, recipe, data, context, stream(context, data, 4, epochs), roles)

    @pytest.mark.parametrize(("name", "size"), [("per-fedavg-fo", 2), ("per-fedavg-hf", 3)])
    @pytest.mark.parametrize(("count", "epochs"), [(12, 2), (10, 1), (3, 1)])
    def test_as_many_outer_steps_as_fedavg_are_the_formula_on_three_shuffles(
        self, name: str, size: int, count: int, epochs: int
    ) -> None:
        """D' is FedAvg's batch, D and D'' come from shuffles of their own."""
        recipe = replace(PLAIN, epochs=epochs, momentum=0.9, decay=0.05)
        method, data = make(name, QUADRATIC, recipe, inner_rate=0.2), points(count, 1)
        context = Context(3, "c", QUADRATIC.workspace(), 2)
        on_d2 = stream(context, data, 4, epochs)
        others = [stream(context, data, 4, epochs, "batches", role) for role in range(1, size)]
        parts = [rows for group in zip(others[0], on_d2, *others[1:], strict=True) for rows in group]
        roles = [tuple(range(start, start + size)) for start in range(0, len(parts), size)]
        assert len(roles) == epochs * -(-count // 4)
        self.follow(method, recipe, data, context, parts, roles)

    @staticmethod
    def follow(
        method: Method,
        recipe: Recipe,
        data: Examples,
        context: Context,
        parts: list[Array],
        roles: Sequence[tuple[int, ...]],
    ) -> None:
        """Take the steps by hand and compare."""
        a, server = method.config.inner_rate, method.init(0)
        sent, kept = method.client_update(server, None, data, context)
        w, velocity, losses = server["model"]["w"].numpy().copy(), np.zeros(2), []
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

    @pytest.mark.parametrize("name", ["per-fedavg-fo", "per-fedavg-hf"])
    def test_without_inner_step_it_has_the_parameters_of_fedavg_bit_for_bit(self, name: str, recipe: Recipe) -> None:
        """Whole rounds with momentum, decay and augmentation; the statistics are those of other shuffles."""
        lively = replace(recipe, augment="flip+shift")
        data = {f"c{i}": shapes_examples(16 + 4 * i, seed=i) for i in range(3)}
        average, _ = last_of(fedavg(TINY, lively), data, 2)
        server, _ = last_of(make(name, TINY, lively, inner_rate=0.0), data, 2)
        weights = make(name, TINY, lively).task.parameters
        assert same(only(server["model"], weights), only(average["model"], weights))
        assert not same(without(server["model"], weights), without(average["model"], weights))

    @pytest.mark.parametrize(("name", "roles"), [("per-fedavg-fo", 2), ("per-fedavg-hf", 3)])
    def test_without_inner_step_it_is_fedavg_on_the_second_batches(self, name: str, roles: int, recipe: Recipe) -> None:
        """One group of batches: the weights are FedAvg's on D', the statistics FedAvg's on D, bit for bit."""
        one = replace(recipe, epochs=1)
        data, context = shapes_examples(8 * roles), Context(7, "c", TINY.workspace())
        average, still = fedavg(TINY, one), make(name, TINY, one, inner_rate=0.0, steps="epochs")
        server, weights = average.init(7), average.task.parameters
        got = still.client_update(server, None, data, context)[0].tensors["model"]
        other = make(name, TINY, one, inner_rate=0.5, steps="epochs")
        moving = other.client_update(server, None, data, context)[0].tensors["model"]
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
        method = make(name, TINY, replace(recipe, epochs=2 * roles), inner_rate=0.0, steps="epochs")
        server, kept = last_of(method, data, 3)
        assert same(server["model"], average["model"])
        assert not kept
