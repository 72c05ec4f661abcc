"""Local, FedProx, SCAFFOLD, Ditto and APFL against FedAvg, closed forms, autograd and naive references.

The closed forms use a linear network with a squared loss in float64: with all data in one batch every client's loss is
a quadratic ``1/2 tr(W H W') - tr(B W')``, whose minima and gradient steps are written down in a line of numpy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from conftest import shapes_examples
from fedbasis.engines.client_state import ClientStates
from fedbasis.engines.in_process import Serial
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Context, Method, Sent, Task
from fedbasis.networks import train
from fedbasis.networks.models import Network
from fedbasis.networks.train import Examples, Preprocessing, Recipe
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import State, Tensors
from pflbed.errors import InputError

Matrix = NDArray[np.float64]
SEED = 7


def build(name: str, task: Task, **settings: Any) -> Method:
    return METHODS[name].build(METHODS[name].Config(**settings), task)


def run(
    method: Method, data: dict[str, Examples], rounds: Sequence[Sequence[str]]
) -> tuple[State, ClientStates, list[dict[str, Sent]]]:
    """Let the named clients take part, round by round; return the server, what clients keep, and all they sent."""
    engine, server, log = Serial(method, data, SEED), method.init(SEED), []
    for number, chosen in enumerate(rounds):
        seen: dict[str, Sent] = {}

        def stream(server: State = server, chosen: Sequence[str] = chosen, number: int = number) -> Iterator[Any]:
            for client, sent in engine.map(server, chosen, number):
                seen[client] = sent  # noqa: B023
                yield client, sent

        server = method.aggregate(server, stream(), SEED)
        log.append(seen)
    return server, engine.states, log


def equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def clients(count: int = 3) -> dict[str, Examples]:
    return {f"c{i}": shapes_examples(18 + 3 * i, i % 2, seed=i) for i in range(count)}


@pytest.fixture
def task(tiny: Network, recipe: Recipe) -> Task:
    return Task(tiny, recipe, rounds=3)


# The quadratic problem


class Linear(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(3, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


def linear(classes: int) -> nn.Module:
    return Linear(classes).double()


def squared(logits: Tensor, labels: Tensor) -> Tensor:
    wanted = nn.functional.one_hot(labels, logits.shape[1]).to(logits)
    return ((logits - wanted) ** 2).sum(1).mean() / 2


@pytest.fixture
def quadratic(monkeypatch: pytest.MonkeyPatch) -> Task:
    """Full batches, plain SGD, eight steps a round on one-pixel images; the loss is squared in this test."""
    monkeypatch.setattr(train, "F", SimpleNamespace(cross_entropy=squared))
    preprocessing = Preprocessing(1, (0.5, 0.5, 0.5), (0.29, 0.29, 0.29))
    recipe = Recipe(preprocessing=preprocessing, epochs=8, batch=100, rate=0.2, momentum=0.0, decay=0.0)
    return Task(Network(f"{__name__}:linear", 2, 1), recipe, rounds=3)


def dots(count: int = 4) -> dict[str, Examples]:
    """Clients with different pixels, labels and sizes."""
    made = {}
    for i in range(count):
        rng = np.random.default_rng(i)
        pixels = rng.integers(0, 256, (20 + 5 * i, 1, 1, 3), dtype=np.uint8)
        labels = (pixels[:, 0, 0, i % 3] > 60 + 40 * i).astype(np.int64)
        made[f"c{i}"] = Examples(torch.from_numpy(pixels), torch.from_numpy(labels))
    return made


def problem(data: Examples) -> tuple[Matrix, Matrix]:
    """Return H and B of a client's loss; the gradient is W H - B, with the bias as last column of W."""
    x = np.concatenate([(data.pixels.numpy().reshape(-1, 3) / 255 - 0.5) / 0.29, np.ones((len(data), 1))], 1)
    return x.T @ x / len(x), np.eye(2)[data.labels.numpy()].T @ x / len(x)


def matrix(tensors: Tensors) -> Matrix:
    joined: Matrix = torch.cat([tensors["fc.weight"], tensors["fc.bias"][:, None]], 1).numpy()
    return joined


def minimum(hessian: Matrix, linear_term: Matrix) -> Matrix:
    return linear_term @ np.linalg.inv(hessian)


def assert_near(got: Matrix, wanted: Matrix, tolerance: float = 1e-8) -> None:
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance)


