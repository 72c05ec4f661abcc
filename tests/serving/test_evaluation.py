"""Predictions that clients share are those that each would make alone."""

from pathlib import Path

import pytest
import torch

from fedbasis.engines.base import WorkerContext
from fedbasis.experiment import prepare
from fedbasis.methods.base import Adaptation, Context
from fedbasis.networks.train import Recipe, examples_of
from fedbasis.serving.evaluation import SharedPredictions
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import Tensors
from pflbed import Client
from test_methods import make, trained
from test_rounds import small

ADAPTATION = Adaptation(epochs=2, batch=8)


@pytest.mark.parametrize(("variant", "how"), [("fedavg", "none"), ("fedavg", "lp"), ("fedrod", "rod")])
def test_a_shared_prediction_is_the_clients_own(variant: str, how: str, recipe: Recipe, dataset: Path) -> None:
    method = make(variant, recipe)
    server, _, _ = trained(variant, recipe)
    worker, found = WorkerContext(method), prepare(small(dataset)).new
    for client in [*found.values(), *found.values()]:
        look = SharedPredictions(worker, how)

        def validate(_: Context, learned: Tensors, client: Client = client, look: SharedPredictions = look) -> float:
            return float(look(client.val, learned).sum())

        context, data = Context(7, client.id, worker.model), examples_of(client.train)
        outcome = personalize(method, server, how, data, context, ADAPTATION, validate)
        assert outcome.validation
        for images in (client.val, client.test):
            alone = method.probabilities(worker.model, outcome.last.learned, torch.from_numpy(images.pixels))
            assert look(images, outcome.last.learned).tolist() == alone.argmax(1).tolist()
    sets = {images.key for client in found.values() for images in (client.val, client.test)}
    assert len(worker.cache) == len(sets) < 2 * len(found)  # clients of a domain share theirs
