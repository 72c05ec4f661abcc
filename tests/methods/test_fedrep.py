"""FedRep against modules trained in two phases."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from battery import clients, same
from fedbasis.methods.base import Adaptation, Context
from fedbasis.networks.batches import Recipe, batches
from fedbasis.networks.inputs import Examples
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import Tensors
from methods.helpers.layers import NORMS, SEED, assert_rounds_equal_naive, build, close, descend, federate, inputs
from shapes import shapes_examples


def in_two_phases(module: nn.Module, data: Examples, recipe: Recipe, generator: torch.Generator) -> None:
    head = [p for name, p in module.named_parameters() if name.startswith("fc.")]
    body = [p for name, p in module.named_parameters() if not name.startswith("fc.")]
    for chosen, epochs in ((head, 3), (body, recipe.epochs)):
        optimizer = descend(chosen, recipe)
        for _ in range(epochs):
            for rows in batches(len(data), recipe.batch, generator):
                module.train(chosen is body)
                x, y = inputs(data, rows)
                module.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()


class TestFedRep:
    @NORMS
    def test_rounds_equal_modules_trained_and_averaged_naively(self, norm: str, weighting: str, recipe: Recipe) -> None:
        method = build("fedrep", recipe, norm, weighting, head_epochs=3)
        assert_rounds_equal_naive(method, lambda name: not name.startswith("fc."), in_two_phases)

    @pytest.mark.parametrize("norm", ["batch", "group", "none"])
    def test_each_phase_leaves_the_other_half_alone_to_the_bit(self, norm: str, recipe: Recipe) -> None:
        method, data = build("fedrep", recipe, norm, head_epochs=3, body_epochs=2), shapes_examples(24)
        model, server = method.task.network.workspace(), method.init(SEED)
        seen: list[Tensors] = []
        hook = model.module.register_forward_pre_hook(lambda *_: seen.append(model.tensors()))
        sent, kept = method.client_update(server, None, data, Context(SEED, "c", model))
        hook.remove()
        assert kept is not None
        assert len(seen) == (3 + 2) * 3  # three batches an epoch
        after = {**sent.tensors["model"], **kept["personal"]}
        body, head = sent.tensors["model"].keys(), kept["personal"].keys()
        fitting, training = [*seen[:9], seen[9]], [*seen[9:], after]
        assert all(torch.equal(now[name], server["model"][name]) for now in fitting for name in body)
        assert all(torch.equal(now[name], kept["personal"][name]) for now in training for name in head)
        assert all(not torch.equal(a[name], b[name]) for a, b in pairwise(fitting) for name in head)
        assert all(not torch.equal(a[name], b[name]) for a, b in pairwise(training) for name in body)

    def test_the_head_a_client_fits_is_that_of_a_linear_probe(self, recipe: Recipe) -> None:
        """With one batch an epoch the order is the same, so a new client gets what a participant's head phase gives."""
        whole = replace(recipe, batch=64)
        method, data = build("fedrep", whole, head_epochs=4), shapes_examples(24)
        server, _ = federate(method, clients(3))
        context = Context(SEED, "new", method.task.network.workspace())
        _, kept = method.client_update(server, None, data, context)
        plan = Adaptation(
            epochs=4, rate=recipe.rate, decay=recipe.decay, momentum=recipe.momentum, batch=64, statistics="frozen"
        )
        probe = personalize(method, server, "lp", data, context, plan).last.tensors
        assert kept is not None
        assert close({name: probe[name] for name in kept["personal"]}, kept["personal"], 1e-5)

    def test_the_body_gets_the_epochs_of_the_recipe_unless_told_otherwise(self, recipe: Recipe) -> None:
        one, same_said = (build("fedrep", recipe, head_epochs=1, body_epochs=n) for n in (None, recipe.epochs))
        assert same(federate(one, clients(3))[0], federate(same_said, clients(3))[0])