class TestLocal:
    def test_equals_one_training_after_another_of_torch(self, task: Task) -> None:
        """Against torch's own SGD on an ordinary module, a fresh one for every round in which the client is drawn."""
        data = clients(2)
        server, kept, log = run(build("local", task), data, [["c0", "c1"], ["c1"], ["c0"]])
        assert equal(server["model"], task.initial(SEED))
        assert all(sent.tensors == {} for round_ in log for sent in round_.values())
        module = task.network.build(SEED).train()
        recipe = task.recipe
        for number in (0, 2):
            optimizer = torch.optim.SGD(module.parameters(), recipe.rate, recipe.momentum, weight_decay=recipe.decay)
            generator = Context(SEED, "c0", task.network.workspace(), number).generator("batches")
            for _ in range(recipe.epochs):
                for rows in train.batches(len(data["c0"]), recipe.batch, generator):
                    optimizer.zero_grad()
                    logits = module(recipe.preprocessing(data["c0"].pixels[rows]))
                    nn.functional.cross_entropy(logits, data["c0"].labels[rows]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        state = module.state_dict()
        for name, tensor in kept["c0"]["model"].items():
            torch.testing.assert_close(tensor, state[name], rtol=1e-4, atol=1e-5)

    def test_new_client_is_fine_tuned_from_the_initial_model(self, task: Task) -> None:
        server, _, _ = run(build("local", task), clients(2), [["c0", "c1"]])
        plan, data = Adaptation(epochs=2, rate=0.05), shapes_examples(12)
        context = Context(SEED, "new", task.network.workspace())
        mine = personalize(build("local", task), server, "ft", data, context, plan)
        average = build("fedavg", task)
        theirs = personalize(average, average.init(SEED), "ft", data, context, plan)
        assert equal(mine.last.tensors, theirs.last.tensors)


class TestFedProx:
    @pytest.mark.parametrize("weighting", ["uniform", "examples"])
    def test_without_a_pull_it_is_fedavg_bit_for_bit(self, task: Task, weighting: Any) -> None:
        task, rounds = replace(task, weighting=weighting), [["c0", "c1", "c2"]] * 2
        average, _, _ = run(build("fedavg", task), clients(), rounds)
        prox, _, _ = run(build("fedprox", task, mu=0.0), clients(), rounds)
        pulled, _, _ = run(build("fedprox", task, mu=0.5), clients(), rounds)
        assert equal(average["model"], prox["model"])
        assert not equal(average["model"], pulled["model"])

    def test_steps_equal_autograd_through_the_penalty(self, task: Task) -> None:
        """Several steps with momentum and decay: torch differentiates the loss with its penalty."""
        task = replace(task, recipe=replace(task.recipe, batch=12, epochs=4))
        method, data = build("fedprox", task, mu=0.7), shapes_examples(12)
        server = method.init(SEED)
        sent, kept = method.client_update(server, None, data, Context(SEED, "c", task.network.workspace()))
        assert kept is None
        module, recipe = task.network.build(SEED).train(), task.recipe
        start = {name: p.detach().clone() for name, p in module.named_parameters()}
        optimizer = torch.optim.SGD(module.parameters(), recipe.rate, recipe.momentum, weight_decay=recipe.decay)
        for _ in range(recipe.epochs):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(recipe.preprocessing(data.pixels)), data.labels)
            far = sum((p - start[name]).square().sum() for name, p in module.named_parameters())
            (loss + 0.7 / 2 * far).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(sent.tensors["model"][name], parameter.detach(), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("mu", [0.3, 4.0, 1e4])
    def test_long_training_ends_at_the_penalized_minimum(self, quadratic: Task, mu: float) -> None:
        """(H + mu I)^-1 (B + mu w_t); a huge mu leaves the model where it was."""
        task = replace(quadratic, recipe=replace(quadratic.recipe, rate=1 / (1.1 + mu), epochs=80))
        method, data = build("fedprox", task, mu=mu), dots()["c1"]
        server = method.init(SEED)
        sent, _ = method.client_update(server, None, data, Context(SEED, "c", task.network.workspace()))
        hessian, linear_term = problem(data)
        start = matrix(server["model"])
        wanted = minimum(hessian + mu * np.eye(4), linear_term + mu * start)
        assert_near(matrix(sent.tensors["model"]), wanted)
        if mu > 100:
            assert_near(wanted, start, 1e-3)


class TestScaffold:
    @pytest.mark.parametrize("weighting", ["uniform", "examples"])
    def test_first_round_is_fedavg_bit_for_bit(self, task: Task, weighting: Any) -> None:
        """All variates are zero then; in the second round they are not."""
        task, everyone = replace(task, weighting=weighting), ["c0", "c1", "c2"]
        for rounds, same in ((1, True), (2, False)):
            average, _, _ = run(build("fedavg", task), clients(), [everyone] * rounds)
            scaffold, _, _ = run(build("scaffold", task), clients(), [everyone] * rounds)
            assert equal(average["model"], scaffold["model"]) is same

    @pytest.mark.parametrize(("momentum", "weighting"), [(0.0, "uniform"), (0.0, "examples"), (0.9, "uniform")])
    def test_reaches_the_optimum_of_the_mean_where_fedavg_does_not(
        self, quadratic: Task, momentum: float, weighting: Any
    ) -> None:
        """With momentum 0.9, variates divided by the plain number of steps diverge."""
        recipe = replace(quadratic.recipe, momentum=momentum, rate=0.03 if momentum else 0.2, epochs=8)
        task, data = replace(quadratic, recipe=recipe, weighting=weighting), dots()
        shares = np.array([task.weight(len(examples)) for examples in data.values()])
        shares /= shares.sum()
        problems = [problem(examples) for examples in data.values()]
        hessian = sum(share * h for share, (h, _) in zip(shares, problems, strict=True))
        linear_term = sum(share * b for share, (_, b) in zip(shares, problems, strict=True))
        best = minimum(np.asarray(hessian), np.asarray(linear_term))
        rounds = [list(data)] * 25
        scaffold, kept, _ = run(build("scaffold", task), data, rounds)
        assert_near(matrix(scaffold["model"]), best, 1e-5)
        for client, (h, b) in zip(data, problems, strict=True):  # every variate is the client's gradient there
            assert_near(matrix(kept[client]["control"]), best @ h - b, 1e-5)
        average, _, _ = run(build("fedavg", task), data, rounds)
        assert np.abs(matrix(average["model"]) - best).max() > 1e-3
        if momentum == 0:
            # FedAvg stops where w = mean of (w P_m + w*_m (I - P_m)) with P_m = (I - eta H_m)^K
            powers = [np.linalg.matrix_power(np.eye(4) - recipe.rate * h, recipe.epochs) for h, _ in problems]
            total = sum(share * (np.eye(4) - p) for share, p in zip(shares, powers, strict=True))
            ends = [minimum(h, b) @ (np.eye(4) - p) for (h, b), p in zip(problems, powers, strict=True)]
            drift = sum(share * end for share, end in zip(shares, ends, strict=True))
            assert_near(matrix(average["model"]), minimum(np.asarray(total), np.asarray(drift)))

    def test_equals_the_algorithm_of_the_paper(self, quadratic: Task) -> None:
        """Algorithm 1 with option II, written naively, with some of the clients in every round."""
        data, population = dots(), 4
        rounds = [["c0", "c1"], ["c1", "c2"], ["c3", "c0"], ["c2"], ["c0", "c1", "c2", "c3"]]
        recipe = quadratic.recipe
        x = matrix(build("scaffold", quadratic).init(SEED)["model"])
        c, own = np.zeros_like(x), {client: np.zeros_like(x) for client in data}
        for chosen in rounds:
            models, changes = [], []
            for client in chosen:
                hessian, linear_term = problem(data[client])
                y = x.copy()
                for _ in range(recipe.epochs):
                    y = y - recipe.rate * (y @ hessian - linear_term - own[client] + c)
                new = own[client] - c + (x - y) / (recipe.epochs * recipe.rate)
                models.append(y - x)
                changes.append(new - own[client])
                own[client] = new
            x = x + np.mean(models, axis=0)
            c = c + len(chosen) / population * np.mean(changes, axis=0)
        server, kept, log = run(build("scaffold", quadratic, population=population), data, rounds)
        assert_near(matrix(server["model"]), x, 1e-11)
        assert_near(matrix(server["control"]), c, 1e-11)
        for client in data:
            assert_near(matrix(kept[client]["control"]), own[client], 1e-11)
        assert_near(matrix(log[-1]["c3"].tensors["control"]), changes[-1], 1e-11)

    def test_server_variate_is_the_mean_of_the_clients(self, task: Task) -> None:
        """Over the whole population, or over those seen so far where it is unknown; for parameters alone."""
        data, rounds = clients(3), [["c0", "c1"], ["c1"], ["c2", "c0"], ["c1"]]
        for population in (5, None):
            server, kept, log = run(build("scaffold", task, population=population), data, rounds)
            assert server["control"].keys() == task.parameters
            for name, tensor in server["control"].items():
                total = torch.stack([state["control"][name] for state in kept.values()]).sum(0)
                torch.testing.assert_close(tensor, total / (population or 3), rtol=1e-3, atol=1e-5)
            again, _, _ = run(build("scaffold", task, population=population), data, rounds[:1])
            mean = torch.stack([sent.tensors["control"]["fc.bias"] for sent in log[0].values()]).mean(0)
            torch.testing.assert_close(again["control"]["fc.bias"], mean * (2 / (population or 2)))

    def test_variate_is_the_weighted_mean_gradient_along_the_path(self, quadratic: Task) -> None:
        """With momentum m, the gradient of step k of K moves the model by eta (1 - m^(K - k + 1)) / (1 - m)."""
        momentum, steps, rate = 0.8, 7, 0.05
        recipe = replace(quadratic.recipe, momentum=momentum, epochs=steps, rate=rate)
        method, data = build("scaffold", replace(quadratic, recipe=recipe)), dots()["c2"]
        hessian, linear_term = problem(data)
        server = method.init(SEED)
        _, kept = method.client_update(server, None, data, Context(SEED, "c", quadratic.network.workspace()))
        assert kept is not None
        w, velocity, gradients = matrix(server["model"]).copy(), np.zeros((2, 4)), []
        for _ in range(steps):
            gradients.append(w @ hessian - linear_term)
            velocity = momentum * velocity + gradients[-1]
            w = w - rate * velocity
        weights = [(1 - momentum ** (steps - k)) / (1 - momentum) for k in range(steps)]
        assert_near(matrix(kept["control"]), np.average(gradients, axis=0, weights=weights), 1e-11)

    def test_too_small_a_population_is_refused(self, task: Task) -> None:
        with pytest.raises(InputError, match="'population' must be the number of clients"):
            run(build("scaffold", task, population=1), clients(2), [["c0", "c1"]])


class TestDitto:
    def test_global_model_is_fedavg_bit_for_bit(self, task: Task) -> None:
        rounds = [["c0", "c1", "c2"], ["c1", "c2"], ["c0", "c1"]]
        average, _, sent = run(build("fedavg", task), clients(), rounds)
        ditto, _, also = run(build("ditto", task), clients(), rounds)
        assert equal(average["model"], ditto["model"])
        for one, other in zip(sent, also, strict=True):
            assert all(equal(one[client].tensors["model"], other[client].tensors["model"]) for client in one)

    def test_without_a_pull_the_personal_model_is_trained_alone(self, task: Task) -> None:
        """Bit for bit, for clients that take part from the first round on."""
        rounds = [["c0", "c1", "c2"], ["c1", "c2"], ["c0", "c1"]]
        _, alone, _ = run(build("local", task), clients(), rounds)
        for lam, same in ((0.0, True), (0.5, False)):
            _, ditto, _ = run(build("ditto", task, lam=lam), clients(), rounds)
            assert all(equal(ditto[client]["personal"], alone[client]["model"]) is same for client in alone)

    @pytest.mark.parametrize("lam", [0.1, 1.0, 10.0])
    def test_long_training_ends_at_the_penalized_minimum(self, quadratic: Task, lam: float) -> None:
        """(H + lambda I)^-1 (B + lambda w) around the received model, whatever v was before; so for a new client."""
        rate = 1 / (1.1 + lam)
        task = replace(quadratic, recipe=replace(quadratic.recipe, rate=rate, epochs=80))
        method, data = build("ditto", task, lam=lam), dots()["c2"]
        server = method.init(SEED)
        before: State = {"personal": {name: tensor + 1 for name, tensor in server["model"].items()}}
        context = Context(SEED, "c", task.network.workspace())
        _, kept = method.client_update(server, before, data, context)
        assert kept is not None
        hessian, linear_term = problem(data)
        wanted = minimum(hessian + lam * np.eye(4), linear_term + lam * matrix(server["model"]))
        assert_near(matrix(kept["personal"]), wanted)
        plan = Adaptation(epochs=80, rate=rate, decay=0.0, momentum=0.0, batch=100)
        outcome = personalize(method, server, "ditto", data, context, plan)
        assert_near(matrix(outcome.last.tensors), wanted)

    @pytest.mark.parametrize(("lam", "how"), [(0.0, "ft"), (0.6, "ft-prox")])
    def test_new_client_equals_generic_fine_tuning(self, task: Task, lam: float, how: str) -> None:
        """Bit for bit, epoch by epoch."""
        method, data = build("ditto", task, lam=lam), shapes_examples(13)
        server, _, _ = run(method, clients(2), [["c0", "c1"]])
        context = Context(SEED, "new", task.network.workspace())
        plan = Adaptation(epochs=3, rate=0.05, decay=1e-2, batch=5, prox=0.6)
        own = personalize(method, server, "ditto", data, context, plan)
        generic = personalize(method, server, how, data, context, plan)
        assert equal(own.last.tensors, generic.last.tensors)
        assert own.losses == generic.losses


def apfl_by_autograd(
    task: Task, received: Tensors, own: Tensors, alpha: float, alpha_rate: float, data: Examples
) -> tuple[nn.Module, Tensors, float, Tensors]:
    """Algorithm 1 of the paper: torch differentiates the mixture with respect to v and alpha; batches are full."""
    recipe, module, mixed = task.recipe, task.network.build().train(), task.network.build().train()
    module.load_state_dict(received, strict=False)
    v = {name: own[name].clone().requires_grad_() for name in task.parameters}
    buffers = {n: own[n].clone() if n in own else b.clone() for n, b in mixed.named_buffers()}
    share = torch.tensor(alpha, requires_grad=True)
    settings: dict[str, Any] = {"lr": recipe.rate, "momentum": recipe.momentum, "weight_decay": recipe.decay}
    optimizers = [torch.optim.SGD(leaves, **settings) for leaves in (module.parameters(), v.values())]
    inputs = recipe.preprocessing(data.pixels)
    for _ in range(recipe.epochs):
        for optimizer in optimizers:
            optimizer.zero_grad()
        share.grad = None
        fixed = {name: p.detach().clone() for name, p in module.named_parameters()}
        mixture = {name: share * v[name] + (1 - share) * fixed[name] for name in v}
        logits = torch.func.functional_call(mixed, {**mixture, **buffers}, (inputs,))
        nn.functional.cross_entropy(logits, data.labels).backward()  # type: ignore[no-untyped-call]
        nn.functional.cross_entropy(module(inputs), data.labels).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        assert share.grad is not None
        with torch.no_grad():
            share.sub_(alpha_rate * share.grad).clamp_(0, 1)
    return module, {name: leaf.detach() for name, leaf in v.items()}, float(share.detach()), buffers


class TestAPFL:
    @pytest.mark.parametrize("settings", [{"alpha": 0.0}, {"alpha": 0.4}, {"adaptive": True}])
    def test_what_is_sent_is_fedavg_bit_for_bit(self, task: Task, settings: dict[str, Any]) -> None:
        """The global model is trained by its own gradient alone."""
        rounds = [["c0", "c1", "c2"], ["c1", "c2"], ["c0", "c1"]]
        average, _, sent = run(build("fedavg", task), clients(), rounds)
        apfl, kept, also = run(build("apfl", task, **settings), clients(), rounds)
        assert equal(average["model"], apfl["model"])
        for one, other in zip(sent, also, strict=True):
            assert all(equal(one[client].tensors["model"], other[client].tensors["model"]) for client in one)
        assert not equal(kept["c0"]["personal"], also[-1]["c0"].tensors["model"])

    def test_alpha_one_is_training_alone_bit_for_bit(self, task: Task) -> None:
        rounds = [["c0", "c1", "c2"], ["c1", "c2"], ["c0", "c1"]]
        _, alone, _ = run(build("local", task), clients(), rounds)
        for alpha, same in ((1.0, True), (0.9, False)):
            _, kept, _ = run(build("apfl", task, alpha=alpha), clients(), rounds)
            assert all(equal(kept[client]["personal"], alone[client]["model"]) is same for client in alone)

    @pytest.mark.parametrize("norm", ["batch", "none"])
    @pytest.mark.parametrize("alpha_rate", [None, 0.3, 50.0])
    def test_steps_equal_autograd_through_the_mixture(
        self, recipe: Recipe, norm: str, alpha_rate: float | None
    ) -> None:
        """v, alpha, w and the mixture's statistics, over four steps with momentum and decay, from v other than w."""
        task = Task(Network("cnn-small", 3, 12, {"norm": norm}), replace(recipe, batch=12, epochs=4), 3)
        settings = {"alpha": 0.35} if alpha_rate is None else {"adaptive": True, "alpha_rate": alpha_rate}
        method, data = build("apfl", task, **settings), shapes_examples(12)
        received, own = task.initial(1), task.initial(2)
        before: State = {"personal": own, "mixture": {"alpha": torch.tensor(0.35)}}
        context = Context(SEED, "c", task.network.workspace())
        sent, kept = method.client_update({"model": received}, before, data, context)
        module, v, alpha, buffers = apfl_by_autograd(task, received, own, 0.35, alpha_rate or 0.0, data)
        assert kept is not None
        close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(sent.tensors["model"][name], parameter.detach(), **close)
            torch.testing.assert_close(kept["personal"][name], v[name], **close)
        for name in kept["personal"].keys() - v.keys():
            torch.testing.assert_close(kept["personal"][name], buffers[name], **close)
        assert float(kept["mixture"]["alpha"]) == pytest.approx(alpha, abs=1e-4)
        assert (alpha_rate is None) == (alpha == pytest.approx(0.35, abs=1e-3))

    def test_alpha_stays_between_zero_and_one_and_is_kept(self, task: Task) -> None:
        method = build("apfl", task, adaptive=True, alpha_rate=100.0)
        shares = []
        for rounds in (1, 2, 3):
            _, kept, _ = run(method, clients(2), [["c0", "c1"]] * rounds)
            shares += [float(state["mixture"]["alpha"]) for state in kept.values()]
        assert all(0 <= share <= 1 for share in shares)
        assert {0.0, 1.0} & set(shares)

    def test_alpha_one_serves_a_new_client_as_fine_tuning_does(self, task: Task) -> None:
        data, context = shapes_examples(13), Context(SEED, "new", task.network.workspace())
        plan = Adaptation(epochs=3, rate=0.05, decay=1e-2, batch=5)
        method = build("apfl", task, alpha=1.0)
        server, _, _ = run(method, clients(2), [["c0", "c1"]])
        own = personalize(method, server, "apfl", data, context, plan)
        generic = personalize(method, server, "ft", data, context, plan)
        assert equal(own.last.tensors, generic.last.tensors)
        assert own.losses == generic.losses

    def test_alpha_zero_serves_a_new_client_with_the_global_parameters(self, task: Task) -> None:
        data, context = shapes_examples(13), Context(SEED, "new", task.network.workspace())
        method = build("apfl", task, alpha=0.0)
        server = method.init(SEED)
        outcome = personalize(method, server, "apfl", data, context, Adaptation(epochs=2, rate=0.05))
        assert all(torch.equal(outcome.last.tensors[name], server["model"][name]) for name in task.parameters)

    @pytest.mark.parametrize("alpha", [0.25, 0.5])
    def test_new_client_follows_the_mixtures_gradient_flow(self, quadratic: Task, alpha: float) -> None:
        """With w fixed the mixture moves by ``alpha^2`` of the rate; plain steps have a closed form."""
        method, data, steps, rate = build("apfl", quadratic, alpha=alpha), dots()["c3"], 25, 0.2
        server = method.init(SEED)
        plan = Adaptation(epochs=steps, rate=rate, decay=0.0, momentum=0.0, batch=100)
        context = Context(SEED, "new", quadratic.network.workspace())
        outcome = personalize(method, server, "apfl", data, context, plan)
        hessian, linear_term = problem(data)
        best, start = minimum(hessian, linear_term), matrix(server["model"])
        shrink = np.linalg.matrix_power(np.eye(4) - rate * alpha**2 * hessian, steps)
        assert_near(matrix(outcome.last.tensors), best + (start - best) @ shrink, 1e-10)

    def test_new_client_learns_alpha_where_asked(self, quadratic: Task) -> None:
        """The first step of v has no slope in alpha (v is w); the second has the inner product."""
        method, data, rate = build("apfl", quadratic, adaptive=True, alpha_rate=0.7), dots()["c3"], 0.2
        server = method.init(SEED)
        plan = Adaptation(epochs=2, rate=rate, decay=0.0, momentum=0.0, batch=100)
        context = Context(SEED, "new", quadratic.network.workspace())
        outcome = personalize(method, server, "apfl", data, context, plan)
        hessian, linear_term = problem(data)
        w = matrix(server["model"])
        v = w - rate * 0.5 * (w @ hessian - linear_term)
        gradient = (0.5 * v + 0.5 * w) @ hessian - linear_term
        alpha = 0.5 - 0.7 * float(((v - w) * gradient).sum())
        v = v - rate * 0.5 * gradient
        assert float(outcome.last.learned["alpha"]) == pytest.approx(alpha, abs=1e-10)
        assert_near(matrix(outcome.last.tensors), alpha * v + (1 - alpha) * w, 1e-10)
