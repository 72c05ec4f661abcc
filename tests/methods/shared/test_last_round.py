"""What PCA-k and k-means-k share: FedAvg, and a last round that looks at all models."""

import pytest

from battery import ROUNDS, clients, run_rounds, same
from fedbasis.methods.base import CLOCK, MODEL
from fedbasis.networks.batches import Recipe
from methods.helpers.cluster import WEIGHTINGS, method_of, task_of
from pflbed.errors import InputError


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize(("name", "setting"), [("pca-k", "components"), ("kmeans-k", "centroids")])
def test_all_rounds_are_fedavg_bit_for_bit(recipe: Recipe, name: str, setting: str, weighting: str) -> None:
    task = task_of(recipe, weighting=weighting)
    average, server = None, None
    for number in range(ROUNDS):
        once = range(number, number + 1)
        average, _, _ = run_rounds(method_of("fedavg", task), clients(), average, once)
        server, _, _ = run_rounds(method_of(name, task, **{setting: 2}), clients(), server, once)
        assert int(server[CLOCK]["round"]) == number + 1
        assert same(average, {MODEL: server[MODEL]})
        last = {f"{setting[:-1]}_0", f"{setting[:-1]}_1"} if number == ROUNDS - 1 else set()
        assert set(server) == {MODEL, CLOCK} | last


@pytest.mark.parametrize(("name", "setting", "enough"), [("pca-k", "components", 4), ("kmeans-k", "centroids", 3)])
def test_too_few_clients_are_refused_before_any_work(recipe: Recipe, name: str, setting: str, enough: int) -> None:
    method = method_of(name, task_of(recipe), **{setting: 3})
    method.updates.require_clients(enough)
    with pytest.raises(InputError, match="raise 'participation'"):
        method.updates.require_clients(enough - 1)
