"""PCA-k against scikit-learn, least squares and fine-tuning."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from battery import clients, run_rounds
from fedbasis.methods.base import MODEL, Adaptation, Context
from fedbasis.methods.pca_k import PCAK, project
from fedbasis.networks.batches import Recipe
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import Tensors
from methods.helpers.cluster import WEIGHTINGS, flat, method_of, shuffled, statistics, task_of, updates_of
from shapes import shapes_examples


class TestPCA:
    @pytest.mark.parametrize("weighting", WEIGHTINGS)
    def test_components_are_those_of_scikit_learn(self, recipe: Recipe, weighting: str) -> None:
        """A client with twice the weight is one that is there twice."""
        task = task_of(recipe, weighting=weighting)
        server, _, log = run_rounds(method_of("pca-k", task, components=3), clients())
        sent = list(log[-1].values())
        times = [int(s.numbers["examples"]) if weighting == "examples" else 1 for s in sent]
        assert len(set(times)) == (4 if weighting == "examples" else 1)
        rows = np.repeat([flat(task, s.tensors[MODEL]) for s in sent], times, axis=0)
        reference = PCA(3, svd_solver="full").fit(rows)
        np.testing.assert_allclose(flat(task, server[MODEL]), reference.mean_, atol=1e-6)
        for k, wanted in enumerate(reference.components_):
            got = flat(task, server[f"component_{k}"])
            np.testing.assert_allclose(np.abs(got @ wanted), 1, atol=1e-5)
            np.testing.assert_allclose(got * np.sign(got @ wanted), wanted, atol=1e-4)
            assert not any(server[f"component_{k}"][name].any() for name in statistics(task))

    @pytest.mark.parametrize("components", [1, 2, 3])
    def test_projection_is_scikit_learns_and_exact_with_all_components(self, recipe: Recipe, components: int) -> None:
        task = task_of(recipe)
        method: PCAK = method_of("pca-k", task, components=components)
        server, _, log = run_rounds(method, clients())
        models = [s.tensors[MODEL] for s in log[-1].values()]
        rows = np.stack([flat(task, m) for m in models])
        reference = PCA(components, svd_solver="full").fit(rows)
        wanted = reference.inverse_transform(reference.transform(rows))
        model = task.network.workspace()
        model.load(server[MODEL])
        start = [f.clone() for f in model.weights + model.statistics]
        parts = [task.layout.flatten(component) for component in method.found(server)]
        span = [torch.stack(rows_) for rows_ in zip(*parts, strict=True)]
        for row, tensors in enumerate(models):
            model.load(tensors)
            c = project(model, start, span)
            got = model.tensors()
            np.testing.assert_allclose(flat(task, got), wanted[row], atol=1e-5)
            np.testing.assert_allclose(np.linalg.norm(c), np.linalg.norm(wanted[row] - reference.mean_), rtol=1e-4)
            assert all(torch.equal(got[name], server[MODEL][name]) for name in statistics(task))
            far = np.abs(flat(task, got) - rows[row]).max()
            assert far < 1e-5 if components == 3 else far > 1e-3

    @pytest.mark.parametrize("norm", ["batch", "none"])
    def test_a_new_client_is_its_fine_tuned_model_projected_after_every_epoch(self, recipe: Recipe, norm: str) -> None:
        task = task_of(recipe, norm)
        method, data = method_of("pca-k", task, components=2), shapes_examples(12, seed=5)
        server, _, _ = run_rounds(method, clients())
        context, plan = (
            Context(7, "new", task.network.workspace()),
            Adaptation(epochs=3, rate=0.05, statistics="frozen"),
        )
        seen: list[Tensors] = []

        def watch(now: Context, _: Tensors) -> float:
            seen.append(now.model.tensors())
            return 0.0

        fitted = personalize(method, server, "projection", data, context, plan, watch)
        seen[-1] = fitted.last.tensors
        origin = flat(task, server[MODEL])
        span = np.stack([flat(task, server[f"component_{k}"]) for k in range(2)], axis=1)
        assert len(seen) == 3
        for epoch, got in enumerate(seen, start=1):
            tuned = personalize(method, server, "ft", data, context, replace(plan, epochs=epoch)).last.tensors
            c, *_ = np.linalg.lstsq(span, flat(task, tuned) - origin, rcond=None)
            np.testing.assert_allclose(flat(task, got), origin + span @ c, atol=1e-5)
            assert np.abs(span @ c).max() > 1e-4
            assert all(torch.equal(got[name], server[MODEL][name]) for name in statistics(task))
        np.testing.assert_allclose(fitted.last.learned["coefficients"], c, atol=1e-4)

    def test_directions_that_the_models_do_not_have_are_zero(self, recipe: Recipe) -> None:
        """Some clients may be refused in the last round; what is left is still a model."""
        task = task_of(recipe, rounds=1)
        method = method_of("pca-k", task, components=3)
        start = task.initial(0)
        server = method.aggregate(method.init(0), updates_of([start, shuffled(start, 1)], [5, 5]), 0)
        lengths = [np.linalg.norm(flat(task, server[f"component_{k}"])) for k in range(3)]
        np.testing.assert_allclose(lengths, [1, 0, 0], atol=1e-5)
        equal = method.aggregate(method.init(0), updates_of([start] * 4, [5] * 4), 0)
        assert all(not t.any() for k in range(3) for t in equal[f"component_{k}"].values())
