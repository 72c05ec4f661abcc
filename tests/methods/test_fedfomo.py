"""FedFomo against the paper's update written out."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedbasis.methods.base import Adaptation, Task
from fedbasis.methods.fedfomo import FedFomo, FedFomoConfig
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import local_sgd
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import State, Tensors
from fedbasis.tensors.seeding import torch_generator
from methods.helpers.related import DATA, NAMES, SEED, context_of, equal, parameters, task_of, train
from shapes import shapes_examples


def fomo(task: Task, **config: Any) -> FedFomo:
    return FedFomo.build(FedFomoConfig(**config), task)


def naive_loss(task: Task, tensors: Tensors, data: Examples) -> float:
    module: nn.Module = task.network.build()
    module.load_state_dict(tensors, strict=False)
    module.eval()
    with torch.no_grad():
        return float(cross_entropy(module(task.recipe.preprocessing(data.pixels)), data.labels))


def naive_move(task: Task, base: Tensors, others: list[Tensors], data: Examples) -> tuple[Tensors, list[float]]:
    """The paper's weights and update, written out."""
    weights = []
    for other in others:
        distance = float((parameters(task, other) - parameters(task, base)).square().sum() ** 0.5)
        gain = naive_loss(task, base, data) - naive_loss(task, other, data)
        weights.append(gain / distance)
    positive = [max(weight, 0.0) for weight in weights]
    moved = {name: tensor.double() for name, tensor in base.items()}
    for other, weight in zip(others, positive, strict=True):
        for name, tensor in base.items():
            if sum(positive) > 0:
                moved[name] += weight / sum(positive) * (other[name].double() - tensor.double())
    return {name: tensor.float() for name, tensor in moved.items()}, weights


