"""Fitting one new client."""

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from battery import make, same, trained
from fedbasis.methods.base import Adaptation, Context
from fedbasis.networks.batches import Recipe
from fedbasis.networks.classifier import probabilities_and_features
from fedbasis.networks.statistics import Statistics
from fedbasis.networks.train import local_sgd
from fedbasis.serving.personalize import Fitted, label, personalize
from fedbasis.tensors.params import Tensors
from shapes import shapes_examples


@pytest.mark.parametrize("how", ["none", "knn", "ft"])
def test_the_last_epoch_is_always_looked_at(how: str, recipe: Recipe) -> None:
    """Also by ways that end between two looks: rates are chosen by the last one."""
    method = make("knn-per", recipe)
    server, _, _ = trained("knn-per", recipe)
    plan = Adaptation(epochs=3, validate_every=2)
    context = Context(7, "new", method.task.network.workspace())
    looks = iter(range(9))
    outcome = personalize(method, server, how, shapes_examples(12), context, plan, lambda *_: float(next(looks)))
    assert len(outcome.validation) == {"none": 1, "knn": 1, "ft": 2}[how]
    assert outcome.best.epoch == outcome.last.epoch == len(outcome.losses)


class TestStatistics:
    """The normalization statistics are one setting of every way."""

    PLAN = Adaptation(epochs=2, rate=0.05)

    @staticmethod
    def fitted(name: str, recipe: Recipe, way: str, norm: str = "batch", **plan: Any) -> Tensors:
        method, (server, _, _) = make(name, recipe, norm), trained(name, recipe, norm)
        context = Context(7, "new", method.task.network.workspace())
        settings = replace(TestStatistics.PLAN, **plan)
        result = personalize(method, server, way, shapes_examples(12), context, settings)
        assert not context.model.frozen_statistics  # the next client starts as this one did
        return result.last.tensors

    @pytest.mark.parametrize("way", ["none", "lp", "ft", "ft-prox", "bn", "knn", "knn+ft"])
    def test_frozen_ones_are_the_servers_and_the_others_are_not(self, way: str, recipe: Recipe) -> None:
        method, (server, _, _) = make("knn-per", recipe), trained("knn-per", recipe)
        names = {entry.name for entry in method.task.layout.select(False)}
        for choice in ("frozen", "own", "shrunk"):
            end = self.fitted("knn-per", recipe, f"{way}@{choice}")
            equal = [torch.equal(end[name], server["model"][name]) for name in names]
            assert all(equal) if choice == "frozen" else not any(equal)

    def test_few_images_weigh_little_and_many_weigh_all(self, recipe: Recipe) -> None:
        method, (server, _, _) = make("fedavg", recipe), trained("fedavg", recipe)
        names = {entry.name for entry in method.task.layout.select(False)}
        own = self.fitted("fedavg", recipe, "none@own")
        for prior, weight in ((12.0, 0.5), (36.0, 0.25), (1e-9, 1.0)):
            mixed = self.fitted("fedavg", recipe, "none@shrunk", prior_images=prior)
            for name in names:
                expected = (1 - weight) * server["model"][name] + weight * own[name]
                torch.testing.assert_close(mixed[name], expected)

    @pytest.mark.parametrize("way", ["lp", "ft"])
    def test_without_running_statistics_nothing_differs(self, way: str, recipe: Recipe) -> None:
        ends = [self.fitted("fedavg", recipe, f"{way}@{choice}", "group") for choice in ("frozen", "own", "shrunk")]
        assert same({"": ends[0]}, {"": ends[1]})
        assert same({"": ends[0]}, {"": ends[2]})

    def test_the_setting_and_the_name_mean_the_same(self, recipe: Recipe) -> None:
        for choice in get_args(Statistics):
            named = self.fitted("fedavg", recipe, f"ft@{choice}")
            assert same({"": named}, {"": self.fitted("fedavg", recipe, "ft", statistics=choice)})

    def test_a_probe_on_stored_features_is_a_probe_on_images(self, recipe: Recipe) -> None:
        """Where nothing but the classifier changes, features are computed once."""
        method, (server, _, _) = make("fedavg", recipe), trained("fedavg", recipe)
        context, data = Context(7, "new", method.task.network.workspace()), shapes_examples(12)
        stored = self.fitted("fedavg", recipe, "lp@frozen")
        context.model.load(method.model(server))
        context.model.frozen_statistics = True
        names = method.task.head & method.task.parameters
        local_sgd(context.model, data, self.PLAN.recipe(recipe), context.generator("adapt"), names=names)
        for name, tensor in context.model.tensors().items():
            torch.testing.assert_close(stored[name], tensor, rtol=1e-5, atol=1e-6)

    def test_labels_say_which_statistics_a_row_is_fixed_to(self) -> None:
        assert label("fedavg", "ft@frozen") == "FedAvg + FT (frozen statistics)"
        assert label("fedbasis", "coefficients+classifier@own") == "FedBasis (own statistics)"
        assert label("mine:Mine", "lp@own") == "Mine + LP (own statistics)"


@pytest.mark.parametrize(("name", "own"), [("knn-per", "knn"), ("pfedgp", "gp"), ("fedem", "fedem")])
@pytest.mark.parametrize("then", ["lp", "ft"])
def test_what_a_method_predicts_with_is_computed_again(name: str, own: str, then: str, recipe: Recipe) -> None:
    """``knn+ft`` is no plain fine-tuning: the neighbours, Gaussian processes or components belong to the last model."""
    method, (server, _, _) = make(name, recipe), trained(name, recipe)
    context, data = Context(7, "new", method.task.network.workspace()), shapes_examples(12)
    plan = Adaptation(epochs=2, rate=0.05, statistics="frozen")
    both = personalize(method, server, f"{own}+{then}", data, context, plan).last
    plain = personalize(method, server, then, data, context, plan).last
    pixels = shapes_examples(9, seed=5).pixels

    def chances(fitted: Fitted) -> Tensor:
        context.model.load(fitted.tensors)
        return method.serving.probabilities(context.model, fitted.learned, pixels)

    method.serving.check_learned(both.learned)
    assert not torch.allclose(chances(both), chances(plain), atol=1e-3)
    if own == "fedem":
        return
    context.model.load(both.tensors)
    features = probabilities_and_features(
        context.model.module, method.task.classifier, data.pixels, recipe.preprocessing
    )[1]
    torch.testing.assert_close(both.learned["features"], features)
    torch.testing.assert_close(both.tensors, plain.tensors)  # the network itself is trained alike
