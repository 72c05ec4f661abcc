"""Fitting one new client."""

import pytest

from battery import make, trained
from fedbasis.methods.base import Adaptation, Context
from fedbasis.networks.train import Recipe
from fedbasis.serving.personalize import personalize
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
