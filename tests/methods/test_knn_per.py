"""kNN-Per against scikit-learn."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from battery import clients, run_rounds, same
from fedbasis.methods.base import Context
from fedbasis.methods.fedavg import FedAvg
from fedbasis.methods.knn_per import GRID, KNNPer, KNNPerConfig
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import predict
from fedbasis.tensors.params import State
from methods.helpers.generated import make_task, new_client
from shapes import shapes_examples


@cache
def two_rounds(recipe: Recipe) -> State:
    return run_rounds(
        KNNPer.build(KNNPerConfig(k=3, lam=0.5, kernel="squared", scale=1.0), make_task(recipe, "batch")),
        clients(),
        rounds=range(2),
    )[0]


class TestKNNPer:
    @staticmethod
    def trained(recipe: Recipe, **config: Any) -> tuple[KNNPer, State]:
        """Its settings matter to new clients alone, so one training serves all."""
        return KNNPer.build(KNNPerConfig(**config), make_task(recipe, "batch")), two_rounds(recipe)

    @staticmethod
    def features(context: Context, pixels: Tensor, recipe: Recipe) -> NDArray[np.float64]:
        """What enters the classifier, layer by layer and without hooks."""
        x = recipe.preprocessing(pixels)
        with torch.no_grad():
            for layer in list(context.model.module.eval().children())[:-1]:
                x = layer(x)
        return x.double().numpy()

    @staticmethod
    def neighbours(
        known: NDArray[np.float64],
        labels: Tensor,
        queries: NDArray[np.float64],
        k: int,
        scale: float = 1.0,
        kernel: str = "squared",
    ) -> NDArray[np.float64]:
        def weights(distances: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.exp(-(distances**2 / known.shape[1] if kernel == "squared" else distances) / scale)

        judge = KNeighborsClassifier(k, weights=weights, algorithm="brute").fit(known, labels.numpy())
        chances = np.zeros((len(queries), 3))
        chances[:, judge.classes_] = judge.predict_proba(queries)
        return chances

    @pytest.mark.parametrize(("k", "count"), [(1, 20), (5, 20), (10, 7)])
    @pytest.mark.parametrize("lam", [0.3, 1.0])
    @pytest.mark.parametrize(("scale", "kernel"), [(1.0, "squared"), (0.01, "squared"), (0.25, "distance")])
    def test_predicts_as_scikit_learn(
        self, recipe: Recipe, k: int, count: int, lam: float, scale: float, kernel: str
    ) -> None:
        method, server = self.trained(recipe, k=k, lam=lam, scale=scale, kernel=kernel)
        data, queries = shapes_examples(count, seed=3), shapes_examples(30, 1, seed=4).pixels
        context, learned, _ = new_client(method, server, "knn", data)
        known, asked = (self.features(context, pixels, recipe) for pixels in (data.pixels, queries))
        votes = self.neighbours(known, data.labels, asked, min(k, count), scale, kernel)
        whole = predict(context.model.module, queries, recipe.preprocessing).numpy()
        got = method.serving.probabilities(context.model, learned, queries)
        np.testing.assert_allclose(got.numpy(), lam * votes + (1 - lam) * whole, rtol=1e-3, atol=1e-4)
        assert len(np.unique(got.argmax(1))) > 1 or k > count  # all images vote alike if distances are small

    def test_without_weight_it_is_fedavg_bit_for_bit(self, recipe: Recipe) -> None:
        method, server = self.trained(recipe, lam=0.0)
        average = FedAvg.build(None, method.task)
        wanted, _, _ = run_rounds(average, clients(), rounds=range(2))
        assert same(server, wanted)
        context, learned, _ = new_client(method, server, "knn", shapes_examples(12))
        pixels = shapes_examples(300, 1, seed=8).pixels
        got = method.serving.probabilities(context.model, learned, pixels)
        context.model.load(average.model(wanted))
        assert torch.equal(got, average.serving.probabilities(context.model, {}, pixels))

    def test_the_nearest_neighbour_alone_gives_its_label(self, recipe: Recipe) -> None:
        method, server = self.trained(recipe, lam=1.0, k=1)
        data, queries = shapes_examples(25, seed=3), shapes_examples(20, 1, seed=4).pixels
        context, learned, _ = new_client(method, server, "knn", data)
        known, asked = (self.features(context, pixels, recipe) for pixels in (data.pixels, queries))
        labels = [int(data.labels[np.linalg.norm(known - one, axis=1).argmin()]) for one in asked]
        got = method.serving.probabilities(context.model, learned, queries)
        assert torch.equal(got, torch.eye(3)[labels])
        assert torch.equal(method.serving.probabilities(context.model, learned, data.pixels), torch.eye(3)[data.labels])

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_the_tuned_weight_is_the_best_by_leave_one_out(self, recipe: Recipe, seed: int) -> None:
        method, server = self.trained(recipe, lam="tuned", k=4)
        data = shapes_examples(15, 1, seed=seed)
        flipped = data.labels.clone()
        flipped[:seed] = (flipped[:seed] + 1) % 3  # so that no weight is right about everything
        data = Examples(data.pixels, flipped)
        context, learned, loss = new_client(method, server, "knn", data)
        known = self.features(context, data.pixels, recipe)
        whole = predict(context.model.module, data.pixels, recipe.preprocessing).numpy()
        votes = np.zeros((15, 3))
        for i in range(15):
            rest = np.arange(15) != i
            votes[i] = self.neighbours(known[rest], data.labels[rest], known[i : i + 1], 4)[0]
        scores = []
        for lam in GRID:
            mixed = lam * votes + (1 - lam) * whole
            true = np.maximum(mixed[np.arange(15), flipped.numpy()], 1e-12)
            scores.append((int((mixed.argmax(1) == flipped.numpy()).sum()), float(np.log(true).mean()), lam))
        right, likelihood, best = max(scores, key=lambda score: score[:2])
        assert float(learned["lam"]) == pytest.approx(best)
        assert loss == pytest.approx(-likelihood, rel=1e-3, abs=1e-4)
        assert right > min(scores)[0]

    def test_one_image_has_no_neighbour_to_learn_a_weight_from(self, recipe: Recipe) -> None:
        method, server = self.trained(recipe, lam="tuned")
        _, learned, _ = new_client(method, server, "knn", shapes_examples(1, classes=1))
        assert float(learned["lam"]) == 0

    def test_after_a_generic_way_it_is_one_network(self, recipe: Recipe) -> None:
        method, server = self.trained(recipe)
        context, learned, _ = new_client(method, server, "ft", shapes_examples(12), epochs=1)
        pixels = shapes_examples(9, seed=2).pixels
        wanted = predict(context.model.module, pixels, recipe.preprocessing)
        assert torch.equal(method.serving.probabilities(context.model, learned, pixels), wanted)

    def test_a_weight_that_is_no_share_is_refused(self) -> None:
        with pytest.raises(ValueError, match="number from 0 to 1"):
            KNNPerConfig(k=3, lam=1.5, kernel="squared", scale=1.0)
