"""Fed-MTL, FedAMP and FedFomo against closed forms, autograd and loops written out."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from conftest import shapes_examples
from fedbasis.engines.in_process import Serial
from fedbasis.methods.base import Adaptation, Context, Method, Sent, Task
from fedbasis.methods.fed_mtl import FedMTL, FedMTLConfig, relations
from fedbasis.methods.fedamp import FedAMP, FedAMPConfig, by_cosine, by_distance
from fedbasis.methods.fedfomo import FedFomo, FedFomoConfig
from fedbasis.methods.shared.client_models import combination, gram
from fedbasis.networks.models import Network
from fedbasis.networks.train import Examples, Preprocessing, Recipe, local_sgd
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import State, Tensors
from fedbasis.tensors.seeding import torch_generator

SEED = 7
DATA = {f"{'ab'[i % 2]}/p{i}": shapes_examples(16 + 3 * i, i % 2, seed=i) for i in range(4)}
NAMES = sorted(DATA)


def task_of(norm: str = "batch", weighting: Any = "uniform", **recipe: Any) -> Task:
    settings = {"epochs": 1, "batch": 8, "rate": 0.05, "momentum": 0.9, "decay": 1e-2, **recipe}
    return Task(
        Network("cnn-small", 3, 12, {"norm": norm, "width": 4}),
        Recipe(preprocessing=Preprocessing(12), **settings),
        4,
        weighting=weighting,
    )


def mtl(task: Task, **config: Any) -> FedMTL:
    return FedMTL.build(FedMTLConfig(**config), task)


def amp(task: Task, **config: Any) -> FedAMP:
    return FedAMP.build(FedAMPConfig(**config), task)


def fomo(task: Task, **config: Any) -> FedFomo:
    return FedFomo.build(FedFomoConfig(**config), task)


def train(method: Method, rounds: list[list[str]]) -> tuple[list[State], Serial, list[dict[str, Sent]]]:
    """Return the server's state before the first and after every round, the engine, and what was sent."""
    engine, states, log = Serial(method, DATA, SEED), [method.init(SEED)], []
    for number, names in enumerate(rounds):
        seen: dict[str, Sent] = {}

        def stream(names: list[str] = names, number: int = number, seen: dict[str, Sent] = seen) -> Iterator[Any]:
            for client, sent in engine.map(states[-1], names, number):
                seen[client] = sent
                yield client, sent

        states.append(method.aggregate(states[-1], stream(), SEED))
        log.append(seen)
    return states, engine, log


def context_of(task: Task, client: str, round: int = 0) -> Context:
    return Context(SEED, client, task.network.workspace(), round)


def parameters(task: Task, tensors: Tensors) -> Tensor:
    """All parameters of a model in one vector, by the module's own order; statistics are left out."""
    return torch.cat([tensors[name].reshape(-1) for name, _ in task.network.build().named_parameters()]).double()


def equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def alone(task: Task, rounds: int) -> dict[str, Tensors]:
    """Every client trains its own model from the initial one and hears nothing of the others."""
    own = {name: task.initial(SEED) for name in NAMES}
    for number in range(rounds):
        for name in NAMES:
            context = context_of(task, name, number)
            context.model.load(own[name])
            local_sgd(context.model, DATA[name], task.recipe, context.generator("batches"))
            own[name] = context.model.tensors()
    return own


def one_step(task: Task, start: Tensors, data: Examples, penalty: Any) -> Tensors:
    """One step of plain SGD on all images at once by autograd; ``penalty`` is a function of the named parameters."""
    module = task.network.build()
    module.load_state_dict(start, strict=False)
    module.train()
    rows = torch.arange(len(data))
    named = dict(module.named_parameters())
    loss = cross_entropy(module(task.recipe.preprocessing(data.pixels[rows])), data.labels[rows])
    total = loss + penalty(torch.cat([p.reshape(-1) for p in named.values()]).double()).float()
    gradients = torch.autograd.grad(total, list(named.values()))
    return {
        name: (p - task.recipe.rate * (g + task.recipe.decay * p)).detach()
        for (name, p), g in zip(named.items(), gradients, strict=True)
    }


def assert_parameters_close(got: Tensors, wanted: Tensors) -> None:
    for name, tensor in wanted.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-6)


