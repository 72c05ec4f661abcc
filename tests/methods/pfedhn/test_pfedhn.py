"""pFedHN against autograd through the hypernetwork."""

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
import torch
from torch import Tensor, nn

from battery import clients, run_rounds, same
from fedbasis.methods.fedavg import FedAvg
from fedbasis.methods.pfedhn import PFedHN, PFedHNConfig
from fedbasis.networks.batches import Recipe, batches
from fedbasis.tensors.params import State, Tensors
from fedbasis.tensors.seeding import torch_generator
from methods.helpers.generated import make_task, new_client
from shapes import shapes_examples


class TestPFedHN:
    config = PFedHNConfig(hidden=5, embedding=3, layers=1, rate=0.7, momentum=0.0, server_steps="round")

    def shaken(self, method: PFedHN) -> State:
        """A first state whose output weights are not zero, so that every Jacobian has something to say."""
        server, generator = method.init(7), torch_generator("shake")
        for name, tensor in server["hypernetwork"].items():
            tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=0.05 if "output" in name else 0.3)
        return server

    @staticmethod
    def naive(method: PFedHN, leaves: Tensors, bias: Tensors, v: Tensor) -> Tensors:
        """h(v), parameter by parameter, written out for two layers."""
        z = torch.relu(leaves["hidden_0.weight"] @ v + leaves["hidden_0.bias"])
        z = leaves["hidden_1.weight"] @ z + leaves["hidden_1.bias"]
        named = {}
        for entry in method.task.layout.select(True):
            rows = leaves[f"output_{entry.block}.weight"][entry.start : entry.stop]
            named[entry.name] = bias[entry.name] + (rows @ z).view(entry.shape)
        return named

    @pytest.mark.parametrize("weighting", ["uniform", "examples"])
    def test_a_round_of_one_step_is_a_gradient_step_through_the_whole_chain(
        self, recipe: Recipe, weighting: Any
    ) -> None:
        """With one plain local step d theta = -eta grad: the server then descends on the clients' mean loss."""
        single = replace(recipe, epochs=1, batch=64, momentum=0.0, decay=0.0)
        method = PFedHN.build(self.config, make_task(single, weighting=weighting))
        data, server, module = clients(3), self.shaken(method), method.task.network.build()
        after, _, _ = run_rounds(method, data, server, rounds=range(1))
        leaves = {name: t.clone().requires_grad_() for name, t in server["hypernetwork"].items()}
        bias = {name: t.clone().requires_grad_() for name, t in server["model"].items()}
        v = {client: method.embedding(server, client).clone().requires_grad_() for client in data}
        total = sum(len(d) for d in data.values())
        objective, own = torch.zeros(()), {}
        for client, examples in data.items():
            named, inputs = self.naive(method, leaves, bias, v[client]), single.preprocessing(examples.pixels)
            own[client] = nn.functional.cross_entropy(
                torch.func.functional_call(module, named, (inputs,)), examples.labels
            )
            share = len(examples) / total if weighting == "examples" else 1 / len(data)
            objective = objective + share * own[client]
        step = self.config.rate * single.rate
        for group, kind in (("hypernetwork", leaves), ("model", bias)):
            gradients = torch.autograd.grad(objective, list(kind.values()), retain_graph=True)
            for (name, leaf), gradient in zip(kind.items(), gradients, strict=True):
                assert gradient.abs().max() > 0
                moved = after[group][name] - leaf.detach()
                torch.testing.assert_close(moved, -step * gradient, rtol=1e-3, atol=2e-7)
        learned = []
        for client in data:
            (gradient,) = torch.autograd.grad(own[client], v[client], retain_graph=True)
            learned.append(method.embedding(after, client))
            assert gradient.abs().max() > 1e-4
            torch.testing.assert_close(learned[-1] - v[client].detach(), -step * gradient, rtol=1e-3, atol=2e-7)
        torch.testing.assert_close(after["start"]["embedding"], torch.stack(learned).mean(0))

    @pytest.mark.parametrize("steps", ["client", "round"])
    @pytest.mark.parametrize(("momentum", "weighting"), [(0.0, "uniform"), (0.9, "uniform"), (0.9, "examples")])
    def test_steps_are_those_of_torch_on_the_whole_chain(
        self, recipe: Recipe, steps: Any, momentum: float, weighting: str
    ) -> None:
        """One ``torch.optim.SGD`` over the hypernetwork, its bias and all embeddings; autograd client after client.

        In every round another client is missing, so that momentum moves embeddings that have no gradient.
        """
        config = PFedHNConfig(hidden=5, embedding=3, layers=1, rate=0.3, momentum=momentum, server_steps=steps)
        method = PFedHN.build(config, make_task(recipe, "batch", weighting=weighting))
        data, server, names = clients(4), self.shaken(method), method.task.parameters
        leaves, bias = (
            {name: t.clone().requires_grad_() for name, t in server[group].items() if group != "model" or name in names}
            for group in ("hypernetwork", "model")
        )
        v = {client: method.embedding(server, client).clone().requires_grad_() for client in data}
        every = [*leaves.values(), *bias.values(), *v.values()]
        optimizer = torch.optim.SGD(every, config.rate, momentum)
        for number in range(3):
            chosen = [client for i, client in enumerate(data) if i != number]
            present = {client: data[client] for client in chosen}
            server, _, (sent,) = run_rounds(method, present, server, rounds=range(number, number + 1))
            assert list(sent) == chosen
            totals = [torch.zeros_like(leaf) for leaf in every]
            for client in chosen:
                named, change = self.naive(method, leaves, bias, v[client]), sent[client].tensors["change"]
                uphill = [-change[name] for name in named]
                gradients = torch.autograd.grad(list(named.values()), every, uphill, allow_unused=True)
                for index, gradient in enumerate(gradients):
                    mine, total = every[index] is v[client], sum(len(data[name]) for name in chosen)
                    share = len(data[client]) / total if weighting == "examples" else 1 / len(chosen)
                    share = 1.0 if mine else share  # an embedding has its own client's step only
                    totals[index] += torch.zeros(()) if gradient is None else share * gradient
                if steps == "client" or client == chosen[-1]:
                    for leaf, gradient in zip(every, totals, strict=True):
                        leaf.grad = gradient.clone()
                        gradient.zero_()
                    optimizer.step()
            for group, kind in (("hypernetwork", leaves), ("model", bias)):
                for name, leaf in kind.items():
                    torch.testing.assert_close(server[group][name], leaf.detach(), rtol=1e-4, atol=1e-5)
            known = {client for client in data if quote(client, safe="") in server["embeddings"]}
            assert known == set(data) - ({next(iter(data))} if number == 0 else set())
            for client in known:
                torch.testing.assert_close(method.embedding(server, client), v[client].detach(), rtol=1e-4, atol=1e-5)
        assert not any(group.startswith("velocity") for group in method.serving.published(server))
        assert any(group.startswith("velocity") for group in server) is (momentum > 0)

    def test_one_client_a_round_makes_both_kinds_of_steps_equal(self, recipe: Recipe) -> None:
        task, data, ends = make_task(recipe, "batch"), clients(3), []
        names = list(data)
        for steps in ("client", "round"):
            settings = {"hidden": 5, "embedding": 3, "rate": 0.3, "momentum": 0.9, "server_steps": steps}
            method = PFedHN.build(PFedHNConfig.model_validate(settings), task)
            ends.append(run_rounds(method, data, self.shaken(method), sample=lambda number: [names[number % 3]])[0])
        assert same(*ends)

    def test_a_hypernetwork_of_zeros_at_rate_one_is_fedavg(self, recipe: Recipe) -> None:
        """Then only the output bias is left, whose Jacobian is the identity."""
        task = make_task(recipe, "batch")
        config = PFedHNConfig(hidden=4, embedding=3, layers=1, rate=1.0, momentum=0.0, server_steps="round")
        method = PFedHN.build(config, task)
        server = method.init(7)
        for tensor in server["hypernetwork"].values():
            tensor.zero_()
        got, _, _ = run_rounds(method, clients(), server, rounds=range(1))
        wanted, _, _ = run_rounds(FedAvg.build(None, task), clients(), rounds=range(1))
        for name, tensor in wanted["model"].items():
            exact = name not in task.parameters  # statistics are averaged by the same arithmetic
            torch.testing.assert_close(got["model"][name], tensor, rtol=0, atol=0 if exact else 1e-6)

    def test_every_client_starts_from_the_initial_model(self, recipe: Recipe) -> None:
        method = PFedHN.build(self.config, make_task(recipe, "batch"))
        server = method.init(7)
        for client in ("a/b", "a%2Fb", "c"):
            assert same(method.broadcast(server, client), {"model": method.task.initial(7)})
        assert same({"": method.model(server)}, {"": method.task.initial(7)})

    def test_clients_keep_their_embeddings_apart(self, recipe: Recipe) -> None:
        """A name with a slash and the escape of it are two clients; one that was not sampled keeps its first draw."""
        method = PFedHN.build(self.config, make_task(recipe))
        server = self.shaken(method)
        first = {client: method.embedding(server, client) for client in ("a/b", "a%2Fb", "c")}
        data = {"a/b": shapes_examples(9), "a%2Fb": shapes_examples(9, 1)}
        after, _, _ = run_rounds(method, data, server, rounds=range(1))
        second = {client: method.embedding(after, client) for client in first}
        assert torch.equal(first["c"], second["c"])
        assert not torch.equal(method.embedding({**server, "clock": {"seed": torch.tensor(8)}}, "c"), first["c"])
        for client in data:
            assert not torch.equal(first[client], second[client])
        assert len({tuple(v.tolist()) for v in (*first.values(), *second.values())}) == 5
        assert set(method.serving.published(after)) == {"model", "hypernetwork", "start"}

    @pytest.mark.parametrize("norm", ["none", "batch"])
    def test_a_new_embedding_is_learned_as_by_autograd(self, recipe: Recipe, norm: str) -> None:
        method = PFedHN.build(self.config, make_task(recipe, norm))
        server, _, _ = run_rounds(method, clients(), self.shaken(method), rounds=range(1))
        data = shapes_examples(12, seed=5)
        context, learned, _ = new_client(
            method, server, "embedding", data, epochs=3, rate=0.5, batch=5, decay=0.01, momentum=0.8
        )
        module = method.task.network.build()
        module.load_state_dict(server["model"], strict=False)
        module.eval()
        v = server["start"]["embedding"].clone().requires_grad_()
        start = v.detach().clone()
        optimizer, generator = torch.optim.SGD([v], 0.5, 0.8, weight_decay=0.01), context.generator("adapt")
        for _ in range(3):
            for rows in batches(12, 5, generator):
                named = self.naive(method, server["hypernetwork"], server["model"], v)
                logits = torch.func.functional_call(module, named, (recipe.preprocessing(data.pixels[rows]),))
                optimizer.zero_grad()
                nn.functional.cross_entropy(logits, data.labels[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        assert (v - start).norm() > 0.01
        torch.testing.assert_close(learned["embedding"], v.detach(), rtol=1e-3, atol=1e-5)
        fitted, expected = context.model.tensors(), self.naive(method, server["hypernetwork"], server["model"], v)
        for name, tensor in server["model"].items():
            wanted = expected[name].detach() if name in expected else tensor
            torch.testing.assert_close(fitted[name], wanted, rtol=1e-3, atol=1e-5)
