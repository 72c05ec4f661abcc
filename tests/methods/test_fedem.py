"""FedEM against FedAvg, naive EM, autograd and a grid."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from battery import clients, run_rounds, same
from fedbasis.methods.base import MODEL, Adaptation, Context, Sent
from fedbasis.methods.fedem import FedEM, responsibilities
from fedbasis.networks.batches import Recipe, batches
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import predict
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.files import read_tensors, write_tensors
from fedbasis.tensors.params import State
from methods.helpers.cluster import (
    WEIGHTINGS,
    method_of,
    naive_losses,
    relabelled,
    task_of,
)
from shapes import shapes_examples


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
        method, data = method_of("fedem", task, components=3, start="noise"), shapes_examples(19, seed=4)
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
        method, data = method_of("fedem", task, components=2, start="noise"), shapes_examples(14)
        server, context = method.init(2), Context(2, "c", task.network.workspace())
        sent, kept = method.client_update(server, {"mixture": {"pi": torch.tensor([0.0, 1.0])}}, data, context)
        alone, _ = method_of("fedavg", task).client_update({MODEL: server["component_1"]}, None, data, context)
        assert same({"": sent.tensors["component_0"]}, {"": server["component_0"]})
        assert same({"": sent.tensors["component_1"]}, {"": alone.tensors[MODEL]})
        assert torch.equal(kept["mixture"]["pi"], torch.tensor([0.0, 1.0]))

    @pytest.mark.parametrize("weighting", WEIGHTINGS)
    def test_the_server_averages_every_component(self, recipe: Recipe, weighting: str) -> None:
        task = task_of(recipe, weighting=weighting)
        method = method_of("fedem", task, components=2, start="noise")
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
        method: FedEM = method_of("fedem", task, components=2, start="noise")
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
        method: FedEM = method_of("fedem", task, components=3, start="noise")
        server, _, _ = run_rounds(method, clients())
        new, test = shapes_examples(12, 1, seed=40), shapes_examples(30, 1, seed=41).pixels
        context = Context(7, "new", task.network.workspace())
        fitted = personalize(method, server, "fedem", new, context, Adaptation(epochs=4, statistics="frozen")).last
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
