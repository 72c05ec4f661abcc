"""PCA-k, k-means-k, IFCA and FedEM against FedAvg, scikit-learn, naive loops and closed forms."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from torch import nn

from conftest import shapes_examples
from fedbasis.methods import METHODS
from fedbasis.methods.base import CLOCK, MODEL, Adaptation, Context, Sent, Task
from fedbasis.methods.fedem import FedEM, responsibilities
from fedbasis.methods.ifca import IFCA
from fedbasis.methods.kmeans_k import KMeansK
from fedbasis.methods.pca_k import PCAK, project
from fedbasis.networks.models import Network
from fedbasis.networks.train import Examples, Recipe, batches, predict
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.files import read_tensors, write_tensors
from fedbasis.tensors.params import State, Tensors
from fedbasis.tensors.seeding import seed_for, torch_generator
from pflbed.errors import InputError
from test_methods import ROUNDS, clients, run_rounds, same

WEIGHTINGS = ["uniform", "examples"]


def task_of(recipe: Recipe, norm: str = "batch", rounds: int = ROUNDS, **task: Any) -> Task:
    return Task(Network("cnn-small", 3, 12, {"norm": norm, "width": 4}), recipe, rounds, **task)


def method_of(name: str, task: Task, **settings: Any) -> Any:
    return METHODS[name].build(METHODS[name].Config(**settings), task)


def updates_of(models: list[Tensors], examples: list[int]) -> list[tuple[str, Sent]]:
    numbers = [{"loss": 0.0, "examples": float(count)} for count in examples]
    return [(str(i), Sent({MODEL: m}, n)) for i, (m, n) in enumerate(zip(models, numbers, strict=True))]


def flat(task: Task, tensors: Tensors) -> NDArray[np.float64]:
    """All parameters of a model behind one another, in the order of their names."""
    return np.concatenate([tensors[name].double().numpy().ravel() for name in sorted(task.parameters)])


def statistics(task: Task) -> set[str]:
    return set(task.layout.shapes) - task.parameters


def shuffled(tensors: Tensors, seed: int, scale: float = 0.1) -> Tensors:
    """The same model with noise on every number."""
    generator = torch_generator("shuffled", seed)
    return {name: t + scale * torch.rand(t.shape, generator=generator) for name, t in tensors.items()}


def naive_losses(task: Task, tensors: Tensors, data: Examples) -> list[float]:
    """Every example's cross entropy, one by one, without any of the library's helpers."""
    module = task.network.build()
    module.load_state_dict(tensors, strict=False)
    module.eval()
    losses = []
    for pixels, label in zip(data.pixels, data.labels.tolist(), strict=True):
        with torch.no_grad():
            logits = module(task.recipe.preprocessing(pixels[None]))[0].tolist()
        losses.append(math.log(sum(math.exp(x) for x in logits)) - logits[label])
    return losses


def relabelled(count: int, seed: int, shift: int) -> Examples:
    """Groups of clients that call the same shapes by other names: no one model serves both."""
    data = shapes_examples(count, seed=seed)
    return Examples(data.pixels, (data.labels + shift) % 3)


class TestCollected:
    """What PCA-k and k-means-k share."""

    @pytest.mark.parametrize("weighting", WEIGHTINGS)
    @pytest.mark.parametrize(("name", "setting"), [("pca-k", "components"), ("kmeans-k", "centroids")])
    def test_all_rounds_are_fedavg_bit_for_bit(self, recipe: Recipe, name: str, setting: str, weighting: str) -> None:
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
    def test_too_few_clients_are_refused_before_any_work(
        self, recipe: Recipe, name: str, setting: str, enough: int
    ) -> None:
        method = method_of(name, task_of(recipe), **{setting: 3})
        method.updates.require_clients(enough)
        with pytest.raises(InputError, match="raise 'participation'"):
            method.updates.require_clients(enough - 1)


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
        context, plan = Context(7, "new", task.network.workspace()), Adaptation(epochs=3, rate=0.05)
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
            fitted = personalize(method, method.serving.published(server), "centroid", data, context, Adaptation())
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


class TestIFCA:
    @pytest.mark.parametrize("weighting", WEIGHTINGS)
    def test_one_cluster_is_fedavg_bit_for_bit(self, recipe: Recipe, weighting: str) -> None:
        task = task_of(recipe, weighting=weighting)
        average, _, _ = run_rounds(method_of("fedavg", task), clients())
        server, _, _ = run_rounds(method_of("ifca", task, clusters=1), clients())
        assert same({"cluster_0": average[MODEL]}, {"cluster_0": server["cluster_0"]})

    @pytest.mark.parametrize("weighting", WEIGHTINGS)
    def test_two_groups_are_found_and_trained_as_if_apart(self, recipe: Recipe, weighting: str) -> None:
        """Each cluster's model is that of a FedAvg among its own clients; one that nobody chooses stays."""
        task = task_of(recipe, weighting=weighting)
        data = {f"{i}": relabelled(15 + 3 * i, i, i % 2) for i in range(6)}
        parts = [{name: d for name, d in data.items() if int(name) % 2 == group} for group in range(2)]
        average = method_of("fedavg", task)
        warm = [run_rounds(average, part, rounds=range(2))[0][MODEL] for part in parts]  # leans to its group
        method: IFCA = method_of("ifca", task, clusters=3)
        state = method.init(7)
        idle = {name: t + 3 for name, t in task.initial(1).items()}
        start: State = {**state, "cluster_0": idle, "cluster_1": warm[1], "cluster_2": warm[0]}
        server, _, log = run_rounds(method, data, start, rounds=range(2, 5))
        for round_ in log:
            chosen = {name: int(sent.tensors["choice"]["cluster"]) for name, sent in round_.items()}
            assert chosen == {name: 1 if int(name) % 2 else 2 for name in data}
        for group in range(2):
            alone, _, _ = run_rounds(average, parts[group], {MODEL: warm[group]}, rounds=range(2, 5))
            assert same({"": alone[MODEL]}, {"": server[f"cluster_{2 - group}"]})
        assert same({"": server["cluster_0"]}, {"": idle})
        context = Context(7, "new", task.network.workspace())
        for shift in range(2):
            fitted = personalize(method, server, "cluster", relabelled(9, 50, shift), context, Adaptation())
            assert same({"": fitted.last.tensors}, {"": server[f"cluster_{2 - shift}"]})

    def test_the_choice_is_the_lowest_loss_of_a_naive_loop(self, recipe: Recipe) -> None:
        task = task_of(recipe)
        method = method_of("ifca", task, clusters=4)
        server, model, seen = method.init(3), task.network.workspace(), set()
        for seed in range(8):
            data = shapes_examples(8, seed % 2, seed=seed, classes=1 + seed % 3)
            sent, _ = method.client_update(server, None, data, Context(3, "c", model))
            means = [sum(naive_losses(task, server[f"cluster_{j}"], data)) for j in range(4)]
            assert int(sent.tensors["choice"]["cluster"]) == int(np.argmin(means))
            seen.add(int(np.argmin(means)))
        assert len(seen) > 1
        broken = {**server, f"cluster_{int(np.argmin(means))}": {n: t * torch.nan for n, t in task.initial(0).items()}}
        sent, _ = method.client_update(broken, None, data, Context(3, "c", model))
        assert int(sent.tensors["choice"]["cluster"]) == int(np.argsort(means)[1])

    def test_means_and_shares_in_closed_form(self, recipe: Recipe) -> None:
        task = task_of(recipe, weighting="examples")
        method = method_of("ifca", task, clusters=3)
        server, models = method.init(0), [task.initial(seed) for seed in range(3)]
        choices, examples = [2, 0, 2], [1, 2, 4]
        updates = [
            (name, Sent({**sent.tensors, "choice": {"cluster": torch.tensor(j)}}, sent.numbers))
            for (name, sent), j in zip(updates_of(models, examples), choices, strict=True)
        ]
        after = method.aggregate(server, iter(updates), 0)
        torch.testing.assert_close(after["usage"]["share"], torch.tensor([2 / 7, 0, 5 / 7]))
        for name in task.layout.shapes:
            torch.testing.assert_close(after["cluster_0"][name], models[1][name])
            torch.testing.assert_close(after["cluster_1"][name], server["cluster_1"][name])
            torch.testing.assert_close(after["cluster_2"][name], (models[0][name] + 4 * models[2][name]) / 5)
        assert same({"": method.model(after)}, {"": after["cluster_2"]})
        with pytest.raises(InputError, match="one of 3 clusters"):
            method.aggregate(
                server, [("x", Sent({MODEL: models[0], "choice": {"cluster": torch.tensor(3)}}, {"examples": 1.0}))], 0
            )
        with pytest.raises(InputError, match="none was received"):
            method.aggregate(server, iter(()), 0)


