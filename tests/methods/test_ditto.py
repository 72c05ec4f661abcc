"""Ditto against FedAvg, training alone and the penalized minimum."""

from dataclasses import replace

import numpy as np
import pytest

from fedbasis.methods.base import Adaptation, Context, Task
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import State
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


class TestDitto:
    def test_global_model_is_fedavg_bit_for_bit(self, task: Task) -> None:
        rounds = [["c0", "c1", "c2"], ["c1", "c2"], ["c0", "c1"]]
        average, _, sent = run(build("fedavg", task), clients(), rounds)
        ditto, _, also = run(build("ditto", task), clients(), rounds)
        assert equal(average["model"], ditto["model"])
        for one, other in zip(sent, also, strict=True):
            assert all(equal(one[client].tensors["model"], other[client].tensors["model"]) for client in one)

    def test_without_a_pull_the_personal_model_is_trained_alone(self, task: Task) -> None:
        """Bit for bit, for clients that take part from the first round on."""
        rounds = [["c0", "c1", "c2"], ["c1", "c2"], ["c0", "c1"]]
        _, alone, _ = run(build("local", task), clients(), rounds)
        for lam, same in ((0.0, True), (0.5, False)):
            _, ditto, _ = run(build("ditto", task, lam=lam), clients(), rounds)
            assert all(equal(ditto[client]["personal"], alone[client]["model"]) is same for client in alone)

    @pytest.mark.parametrize("lam", [0.1, 1.0, 10.0])
    def test_long_training_ends_at_the_penalized_minimum(self, quadratic: Task, lam: float) -> None:
        """(H + lambda I)^-1 (B + lambda w) around the received model, whatever v was before; so for a new client."""
        rate = 1 / (1.1 + lam)
        task = replace(quadratic, recipe=replace(quadratic.recipe, rate=rate, epochs=80))
        method, data = build("ditto", task, lam=lam), dots()["c2"]
        server = method.init(SEED)
        before: State = {"personal": {name: tensor + 1 for name, tensor in server["model"].items()}}
        context = Context(SEED, "c", task.network.workspace())
        _, kept = method.client_update(server, before, data, context)
        assert kept is not None
        hessian, linear_term = problem(data)
        wanted = minimum(hessian + lam * np.eye(4), linear_term + lam * matrix(server["model"]))
        assert_near(matrix(kept["personal"]), wanted)
        plan = Adaptation(epochs=80, rate=rate, decay=0.0, momentum=0.0, batch=100)
        outcome = personalize(method, server, "ditto", data, context, plan)
        assert_near(matrix(outcome.last.tensors), wanted)

    @pytest.mark.parametrize(("lam", "how"), [(0.0, "ft"), (0.6, "ft-prox")])
    def test_new_client_equals_generic_fine_tuning(self, task: Task, lam: float, how: str) -> None:
        """Bit for bit, epoch by epoch."""
        method, data = build("ditto", task, lam=lam), shapes_examples(13)
        server, _, _ = run(method, clients(2), [["c0", "c1"]])
        context = Context(SEED, "new", task.network.workspace())
        plan = Adaptation(epochs=3, rate=0.05, decay=1e-2, batch=5, prox=0.6)
        own = personalize(method, server, "ditto", data, context, plan)
        generic = personalize(method, server, how, data, context, plan)
        assert equal(own.last.tensors, generic.last.tensors)
        assert own.losses == generic.losses
