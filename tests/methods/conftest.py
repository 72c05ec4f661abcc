"""Tasks that several methods are tested on."""

from types import SimpleNamespace

import pytest

from fedbasis.methods.base import Task
from fedbasis.networks import train
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from methods.helpers.linear import squared


@pytest.fixture
def task(tiny: Network, recipe: Recipe) -> Task:
    return Task(tiny, recipe, rounds=3)


@pytest.fixture
def quadratic(monkeypatch: pytest.MonkeyPatch) -> Task:
    """Full batches, plain SGD, eight steps a round on one-pixel images; the loss is squared in this test."""
    monkeypatch.setattr(train, "F", SimpleNamespace(cross_entropy=squared))
    preprocessing = Preprocessing(1, (0.5, 0.5, 0.5), (0.29, 0.29, 0.29))
    recipe = Recipe(preprocessing=preprocessing, epochs=8, batch=100, rate=0.2, momentum=0.0, decay=0.0)
    return Task(Network("methods.helpers.linear:linear", 2, 1), recipe, rounds=3)