@pytest.mark.parametrize(("name", "setting"), [("ifca", "clusters"), ("fedem", "components")])
class TestStarts:
    def test_models_start_apart_with_and_without_pretrained_weights(
        self, recipe: Recipe, name: str, setting: str
    ) -> None:
        drawn = shuffled(task_of(recipe).initial(11), 0)
        weights = {k: t for k, t in drawn.items() if not k.startswith("fc.")}
        task, prefix = task_of(recipe, weights=weights), setting[:-1]
        for given in (None, weights):
            method = method_of(name, task_of(recipe, weights=given), **{setting: 3})
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


class TestFedEM:
    @pytest.mark.parametrize("weighting", WEIGHTINGS)
    @pytest.mark.parametrize("norm", ["batch", "group", "none"])
    def test_one_component_is_fedavg_bit_for_bit(self, recipe: Recipe, weighting: str, norm: str) -> None:
        task = task_of(recipe, norm, weighting=weighting)
        average, _, log = run_rounds(method_of("fedavg", task), clients())
        server, engine, mine = run_rounds(method_of("fedem", task, components=1), clients())
        assert same({"component_0": average[MODEL]}, server)
        assert all(torch.equal(kept["mixture"]["pi"], torch.ones(1)) for kept in engine.states.values())
        for one, other in zip(log, mine, strict=True):
            for client in one:
                assert one[client].numbers["loss"] == pytest.approx(other[client].numbers["loss"], rel=1e-5)

    def test_a_round_at_a_client_against_naive_em_and_autograd(self, recipe: Recipe) -> None:
        """The E step by loops over exp, pi as its mean, every component by a plain torch loop on weighted losses."""
        task = task_of(recipe)
        method, data = method_of("fedem", task, components=3), shapes_examples(19, seed=4)
        server, context = method.init(2), Context(2, "c", task.network.workspace(), 1)
        before = torch.tensor([0.6, 0.1, 0.3])
        sent, kept = method.client_update(server, {"mixture": {"pi": before}}, data, context)
        losses = [naive_losses(task, server[f"component_{k}"], data) for k in range(3)]
        q = np.zeros((19, 3))
        for i in range(19):
            joint = [float(before[k]) * math.exp(-losses[k][i]) for k in range(3)]
            for k in range(3):
                q[i, k] = joint[k] / sum(joint)
        got = responsibilities(torch.tensor(losses, dtype=torch.float64).t(), before)
        np.testing.assert_allclose(got, q, atol=1e-9)
        pi = kept["mixture"]["pi"]
        np.testing.assert_allclose(pi, q.mean(0), atol=1e-5)
        assert float(pi.sum()) == pytest.approx(1, abs=1e-6)
        assert np.abs(np.asarray(pi) - np.asarray(before)).max() > 1e-3
        total = 0.0
        for k in range(3):
            module = task.network.build()
            module.load_state_dict(server[f"component_{k}"], strict=False)
            module.train()
            optimizer = torch.optim.SGD(
                module.parameters(), recipe.rate, momentum=recipe.momentum, weight_decay=recipe.decay
            )
            generator, steps = context.generator("batches"), []
            for _ in range(recipe.epochs):
                for rows in batches(19, recipe.batch, generator):
                    logs = nn.functional.log_softmax(module(recipe.preprocessing(data.pixels[rows])), dim=1)
                    loss = torch.zeros(())
                    for place, row in enumerate(rows.tolist()):
                        loss = loss - q[row, k] * logs[place, data.labels[row]] / len(rows)
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    steps.append(float(loss.detach()))
            wanted = module.state_dict()
            for name, tensor in sent.tensors[f"component_{k}"].items():
                torch.testing.assert_close(tensor, wanted[name], rtol=1e-3, atol=1e-5)
            total += sum(steps) / len(steps)
        assert sent.numbers["loss"] == pytest.approx(total, rel=1e-4)

    def test_a_component_without_weight_stays_and_one_with_all_is_fedavg(self, recipe: Recipe) -> None:
        task = task_of(replace(recipe, decay=0.0), "group")
        method, data = method_of("fedem", task, components=2), shapes_examples(14)
        server, context = method.init(2), Context(2, "c", task.network.workspace())
        sent, kept = method.client_update(server, {"mixture": {"pi": torch.tensor([0.0, 1.0])}}, data, context)
        alone, _ = method_of("fedavg", task).client_update({MODEL: server["component_1"]}, None, data, context)
        assert same({"": sent.tensors["component_0"]}, {"": server["component_0"]})
        assert same({"": sent.tensors["component_1"]}, {"": alone.tensors[MODEL]})
        assert torch.equal(kept["mixture"]["pi"], torch.tensor([0.0, 1.0]))

    @pytest.mark.parametrize("weighting", WEIGHTINGS)
    def test_the_server_averages_every_component(self, recipe: Recipe, weighting: str) -> None:
        task = task_of(recipe, weighting=weighting)
        method = method_of("fedem", task, components=2)
        drawn = [[task.initial(10 * m + k) for k in range(2)] for m in range(2)]
        updates = [
            (str(m), Sent({f"component_{k}": drawn[m][k] for k in range(2)}, {"examples": float(1 + 2 * m)}))
            for m in range(2)
        ]
        after = method.aggregate(method.init(0), iter(updates), 0)
        share = 0.25 if weighting == "examples" else 0.5
        for k in range(2):
            for name, tensor in after[f"component_{k}"].items():
                torch.testing.assert_close(tensor, share * drawn[0][k][name] + (1 - share) * drawn[1][k][name])

    def test_em_for_a_new_client_climbs_to_the_likeliest_mixture(self, recipe: Recipe) -> None:
        """The likelihood is concave in pi, so a grid over it knows where EM must end."""
        task = task_of(recipe)
        method: FedEM = method_of("fedem", task, components=2)
        server: State = {}
        for group in range(2):  # a component for each of two groups, and a client that is of both
            data = {str(i): relabelled(18, i, group) for i in range(2)}
            server[f"component_{group}"] = run_rounds(method_of("fedavg", task), data)[0][MODEL]
        mixed = [relabelled(9, 30, 0), relabelled(12, 31, 1)]
        new = Examples(torch.cat([d.pixels for d in mixed]), torch.cat([d.labels for d in mixed]))
        context, plan = Context(7, "new", task.network.workspace()), Adaptation(epochs=300)
        steps = [(loss, learned["pi"]) for loss, learned in method.adapt("fedem", server, new, context, plan)]
        losses = np.array([naive_losses(task, server[f"component_{k}"], new) for k in range(2)])
        chances = np.exp(-losses)
        pi = np.full(2, 0.5)
        for loss, got in steps[:20]:
            q = pi[:, None] * chances / (pi[:, None] * chances).sum(0)
            pi = q.mean(1)
            np.testing.assert_allclose(got, pi, atol=1e-5)
            assert loss == pytest.approx(-np.log(pi @ chances).mean(), abs=1e-5)
        climb = [loss for loss, _ in steps]
        assert all(later <= earlier + 1e-12 for earlier, later in pairwise(climb))
        assert climb[-1] < climb[0]
        grid = np.linspace(0, 1, 2001)
        best = grid[np.argmax([np.log(p * chances[0] + (1 - p) * chances[1]).mean() for p in grid])]
        assert 0.02 < best < 0.98
        assert float(steps[-1][1][0]) == pytest.approx(best, abs=5e-3)

    def test_a_fitted_client_predicts_the_mixture_also_from_the_disk(self, recipe: Recipe, tmp_path: Path) -> None:
        task = task_of(recipe)
        method: FedEM = method_of("fedem", task, components=3)
        server, _, _ = run_rounds(method, clients())
        new, test = shapes_examples(12, 1, seed=40), shapes_examples(30, 1, seed=41).pixels
        context = Context(7, "new", task.network.workspace())
        fitted = personalize(method, server, "fedem", new, context, Adaptation(epochs=4)).last
        pi = fitted.learned["pi"]
        wanted = torch.zeros(30, 3)
        other = task.network.workspace()
        for k in range(3):
            other.load(server[f"component_{k}"])
            wanted = wanted + pi[k] * predict(other.module, test, recipe.preprocessing)
        write_tensors(tmp_path / "model.safetensors", {"": fitted.tensors, "learned": fitted.learned})
        state, _ = read_tensors(tmp_path / "model.safetensors")
        assert set(state) == {"", "learned"}
        for tensors, learned in ((fitted.tensors, fitted.learned), (state[""], state["learned"])):
            context.model.load(tensors)
            torch.testing.assert_close(method.serving.probabilities(context.model, learned, test), wanted)
            assert same({"": context.model.tensors()}, {"": tensors})  # predicting leaves the model as it was
        assert same({"": fitted.tensors}, {"": server[f"component_{int(pi.argmax())}"]})
        with pytest.raises(AssertionError):
            torch.testing.assert_close(predict(context.model.module, test, recipe.preprocessing), wanted)