class TestTable:
    @pytest.mark.parametrize("weighting", ["uniform", "examples"])
    @pytest.mark.parametrize("make", [mtl, amp, fomo])
    def test_holds_everyones_latest_model_and_their_mean(self, make: Any, weighting: str) -> None:
        task = task_of(weighting=weighting)
        states, _, log = train(make(task), [NAMES[:2], NAMES[1:3]])
        last = {NAMES[0]: log[0][NAMES[0]], NAMES[1]: log[1][NAMES[1]], NAMES[2]: log[1][NAMES[2]]}
        for name, sent in last.items():
            assert equal(states[-1][f"client/{name}"], sent.tensors["model"])
        assert f"client/{NAMES[3]}" not in states[-1]
        counts = [len(DATA[name]) if weighting == "examples" else 1 for name in last]
        for name, tensor in states[-1]["model"].items():
            parts = [c * sent.tensors["model"][name].double() for c, sent in zip(counts, last.values(), strict=True)]
            torch.testing.assert_close(tensor, (sum(parts) / sum(counts)).float())  # type: ignore[union-attr]

    @pytest.mark.parametrize("make", [mtl, amp])
    def test_a_new_client_gets_the_mean_and_nothing_else(self, make: Any) -> None:
        method = make(task_of())
        states, _, _ = train(method, [NAMES])
        assert set(method.serving.published(states[-1])) == {"model"}

    def test_combination_moves_from_the_base_by_every_difference(self) -> None:
        table = [{"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([5.0, -2.0])}]
        weights, base = torch.tensor([0.25, 0.5]), {"a": torch.tensor([1.0, 0.0])}
        assert combination(table, weights, ["a"])["a"].tolist() == [2.75, -0.5]
        assert combination(table, weights, ["a"], base)["a"].tolist() == [3.0, -0.5]


class TestFedMTL:
    @pytest.mark.parametrize("norm", ["batch", "none"])
    @pytest.mark.parametrize("epsilon", [1e-6, 1e-2])
    def test_omega_is_its_closed_form_by_a_matrix_square_root_of_all_of_w(self, norm: str, epsilon: float) -> None:
        task = task_of(norm)
        states, _, _ = train(mtl(task, epsilon=epsilon), [NAMES[:3], NAMES[1:]])
        w = torch.stack([parameters(task, states[-1][f"client/{name}"]) for name in NAMES], 1).numpy()
        square = w.T @ w
        square += epsilon * np.mean([column @ column for column in w.T]) * np.eye(len(NAMES))
        root = scipy.linalg.sqrtm(square)
        wanted = np.linalg.inv(root / np.trace(root))
        np.testing.assert_allclose(states[-1]["relations"]["omega"].numpy(), wanted, rtol=1e-4, atol=1e-4)
        exact = relations(torch.from_numpy(w.T @ w), epsilon)
        np.testing.assert_allclose(exact.numpy(), wanted, rtol=1e-7)

    def test_omega_minimises_the_penalty_among_all_with_inverses_of_trace_one(self) -> None:
        w = torch.randn(30, 5, generator=torch_generator("w"), dtype=torch.float64)
        w += w.mean(1, keepdim=True)
        square, epsilon = w.T @ w, 1e-3
        ridged = square + epsilon * square.diagonal().mean() * torch.eye(5, dtype=torch.float64)
        sigma = torch.linalg.inv(relations(square, epsilon))
        assert float(sigma.trace()) == pytest.approx(1)

        def objective(covariance: Tensor) -> float:
            return float((ridged @ torch.linalg.inv(covariance)).trace())

        best = objective(sigma)
        for i in range(20):
            direction = torch.randn(5, 5, generator=torch_generator("direction", i), dtype=torch.float64)
            direction = direction + direction.T
            direction -= direction.trace() / 5 * torch.eye(5, dtype=torch.float64)
            step = 1e-3 * float(torch.linalg.eigvalsh(sigma)[0]) / float(torch.linalg.matrix_norm(direction, 2))
            up, down = objective(sigma + step * direction), objective(sigma - step * direction)
            assert min(up, down) > best
            curved = (up - best) + (down - best)  # second order; the first order must vanish beside it
            assert abs(up - down) < 0.05 * curved

    @pytest.mark.parametrize("norm", ["batch", "none"])
    def test_a_step_follows_autograd_through_the_trace_with_the_others_fixed(self, norm: str) -> None:
        task = task_of(norm, batch=64, momentum=0.0)
        method = mtl(task, l1=0.02, l2=0.03)
        states, engine, _ = train(method, [NAMES, NAMES[:2]])
        client, server = NAMES[1], states[-1]
        column = NAMES.index(client)
        omega = server["relations"]["omega"].double()
        w = torch.stack([parameters(task, server[f"client/{name}"]) for name in NAMES], 1)

        def penalty(own: Tensor) -> Tensor:
            whole = torch.cat([w[:, :column], own[:, None], w[:, column + 1 :]], 1)
            return 0.02 * (whole @ omega @ whole.T).trace() + 0.03 * whole.square().sum()

        received = method.broadcast(server, client)
        assert set(received) == {"pull", "relations"}
        assert set(received["pull"]) == task.parameters
        assert received["relations"]["own"].numel() == 1
        kept = engine.states[client]
        assert equal(kept["model"], server[f"client/{client}"])
        sent, after = method.client_update(received, kept, DATA[client], context_of(task, client, 2))
        wanted = one_step(task, kept["model"], DATA[client], penalty)
        assert_parameters_close(sent.tensors["model"], wanted)
        plain = one_step(task, kept["model"], DATA[client], lambda own: 0 * own.sum())
        assert not torch.allclose(plain["fc.weight"], wanted["fc.weight"], atol=1e-4)
        assert after is not None
        assert equal(after["model"], sent.tensors["model"])

    @pytest.mark.parametrize("norm", ["batch", "group"])
    def test_without_penalties_every_client_trains_alone_bit_for_bit(self, norm: str) -> None:
        task = task_of(norm)
        states, engine, _ = train(mtl(task, l1=0.0, l2=0.0), [NAMES] * 3)
        for name, model in alone(task, 3).items():
            assert equal(states[-1][f"client/{name}"], model)
            assert equal(engine.states[name]["model"], model)

    def test_relations_draw_the_models_together(self) -> None:
        task = task_of("none", epochs=3)
        spreads = []
        for l1 in (0.0, 0.01):
            states, _, _ = train(mtl(task, l1=l1), [NAMES] * 3)
            w = torch.stack([parameters(task, states[-1][f"client/{name}"]) for name in NAMES])
            spreads.append(float((w - w.mean(0)).norm() / w.norm()))
        assert spreads[1] < 0.9 * spreads[0]

    def test_a_client_seen_for_the_first_time_starts_from_the_mean_without_relations(self) -> None:
        task = task_of()
        method = mtl(task, l1=0.5)
        states, _, log = train(method, [NAMES[:2], NAMES[2:]])
        context = context_of(task, NAMES[3], 1)
        context.model.load(states[1]["model"])
        local_sgd(context.model, DATA[NAMES[3]], task.recipe, context.generator("batches"))
        assert equal(log[1][NAMES[3]].tensors["model"], context.model.tensors())
        assert states[-1]["relations"]["omega"].shape == (4, 4)

    def test_a_new_client_is_fitted_as_by_fine_tuning_with_a_leash_of_twice_l1(self) -> None:
        task = task_of()
        method = mtl(task, l1=0.25)
        states, _, _ = train(method, [NAMES])
        assert_own_way_is_ft_prox(method, "mtl", states[-1], 0.5)
        heavier = personal(mtl(task, l1=0.25, l2=0.4), "mtl", states[-1])
        lighter = personal(mtl(task, l1=0.25, l2=0.1), "mtl", states[-1])
        assert parameters(task, heavier).norm() < parameters(task, lighter).norm()

    def test_a_new_client_follows_autograd(self) -> None:
        task = task_of(batch=64)
        method, data = mtl(task, l1=0.3, l2=0.2), DATA[NAMES[0]]
        states, _, _ = train(method, [NAMES])
        centre = parameters(task, states[-1]["model"])

        def two_steps(start: Tensors) -> Tensors:
            for _ in range(2):
                module = task.network.build()
                module.load_state_dict(start, strict=False)
                moved = one_step(
                    replace(task, recipe=replace(task.recipe, rate=0.05, decay=0.0)), start, data,
                    lambda own: 0.3 * (own - centre).square().sum() + 0.2 * own.square().sum(),
                )  # fmt: skip
                start = {**start, **moved}
            return {name: start[name] for name in task.parameters}

        plan = Adaptation(epochs=2, rate=0.05, decay=0.0, momentum=0.0, batch=64)
        got = personalize(method, states[-1], "mtl", data, context_of(task, "new"), plan).last.tensors
        assert_parameters_close(got, two_steps(states[-1]["model"]))


def personal(method: Method, how: str, server: State, prox: float = 1.0) -> Tensors:
    plan = Adaptation(epochs=3, rate=0.05, prox=prox)
    outcome = personalize(
        method,
        method.serving.published(server),
        how,
        shapes_examples(12, 1, seed=9),
        context_of(method.task, "new"),
        plan,
    )
    assert len(outcome.losses) == 3
    return outcome.last.tensors


def assert_own_way_is_ft_prox(method: Method, how: str, server: State, prox: float) -> None:
    own = personal(method, how, server)
    assert equal(own, personal(method, "ft-prox", server, prox))
    assert not equal(own, personal(method, "ft", server))


class TestFedAMP:
    @pytest.mark.parametrize(("alpha", "capped"), [(0.3, 0), (2.0, 4)])
    def test_u_is_a_double_loop_over_the_clients(self, alpha: float, capped: int) -> None:
        task, sigma = task_of(), 2.0
        method = amp(task, alpha=alpha, sigma=sigma)
        states, _, _ = train(method, [NAMES[:2], NAMES])
        server, found = states[-1], 0
        flat = {name: parameters(task, server[f"client/{name}"]) for name in NAMES}
        for m in NAMES:
            xi = {}
            for j in NAMES:
                if j != m:
                    distance = float((flat[m] - flat[j]).square().sum())
                    xi[j] = alpha * np.exp(-distance / sigma) / sigma
            if sum(xi.values()) > 3 / 4:
                found += 1
                xi = {j: weight * 3 / 4 / sum(xi.values()) for j, weight in xi.items()}
            xi[m] = 1 - sum(xi.values())
            cloud = method.broadcast(server, m)["model"]
            for name, tensor in cloud.items():
                wanted = sum(xi[j] * server[f"client/{j}"][name].double() for j in NAMES)
                torch.testing.assert_close(tensor, wanted.float(), rtol=1e-5, atol=1e-6)
        assert found == capped

    def test_u_is_half_a_gradient_step_on_the_sum_of_a(self) -> None:
        """As the paper writes it: 1 - alpha A' and alpha A', where the derivative of ||w_i - w_j||^2 has a 2."""
        w = torch.randn(4, 6, generator=torch_generator("w"), dtype=torch.float64)
        alpha, sigma = 0.7, 8.0
        free = w.clone().requires_grad_()
        pairs = [(i, j) for i in range(4) for j in range(i)]
        total = sum(1 - torch.exp(-(free[i] - free[j]).square().sum() / sigma) for i, j in pairs)
        total.backward()  # type: ignore[union-attr]
        assert free.grad is not None
        xi = by_distance(w @ w.T, alpha, sigma)
        torch.testing.assert_close(xi @ w, w - alpha / 2 * free.grad)

    @pytest.mark.parametrize("own", [None, 0.1, 0.6])
    def test_cosine_attention_is_a_softmax_over_the_others(self, own: float | None) -> None:
        w = torch.randn(5, 6, generator=torch_generator("w"), dtype=torch.float64) + 1
        xi = by_cosine(w @ w.T, 3.0, own)
        self_weight = 0.2 if own is None else own
        for m in range(5):
            scores = {
                j: np.exp(3.0 * float(w[m] @ w[j] / (w[m].norm() * w[j].norm()))) for j in range(5) if j != m
            }  # fmt: skip
            for j in range(5):
                wanted = self_weight if j == m else (1 - self_weight) * scores[j] / sum(scores.values())
                assert float(xi[m, j]) == pytest.approx(wanted)

    @pytest.mark.parametrize("config", [{"alpha": 1.0, "sigma": 2.0}, {}, {"attention": "cosine"}])
    def test_weights_are_shares(self, config: dict[str, Any]) -> None:
        method = amp(task_of(), **config)
        for rounds in ([NAMES[:1]], [NAMES[:3], NAMES]):
            states, _, _ = train(method, rounds)
            xi = states[-1]["relations"]["attention"]
            torch.testing.assert_close(xi.sum(1), torch.ones(len(xi)))
            assert bool((xi >= 0).all())
            assert bool((xi.diagonal() >= 1 / len(xi) - 1e-6).all())
            assert method.insight.diagnostics(states[-1])["self_weight"] == pytest.approx(float(xi.diagonal().mean()))

    def test_gram_gives_the_distances_of_parameters(self) -> None:
        task = task_of()
        models = [task.initial(seed) for seed in range(3)]
        flat = torch.stack([parameters(task, model) for model in models])
        torch.testing.assert_close(gram(models, task.parameters), flat @ flat.T)

    @pytest.mark.parametrize("config", [{"alpha": 1.0, "sigma": 2.0}, {"attention": "cosine"}])
    def test_equal_clients_get_their_own_model_back_bit_for_bit(self, config: dict[str, Any]) -> None:
        method = amp(task_of(), **config)
        _, _, log = train(method, [NAMES[:1]])
        update = log[0][NAMES[0]]
        server = method.aggregate(method.init(SEED), [(name, update) for name in NAMES], SEED)
        assert equal(method.broadcast(server, NAMES[2])["model"], update.tensors["model"])

    def test_without_lambda_every_client_trains_alone_bit_for_bit(self) -> None:
        task = task_of()
        states, _, _ = train(amp(task, lam=0.0, start="own", alpha=1.0, sigma=5.0), [NAMES] * 3)
        for name, model in alone(task, 3).items():
            assert equal(states[-1][f"client/{name}"], model)

    @pytest.mark.parametrize("start", ["own", "cloud"])
    def test_a_step_follows_autograd_through_the_pull_towards_u(self, start: Any) -> None:
        task = task_of(batch=64, momentum=0.0)
        method = amp(task, lam=2.0, alpha=4.0, sigma=20.0, start=start)
        states, engine, _ = train(method, [NAMES] * 2)
        received, kept = method.broadcast(states[-1], NAMES[2]), engine.states[NAMES[2]]
        u = parameters(task, received["model"])
        begin = kept["model"] if start == "own" else received["model"]
        wanted = one_step(task, begin, DATA[NAMES[2]], lambda w: 2.0 / (2 * 4.0) * (w - u).square().sum())
        sent, _ = method.client_update(received, kept, DATA[NAMES[2]], context_of(task, NAMES[2], 2))
        assert_parameters_close(sent.tensors["model"], wanted)
        other = one_step(task, kept["model"], DATA[NAMES[2]], lambda w: 0 * w.sum())
        assert not torch.allclose(other["fc.weight"], wanted["fc.weight"], atol=1e-4)

    def test_the_pull_in_the_cloud_holds_a_client_back(self) -> None:
        """From u itself the pull is zero at first; over several steps it keeps a client nearer to u."""
        task, moved = task_of("none", epochs=4), []
        for lam in (0.0, 5.0):
            method = amp(task, lam=lam, alpha=1.0, sigma=5.0)
            received = method.broadcast(method.init(SEED), NAMES[0])
            sent, _ = method.client_update(received, None, DATA[NAMES[0]], context_of(task, NAMES[0]))
            moved.append((parameters(task, sent.tensors["model"]) - parameters(task, received["model"])).norm())
        assert moved[1] < 0.8 * moved[0]

    def test_alpha_falls_by_its_factor(self) -> None:
        task = task_of(epochs=1)
        method = amp(task, alpha=8.0, alpha_decay=0.5, decay_every=2, sigma=1e3)
        states, _, _ = train(method, [NAMES[:3]] * 5)
        sent = [float(method.broadcast(state, NAMES[0])["relations"]["alpha"]) for state in states]
        assert sent == [8.0, 8.0, 4.0, 4.0, 2.0, 2.0]
        for state, alpha in zip(states[1:], sent[1:], strict=True):
            flat = [parameters(task, state[f"client/{name}"]) for name in NAMES[:3]]
            wanted = alpha / 1e3 * np.exp(-float((flat[0] - flat[1]).square().sum()) / 1e3)
            assert float(state["relations"]["attention"][0, 1]) == pytest.approx(wanted, rel=1e-4)

    def test_a_new_client_is_fitted_as_by_fine_tuning_with_a_leash_of_lambda_over_alpha(self) -> None:
        method = amp(task_of(), lam=2.0, alpha=8.0, sigma=20.0)
        states, _, _ = train(method, [NAMES])
        assert_own_way_is_ft_prox(method, "amp", states[-1], 0.25)


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
        plan = Adaptation(epochs=2, rate=0.05)
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
