"""pFedGP against plain SGD on its loss, and its posterior."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from battery import clients, run_rounds, same
from fedbasis.methods.base import Context
from fedbasis.methods.pfedgp import PFedGP, PFedGPConfig
from fedbasis.methods.pfedgp.gp_tree import (
    GPTree,
    Kernel,
    class_tree,
)
from fedbasis.networks.batches import Recipe
from fedbasis.networks.train import predict
from fedbasis.tensors.seeding import torch_generator
from methods.helpers.generated import make_task, new_client
from methods.pfedgp.blobs import blobs
from shapes import shapes_examples


def half_of_every_class(labels: Tensor, generator: torch.Generator) -> Tensor:
    """What pFedGP holds out, drawn as it draws: of every class half, rounded down."""
    held = [False] * len(labels)
    for label in sorted(set(labels.tolist())):
        rows = [row for row, other in enumerate(labels.tolist()) if other == label]
        for place in torch.randperm(len(rows), generator=generator)[: len(rows) // 2].tolist():
            held[rows[place]] = True
    return torch.tensor(held)


class TestPFedGP:
    @staticmethod
    def make(recipe: Recipe, norm: str = "batch", **config: Any) -> PFedGP:
        settings = {"gibbs": 2, "draws": 4, "draws_new": 6, **config}
        return PFedGP.build(PFedGPConfig(**settings), make_task(recipe, norm))

    @pytest.mark.parametrize("objective", ["predictive", "marginal"])
    @pytest.mark.parametrize("norm", ["batch", "group"])
    def test_local_steps_are_sgd_on_the_loss_of_the_features(self, recipe: Recipe, objective: str, norm: str) -> None:
        method, data = self.make(recipe, norm, objective=objective), shapes_examples(14)
        server, context = method.init(7), Context(7, "c", method.task.network.workspace())
        sent, _ = method.client_update(method.broadcast(server, "c"), None, data, context)
        module = method.task.network.build()
        module.load_state_dict(server["model"], strict=False)
        body = nn.Sequential(*list(module.children())[:-1])
        inputs = recipe.preprocessing(data.pixels)
        with torch.no_grad():
            tree = class_tree(body.eval()(inputs), data.labels, 3)
        body.train()
        optimizer = torch.optim.SGD(body.parameters(), recipe.rate, recipe.momentum, weight_decay=recipe.decay)
        posterior, order, losses = context.generator("posterior"), context.generator("batches"), []
        for _ in range(recipe.epochs):
            rows = torch.randperm(14, generator=order)
            features, labels = body(inputs[rows]), data.labels[rows]
            held = half_of_every_class(labels, posterior)
            if objective == "marginal":
                whole = GPTree(Kernel(), features, labels, tree)
                loss = whole.marginal_loss(whole.sample(4, 2, posterior))
            else:
                known = GPTree(Kernel(), features[~held], labels[~held], tree)
                chances = known.log_probabilities(known.sample(4, 2, posterior), features[held])
                loss = -torch.stack([row[label] for row, label in zip(chances, labels[held], strict=True)]).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
        assert sent.numbers["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
        trained = dict(module.state_dict())
        for name, tensor in sent.tensors["model"].items():
            torch.testing.assert_close(tensor, trained[name], rtol=1e-3, atol=1e-5)
        first = next(iter(sorted(method.task.body & method.task.parameters)))
        assert not torch.equal(sent.tensors["model"][first], server["model"][first])

    def test_the_classifier_stays_at_its_start_and_the_bodies_are_averaged(self, recipe: Recipe) -> None:
        method, data = self.make(recipe), clients(3)
        start = method.init(7)
        server, _, log = run_rounds(method, data, rounds=range(1))
        for name, tensor in server["model"].items():
            if name in method.task.head:
                assert torch.equal(tensor, start["model"][name])
            else:
                mean = torch.stack([sent.tensors["model"][name] for sent in log[0].values()]).mean(0)
                torch.testing.assert_close(tensor, mean)

    def test_a_client_of_one_class_sends_the_body_it_got(self, recipe: Recipe) -> None:
        method = self.make(recipe)
        received = method.broadcast(method.init(7), "c")
        context = Context(7, "c", method.task.network.workspace())
        sent, _ = method.client_update(received, None, shapes_examples(5, classes=1), context)
        assert same(sent.tensors, received)

    def test_one_image_a_class_falls_back_to_the_marginal_likelihood(self, recipe: Recipe) -> None:
        features, labels = blobs(3, 3)
        tree = class_tree(features, labels, 3)
        losses = [
            self.make(recipe, objective=objective).loss(features, labels, tree, torch_generator("same"))
            for objective in ("predictive", "marginal")
        ]
        assert torch.equal(*losses)

    def test_a_new_client_is_predicted_by_the_posterior_of_its_own_images(self, recipe: Recipe) -> None:
        method = self.make(recipe)
        server, _, _ = run_rounds(method, clients(), rounds=range(3))
        data, queries = shapes_examples(18, seed=9), shapes_examples(24, seed=10)
        context, learned, loss = new_client(method, server, "gp", data)
        assert same({"": context.model.tensors()}, {"": method.model(server)})
        body = nn.Sequential(*list(context.model.module.eval().children())[:-1])
        with torch.no_grad():
            known, asked = (body(recipe.preprocessing(pixels)) for pixels in (data.pixels, queries.pixels))
        classifier = GPTree(Kernel(), known, data.labels, class_tree(known, data.labels, 3))
        omega = classifier.sample(6, 2, context.generator("adapt"))
        wanted = classifier.log_probabilities(omega, asked).exp().float()
        got = method.serving.probabilities(context.model, learned, queries.pixels)
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
        assert float((got.argmax(1) == queries.labels).double().mean()) > 0.7
        assert loss == pytest.approx(float(classifier.marginal_loss(omega)), rel=1e-3)
        tuned, nothing, _ = new_client(method, server, "lp", data, epochs=2)
        wanted = predict(tuned.model.module, queries.pixels, recipe.preprocessing)
        assert torch.equal(method.serving.probabilities(tuned.model, nothing, queries.pixels), wanted)
