"""k-means-k against scikit-learn and naive loops."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from battery import clients, run_rounds, same
from fedbasis.methods.base import MODEL, Adaptation, Context
from fedbasis.methods.kmeans_k import KMeansK
from fedbasis.networks.batches import Recipe
from fedbasis.serving.personalize import personalize
from methods.helpers.cluster import (
    WEIGHTINGS,
    flat,
    method_of,
    naive_losses,
    relabelled,
    shuffled,
    statistics,
    task_of,
    updates_of,
)


class TestKMeans:
    @pytest.mark.parametrize("weighting", WEIGHTINGS)
    def test_centroids_are_those_of_scikit_learn(self, recipe: Recipe, weighting: str) -> None:
        """All clusters lie in one direction from the start, so only the parameters themselves tell them apart."""
        task = task_of(recipe, rounds=1, weighting=weighting)
        method: KMeansK = method_of("kmeans-k", task, centroids=3)
        start, away = task.initial(0), task.initial(1)
        groups, examples = [0, 1, 2, 1, 0, 2, 2, 1, 1], [7, 3, 8, 5, 9, 4, 6, 2, 1]
        models = [
            shuffled({name: t + (1 + 3 * g) * away[name] for name, t in start.items()}, i, 0.02)
            for i, g in enumerate(groups)
        ]
        server = method.aggregate(method.init(0), updates_of(models, examples), 0)
        rows = np.stack([flat(task, m) for m in models])
        weights = np.array(examples if weighting == "examples" else [1] * len(examples), dtype=float)
        reference = KMeans(3, n_init=10, random_state=0).fit(rows, sample_weight=weights)
        got = np.stack([flat(task, server[f"centroid_{k}"]) for k in range(3)])
        order = [int(np.abs(reference.cluster_centers_ - row).sum(1).argmin()) for row in got]
        assert sorted(order) == [0, 1, 2]
        np.testing.assert_allclose(got, reference.cluster_centers_[order], atol=1e-5)
        for k in range(3):
            mine = [i for i, label in enumerate(reference.labels_) if label == order[k]]
            assert len({groups[i] for i in mine}) == 1
            for name in statistics(task):
                wanted = np.average([models[i][name] for i in mine], axis=0, weights=weights[mine])
                np.testing.assert_allclose(server[f"centroid_{k}"][name], wanted, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(("weighting", "alone"), [("uniform", 2), ("examples", 0)])
    def test_weights_count_when_models_are_grouped(self, recipe: Recipe, weighting: str, alone: int) -> None:
        """At 0, 1 and 2.2 on a line the last stands alone (0.5 < 0.72); with weights 10, 10, 1 the first (1.3 < 5)."""
        task = task_of(recipe, rounds=1, weighting=weighting)
        method, start, away = method_of("kmeans-k", task, centroids=2), task.initial(0), task.initial(1)
        models = [{name: t + place * away[name] for name, t in start.items()} for place in (0, 1, 2.2)]
        server = method.aggregate(method.init(0), updates_of(models, [10, 10, 1]), 0)
        found = [server["centroid_0"], server["centroid_1"]]
        single = [any(same({"": model}, {"": centroid}) for centroid in found) for model in models]
        assert single == [place == alone for place in range(3)]

    def test_one_centroid_is_the_mean_and_as_many_as_models_are_the_models(self, recipe: Recipe) -> None:
        task = task_of(recipe)
        one, _, _ = run_rounds(method_of("kmeans-k", task, centroids=1), clients())
        assert same({"": one[MODEL]}, {"": one["centroid_0"]})
        every, _, log = run_rounds(method_of("kmeans-k", task, centroids=4), clients())
        models = [s.tensors[MODEL] for s in log[-1].values()]
        for model in models:
            assert sum(same({"": model}, {"": every[f"centroid_{k}"]}) for k in range(4)) == 1

    def test_a_new_client_takes_the_centroid_with_the_lowest_loss(self, recipe: Recipe) -> None:
        task = task_of(recipe)
        method = method_of("kmeans-k", task, centroids=3)
        server, _, _ = run_rounds(method, {str(i): relabelled(21, i, i % 3) for i in range(6)})
        taken = set()
        for shift in range(3):
            data = relabelled(12, 9, shift)
            means = [float(np.mean(naive_losses(task, server[f"centroid_{k}"], data))) for k in range(3)]
            context = Context(7, "new", task.network.workspace())
            fitted = personalize(
                method, method.serving.published(server), "centroid", data, context, Adaptation(statistics="frozen")
            )
            assert same({"": fitted.last.tensors}, {"": server[f"centroid_{int(np.argmin(means))}"]})
            assert fitted.losses == pytest.approx([min(means)], rel=1e-4)
            taken.add(int(np.argmin(means)))
        assert len(taken) > 1

    def test_a_centroid_without_models_is_the_mean(self, recipe: Recipe) -> None:
        task = task_of(recipe, rounds=1)
        method = method_of("kmeans-k", task, centroids=3)
        start, other = task.initial(0), task.initial(1)
        few = method.aggregate(method.init(0), updates_of([start, other], [4, 4]), 0)
        for wanted in (start, other, few[MODEL]):
            assert sum(same({"": wanted}, {"": few[f"centroid_{k}"]}) for k in range(3)) == 1
        equal = method.aggregate(method.init(0), updates_of([start] * 4, [4] * 4), 0)
        assert all(same({"": start}, {"": equal[f"centroid_{k}"]}) for k in range(3))
