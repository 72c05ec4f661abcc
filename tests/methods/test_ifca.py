"""IFCA against FedAvg, naive loops and closed forms."""

import numpy as np
import pytest
import torch

from battery import clients, run_rounds, same
from fedbasis.methods.base import MODEL, Adaptation, Context, Sent
from fedbasis.methods.ifca import IFCA
from fedbasis.networks.batches import Recipe
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import State
from methods.helpers.cluster import WEIGHTINGS, method_of, naive_losses, relabelled, task_of, updates_of
from pflbed.errors import InputError
from shapes import shapes_examples


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
        method: IFCA = method_of("ifca", task, clusters=3, start="noise")
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
            fitted = personalize(
                method, server, "cluster", relabelled(9, 50, shift), context, Adaptation(statistics="frozen")
            )
            assert same({"": fitted.last.tensors}, {"": server[f"cluster_{2 - shift}"]})

    def test_the_choice_is_the_lowest_loss_of_a_naive_loop(self, recipe: Recipe) -> None:
        task = task_of(recipe)
        method = method_of("ifca", task, clusters=4, start="noise")
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
        method = method_of("ifca", task, clusters=3, start="noise")
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
