"""Features and heads."""

import torch

from battery import make
from fedbasis.networks.batches import Recipe
from fedbasis.networks.classifier import apply_head, passed
from fedbasis.networks.train import predict
from shapes import shapes_examples


def test_the_head_of_features_is_the_prediction(recipe: Recipe) -> None:
    method, data = make("fedavg", recipe), shapes_examples(600, 0, seed=3)
    model = method.task.network.workspace()
    seen = passed(model.module, "fc", data.pixels, recipe.preprocessing)
    expected = predict(model.module, data.pixels, recipe.preprocessing)
    assert torch.equal(apply_head(model.module, "fc", seen.features), expected)
