"""What IFCA and FedEM share: several models that start apart."""

import pytest
import torch

from battery import same
from fedbasis.networks.batches import Recipe
from fedbasis.tensors.seeding import seed_for
from methods.helpers.cluster import method_of, shuffled, statistics, task_of


@pytest.mark.parametrize(("name", "setting"), [("ifca", "clusters"), ("fedem", "components")])
class TestStarts:
    def test_models_start_apart_with_and_without_pretrained_weights(
        self, recipe: Recipe, name: str, setting: str
    ) -> None:
        drawn = shuffled(task_of(recipe).initial(11), 0)
        weights = {k: t for k, t in drawn.items() if not k.startswith("fc.")}
        task, prefix = task_of(recipe, weights=weights), setting[:-1]
        for given in (None, weights):
            method = method_of(name, task_of(recipe, weights=given), start="noise", **{setting: 3})
            server = method.init(5)
            models = [server[f"{prefix}_{k}"] for k in range(3)]
            for one, other in ((0, 1), (0, 2), (1, 2)):
                apart = {n: not torch.equal(models[one][n], models[other][n]) for n in task.parameters}
                flat_ones = {n for n in task.parameters if models[0][n].std(correction=0) == 0}
                assert all(apart[n] for n in task.parameters - flat_ones)
            if given is None:
                for k, start in enumerate((5, seed_for(5, "cluster", 1), seed_for(5, "cluster", 2))):
                    assert same({"": models[k]}, {"": method.task.initial(start)})
                continue
            for model in models:
                assert all(torch.equal(model[n], weights[n]) for n in statistics(task))
                for n in ("conv2.0.weight", "conv3.0.weight"):  # enough numbers to measure the noise
                    ratio = float((model[n] - weights[n]).std() / weights[n].std())
                    assert ratio == pytest.approx(0.1, rel=0.1)
        alone = method_of(name, task, **{setting: 1}).init(5)
        assert same({"": alone[f"{prefix}_0"]}, {"": task.initial(5)})