def held_rows(client: str, count: int) -> Tensor:
    """Which images a client holds out: a fifth, drawn once for all rounds."""
    return torch.randperm(count, generator=torch_generator(SEED, "client", client, 0, "validation"))[: count // 5]


def rest_rows(client: str, count: int) -> Tensor:
    """Which it trains on."""
    return torch.tensor(sorted(set(range(count)) - set(held_rows(client, count).tolist())))


def part(data: Examples, rows: Tensor) -> Examples:
    return Examples(data.pixels[rows], data.labels[rows])


class TestFedFomo:
    @pytest.mark.parametrize("norm", ["batch", "none"])
    def test_a_round_is_the_papers_update_written_out(self, norm: str) -> None:
        task = task_of(norm)
        method = fomo(task, models=3, epsilon=0.0)
        states, engine, _ = train(method, [NAMES] * 2)
        both = 0
        for client in NAMES:
            kept, data = engine.states[client], DATA[client]
            rows, rest = held_rows(client, len(data)), rest_rows(client, len(data))
            others = [name for name in NAMES if name != client]
            table = [kept["model"]] + [states[-1][f"client/{name}"] for name in others]
            start, weights = naive_move(task, kept["previous"], table, part(data, rows.sort().values))
            both += sum(weight > 0 for weight in weights) > 1
            context = context_of(task, client, 2)
            context.model.load(start)
            local_sgd(context.model, part(data, rest), task.recipe, context.generator("batches"))
            received = method.broadcast(states[-1], client)
            assert set(received) == {f"client/{name}" for name in others}
            sent, after = method.client_update(received, kept, data, context_of(task, client, 2))
            assert after is not None
            for name, tensor in start.items():
                torch.testing.assert_close(after["previous"][name], tensor, rtol=1e-5, atol=1e-6)
            for name, tensor in context.model.tensors().items():
                torch.testing.assert_close(sent.tensors["model"][name], tensor, rtol=1e-3, atol=1e-4)
            assert equal(after["model"], sent.tensors["model"])
            told = sent.tensors["affinity"]["weights"].tolist()
            assert told == pytest.approx(weights[1:], rel=1e-3, abs=1e-5)  # its own weight stays with it
        assert both > 1  # otherwise the weights were never shared out

    def test_the_first_round_is_training_alone_on_the_images_not_held_out(self) -> None:
        task, client = task_of(), NAMES[3]
        _, engine, log = train(fomo(task), [NAMES])
        data = DATA[client]
        rest = rest_rows(client, len(data))
        context = context_of(task, client)
        context.model.load(task.initial(SEED))
        local_sgd(context.model, part(data, rest), task.recipe, context.generator("batches"))
        assert equal(log[0][client].tensors["model"], context.model.tensors())
        assert log[0][client].tensors["affinity"]["weights"].numel() == 0
        assert equal(engine.states[client]["previous"], task.initial(SEED))

    def test_only_ones_own_model_means_to_stay(self) -> None:
        task = task_of()
        method, own = fomo(task), task.initial(1)
        data, context = DATA[NAMES[0]], context_of(task, NAMES[0])
        weights = method.weights(own, [own, own], data, context)
        assert weights.tolist() == [0.0, 0.0]
        assert equal(method.moved(own, [own, own], weights), own)
        states, engine, log = train(fomo(task, compare="own"), [NAMES[:1]] * 3)  # nobody else is there to download
        assert method.broadcast(states[-1], NAMES[0]).keys() == set()
        rest = part(data, rest_rows(NAMES[0], len(data)))
        for number in range(3):  # so it trains alone
            context = context_of(task, NAMES[0], number)
            context.model.load(own if number else task.initial(SEED))
            local_sgd(context.model, rest, task.recipe, context.generator("batches"))
            own = context.model.tensors()
            assert equal(log[number][NAMES[0]].tensors["model"], own)
        assert set(engine.states[NAMES[0]]) == {"model"}

    def test_ones_own_training_counts_like_a_download(self) -> None:
        """It is compared with the model before it, as the authors do: kept if it helped, taken back if it did not."""
        task, client = task_of(), NAMES[0]
        held = part(DATA[client], held_rows(client, len(DATA[client])).sort().values)
        one, other = sorted((task.initial(seed) for seed in range(2)), key=lambda t: naive_loss(task, t, held))
        for kept in ({"model": one, "previous": other}, {"model": other, "previous": one}):
            _, after = fomo(task).client_update({}, kept, DATA[client], context_of(task, client, 1))
            assert after is not None
            assert equal(after["previous"], one)

    def test_the_only_better_model_gets_all_the_weight_and_no_better_one_none(self) -> None:
        task = task_of(epochs=5)
        method, data = fomo(task), DATA[NAMES[0]]
        context = context_of(task, NAMES[0])
        base = task.initial(1)
        context.model.load(base)
        local_sgd(context.model, data, task.recipe, context.generator("batches"))
        better = context.model.tensors()
        worse = {name: 3 * tensor for name, tensor in base.items()}
        assert naive_loss(task, worse, data) > naive_loss(task, base, data) > naive_loss(task, better, data)
        weights = method.weights(base, [worse, better], data, context)
        assert equal(method.moved(base, [worse, better], weights), better)
        assert equal(method.moved(base, [worse], weights[:1]), base)

    def test_affinities_add_up_the_weights_of_every_download(self) -> None:
        method = fomo(task_of(), models=2, epsilon=0.5, epsilon_decay=0.0)
        rounds = [NAMES[1:3], NAMES[1:3], NAMES, NAMES[2:]]  # then one comes who is first by name
        states, _, log = train(method, rounds)
        assert [int(state["clock"]["round"]) for state in states] == [0, 1, 2, 3, 4]  # by which epsilon falls
        affinity: dict[tuple[str, str], float] = {}
        for server, sent in zip(states, log, strict=False):
            for client, update in sent.items():
                got = [group.removeprefix("client/") for group in method.broadcast(server, client) if group != "model"]
                for other, weight in zip(got, update.tensors["affinity"]["weights"].tolist(), strict=True):
                    affinity[client, other] = affinity.get((client, other), 0.0) + weight
        assert len(affinity) > 6
        assert any(weight < 0 for weight in affinity.values())  # what harmed counts against
        wanted = [[affinity.get((m, n), 0.0) for n in NAMES] for m in NAMES]
        torch.testing.assert_close(states[-1]["relations"]["affinity"], torch.tensor(wanted))

    def test_downloads_are_the_best_liked_or_random_ones(self) -> None:
        task = task_of()
        names = [f"c{i}" for i in range(6)]
        model = task.initial(0)
        server: State = {f"client/{name}": model for name in names} | {"model": model}
        server["relations"] = {"affinity": torch.tensor([[9.0, 0.1, -0.5, 0.4, 0.0, 0.3]] + 5 * [[0.0] * 6])}
        server["clock"] = {"round": torch.tensor(0), "seed": torch.tensor(SEED)}
        assert fomo(task, models=2, epsilon=0.0).downloads(server, "c0") == ["c3", "c5"]  # never its own
        assert fomo(task, models=9, epsilon=0.0).downloads(server, "c0") == names[1:]
        counts = dict.fromkeys(names, 0)
        ties = dict.fromkeys(names, 0)
        fixed = fomo(task, models=2, epsilon=0.4, epsilon_decay=0.0)
        for round in range(2000):
            server["clock"] = {"round": torch.tensor(round), "seed": torch.tensor(SEED)}
            assert fixed.downloads(server, "c0") == fixed.downloads(server, "c0")
            for name in fixed.downloads(server, "c0"):
                counts[name] += 1
            for name in fixed.downloads(server, "somebody new"):
                ties[name] += 1
        assert counts["c0"] == 0
        # c2, liked least: both random and it is in the pair (2/5), or one of two random and it is that one (1/5, 1/4)
        chance = 0.4 * 0.4 * 2 / 5 + 0.4 * 0.6 * 1 / 5 + 0.6 * 0.4 * (1 / 5 + 4 / 5 * 0)
        assert counts["c2"] / 2000 == pytest.approx(chance, abs=0.04)
        assert all(count / 2000 == pytest.approx(2 / 6, abs=0.04) for count in ties.values())
        falling = fomo(task, models=2, epsilon=0.3, epsilon_decay=0.1)
        for round in range(3, 40):  # by then epsilon is zero
            server["clock"] = {"round": torch.tensor(round), "seed": torch.tensor(SEED)}
            assert falling.downloads(server, "c0") == ["c3", "c5"]

    def test_a_new_client_moves_from_the_mean_by_its_own_images(self) -> None:
        task = task_of(epochs=3)
        method = fomo(task, models=9)
        states, _, _ = train(method, [NAMES] * 2)
        published = method.serving.published(states[-1])
        assert set(published) == {"model", *(f"client/{name}" for name in NAMES)}
        data = shapes_examples(14, 1, seed=9)
        table = [published[f"client/{name}"] for name in NAMES]
        wanted, weights = naive_move(task, published["model"], table, data)
        assert sum(weight > 0 for weight in weights) > 1
        plan = Adaptation(epochs=2, rate=0.05, statistics="frozen")
        outcome = personalize(method, published, "fomo", data, context_of(task, "new"), plan)
        for name, tensor in wanted.items():
            torch.testing.assert_close(outcome.last.tensors[name], tensor, rtol=1e-4, atol=1e-5)
        assert outcome.losses == [pytest.approx(naive_loss(task, wanted, data), rel=1e-3)]
        again = personalize(method, published, "fomo", data, context_of(task, "new"), replace(plan, rate=0.5))
        assert equal(outcome.last.tensors, again.last.tensors)  # no rate in it
        few = personalize(fomo(task, models=1), published, "fomo", data, context_of(task, "new"), plan).last.tensors
        assert any(equal(few, model) for model in (published["model"], *table))
        both = personalize(method, published, "fomo+ft", data, context_of(task, "new"), plan)
        assert len(both.losses) == 3
        assert both.losses[-1] < outcome.losses[-1]
