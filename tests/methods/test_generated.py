"""pFedHN against autograd through the hypernetwork, kNN-Per against scikit-learn, pFedGP against brute force."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from conftest import shapes_examples
from fedbasis.methods.base import Adaptation, Context, Task
from fedbasis.methods.fedavg import FedAvg
from fedbasis.methods.knn_per import GRID, KNNPer, KNNPerConfig
from fedbasis.methods.pfedgp import PFedGP, PFedGPConfig
from fedbasis.methods.pfedgp.gp_tree import (
    ELSEWHERE,
    LEFT,
    RIGHT,
    Fork,
    GPTree,
    Kernel,
    class_tree,
    polya_gamma,
    two_means,
)
from fedbasis.methods.pfedhn import PFedHN, PFedHNConfig
from fedbasis.methods.pfedhn.hypernetwork import pull_back
from fedbasis.networks.hold_out import hold_out
from fedbasis.networks.models import Network
from fedbasis.networks.train import Examples, Recipe, batches, predict
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import State, Tensors
from fedbasis.tensors.seeding import torch_generator
from test_methods import clients, run_rounds, same


def make_task(recipe: Recipe, norm: str = "none", **settings: Any) -> Task:
    return Task(Network("cnn-small", 3, 12, {"norm": norm, "width": 4}), recipe, 4, **settings)


def new_client(method: Any, server: State, how: str, data: Examples, **plan: Any) -> tuple[Context, Tensors, float]:
    context = Context(7, "new", method.task.network.workspace())
    outcome = personalize(method, method.serving.published(server), how, data, context, Adaptation(**plan))
    return context, outcome.last.learned, outcome.losses[-1]


class TestPFedHN:
    config = PFedHNConfig(hidden=5, embedding=3, layers=1, rate=0.7)

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

    def test_the_products_in_one_dimension_by_hand(self) -> None:
        """theta = b + w (u v + c) with u = 2, c = 1, w = 3, v = 5 and a change of 10."""
        hyper = {"hidden_0.weight": torch.tensor([[2.0]]), "hidden_0.bias": torch.tensor([1.0])}
        hyper["output_0.weight"] = torch.tensor([[3.0]])
        u, c, w, v = pull_back(hyper, torch.tensor([5.0]), [torch.tensor([10.0])])
        assert [float(x) for x in (u, c, w, v)] == [10 * 3 * 5, 10 * 3, 10 * (2 * 5 + 1), 10 * 3 * 2]

    def test_a_hypernetwork_of_zeros_at_rate_one_is_fedavg(self, recipe: Recipe) -> None:
        """Then only the output bias is left, whose Jacobian is the identity."""
        task = make_task(recipe, "batch")
        method = PFedHN.build(PFedHNConfig(hidden=4, embedding=3, layers=1, rate=1.0), task)
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


class TestKNNPer:
    @staticmethod
    def trained(recipe: Recipe, **config: Any) -> tuple[KNNPer, State]:
        method = KNNPer.build(KNNPerConfig(**config), make_task(recipe, "batch"))
        server, _, _ = run_rounds(method, clients(), rounds=range(2))
        return method, server

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
        known: NDArray[np.float64], labels: Tensor, queries: NDArray[np.float64], k: int, scale: float = 1.0
    ) -> NDArray[np.float64]:
        def weights(distances: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.exp(-distances / scale)

        judge = KNeighborsClassifier(k, weights=weights, algorithm="brute").fit(known, labels.numpy())
        chances = np.zeros((len(queries), 3))
        chances[:, judge.classes_] = judge.predict_proba(queries)
        return chances

    @pytest.mark.parametrize(("k", "count"), [(1, 20), (5, 20), (10, 7)])
    @pytest.mark.parametrize("lam", [0.3, 1.0])
    @pytest.mark.parametrize("scale", [1.0, 0.25])
    def test_predicts_as_scikit_learn(self, recipe: Recipe, k: int, count: int, lam: float, scale: float) -> None:
        method, server = self.trained(recipe, k=k, lam=lam, scale=scale)
        data, queries = shapes_examples(count, seed=3), shapes_examples(30, 1, seed=4).pixels
        context, learned, _ = new_client(method, server, "knn", data)
        known, asked = (self.features(context, pixels, recipe) for pixels in (data.pixels, queries))
        votes = self.neighbours(known, data.labels, asked, min(k, count), scale)
        whole = predict(context.model.module, queries, recipe.preprocessing).numpy()
        got = method.serving.probabilities(context.model, learned, queries)
        np.testing.assert_allclose(got.numpy(), lam * votes + (1 - lam) * whole, rtol=1e-3, atol=1e-4)
        assert len(np.unique(got.argmax(1))) > 1

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
        with pytest.raises(ValueError, match="share from 0 to 1"):
            KNNPerConfig(k=3, lam=1.5, scale=1.0)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def brute_force(
    covariance: NDArray[np.float64], labels: list[int], cross: NDArray[np.float64] | None = None, variance: float = 0.0
) -> tuple[float, float]:
    """Integrate a Gaussian process of two points on a grid: log p(y), and p(y* = 1 | y) of a third point."""
    axis = np.linspace(-14, 14, 281)
    f = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    inverse = np.linalg.inv(covariance)
    prior = np.exp(-0.5 * np.einsum("ni,ij,nj->n", f, inverse, f)) / (2 * np.pi * np.sqrt(np.linalg.det(covariance)))
    likelihood = np.prod([sigmoid(f[:, i] if y else -f[:, i]) for i, y in enumerate(labels)], axis=0)
    mass = prior * likelihood * (axis[1] - axis[0]) ** 2
    if cross is None:
        return float(np.log(mass.sum())), 0.0
    mean, left = f @ inverse @ cross, variance - cross @ inverse @ cross
    noise = np.linspace(-7, 7, 57)
    weights = np.exp(-0.5 * noise**2) / np.exp(-0.5 * noise**2).sum()
    chance = np.zeros(len(f))
    for e, w in zip(noise, weights, strict=True):
        chance += w * sigmoid(mean + np.sqrt(left) * e)
    return float(np.log(mass.sum())), float((mass * chance).sum() / mass.sum())


def two_points(labels: list[int], variance: float = 4.0, correlation: float = 0.6) -> Fork:
    covariance = variance * torch.tensor([[1.0, correlation], [correlation, 1.0]], dtype=torch.float64)
    return Fork(covariance, torch.tensor(labels, dtype=torch.float64) - 0.5)


class TestGaussianProcess:
    @pytest.mark.parametrize("c", [0.0, 0.5, 2.0, -3.0, 12.0])
    def test_polya_gamma_has_the_moments_and_the_transform_of_its_distribution(self, c: float) -> None:
        count = 50_000
        omega = polya_gamma(torch.full((count,), c), torch_generator("omega"))
        x = abs(c)
        mean = math.tanh(x / 2) / (2 * x) if x else 1 / 4
        variance = (math.sinh(x) - x) / (4 * x**3 * math.cosh(x / 2) ** 2) if x else 1 / 24
        assert float(omega.mean()) == pytest.approx(mean, abs=5 * math.sqrt(variance / count))
        assert float(omega.var()) == pytest.approx(variance, rel=0.05)
        for t in (1.0, 8.0):  # E exp(-t omega)
            exact = math.cosh(x / 2) / math.cosh(math.sqrt((x * x / 2 + t) / 2))
            assert float((-t * omega).exp().mean()) == pytest.approx(exact, rel=0.01)
        assert bool((omega > 0).all())

    @pytest.mark.parametrize("labels", [[1, 0], [1, 1], [0, 0]])
    def test_two_points_are_predicted_as_by_integration(self, labels: list[int]) -> None:
        fork, cross = two_points(labels), np.array([3.0, 1.0])
        omega = fork.sample(6_000, 10, torch_generator("chains"))
        left, right = fork.predict(omega, torch.from_numpy(cross)[:, None], 4.0)
        _, exact = brute_force(fork.covariance.numpy(), labels, cross, 4.0)
        assert abs(exact - 0.5) > 0.1
        assert float(left.exp()) == pytest.approx(exact, abs=0.006)
        assert float(left.exp() + right.exp()) == pytest.approx(1.0, abs=1e-12)

    @pytest.mark.parametrize("labels", [[1, 0], [1, 1]])
    def test_the_marginal_likelihood_is_the_mean_over_omega(self, labels: list[int]) -> None:
        """p(y) is the mean of p(y | omega) over omega's prior PG(1, 0)."""
        fork = two_points(labels)
        omega = polya_gamma(torch.zeros(60_000, 2), torch_generator("prior"))
        exact, _ = brute_force(fork.covariance.numpy(), labels)
        assert float(fork.log_marginal(omega).exp().mean().log()) == pytest.approx(exact, abs=0.005)

    @pytest.mark.parametrize("labels", [[1, 0], [1, 1]])
    def test_the_gradient_of_the_marginal_likelihood_is_fishers(self, labels: list[int]) -> None:
        """The mean gradient over omega's posterior against finite differences of the integral."""
        correlation = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
        eye = torch.eye(2, dtype=torch.float64)
        fork = Fork(4 * (eye + correlation * (1 - eye)), torch.tensor(labels, dtype=torch.float64) - 0.5)
        omega = fork.sample(6_000, 10, torch_generator("chains"))
        (gradient,) = torch.autograd.grad(fork.log_marginal(omega).mean(), correlation)
        ends = [brute_force(two_points(labels, 4.0, 0.6 + e).covariance.numpy(), labels)[0] for e in (-1e-3, 1e-3)]
        exact = (ends[1] - ends[0]) / 2e-3
        assert abs(exact) > 0.05
        assert float(gradient) == pytest.approx(exact, abs=0.012)

    def test_a_query_far_from_everything_is_a_coin(self) -> None:
        fork = two_points([1, 1])
        omega = fork.sample(10, 3, torch_generator("chains"))
        left, _ = fork.predict(omega, torch.zeros(2, 1, dtype=torch.float64), 4.0)
        assert float(left.exp()) == pytest.approx(0.5, abs=1e-12)


def half_of_every_class(labels: Tensor, generator: torch.Generator) -> Tensor:
    """What pFedGP holds out, drawn as it draws: of every class half, rounded down."""
    return hold_out(labels, lambda rows: rows // 2, lambda rows: torch.randperm(rows, generator=generator))


def blobs(count: int, classes: int, seed: int = 0, spread: float = 0.3, width: int = 4) -> tuple[Tensor, Tensor]:
    centres = 3 * torch.randn(classes, width, generator=torch_generator("centres"))
    labels = torch.arange(count) % classes
    noise = spread * torch.randn(count, width, generator=torch_generator("blobs", seed))
    return (centres[labels] + noise).double(), labels


class TestTree:
    def test_near_classes_stay_together(self) -> None:
        """Means at 0, 1 and 10, 12, 20 on a line; class 3 does not occur."""
        at = torch.tensor([0.0, 10.0, 1.0, 99.0, 20.0, 12.0])
        labels = torch.tensor([0, 1, 2, 4, 5, 5, 1, 0])
        got = class_tree(at[labels][:, None], labels, 6).tolist()
        e = ELSEWHERE
        # from the farthest pair, 0 and 20: at first 10 is as near to one as to the other, then nearer to 16
        assert got[0] == [LEFT, RIGHT, LEFT, e, RIGHT, RIGHT]
        assert sorted(got[1:]) == sorted(
            [[LEFT, e, RIGHT, e, e, e], [e, LEFT, e, e, RIGHT, LEFT], [e, LEFT, e, e, e, RIGHT]]
        )

    def test_the_cluster_of_the_first_point_is_the_marked_one(self) -> None:
        """Also where it belongs to the second of the two farthest points."""
        assert two_means(torch.tensor([[6.0], [0.0], [10.0], [9.0]])).tolist() == [True, False, True, True]

    def test_equal_means_are_still_told_apart(self) -> None:
        assert two_means(torch.zeros(4, 2)).tolist() == [True, False, False, False]
        tree = class_tree(torch.zeros(8, 2), torch.arange(8) % 4, 4)
        assert tree.shape == (3, 4)

    def test_one_class_needs_no_fork(self) -> None:
        features, labels = torch.randn(3, 2, generator=torch_generator("x")), torch.tensor([2, 2, 2])
        tree = class_tree(features, labels, 4)
        classifier = GPTree(Kernel(), features, labels, tree)
        omega = classifier.sample(3, 2, torch_generator("chains"))
        assert classifier.log_probabilities(omega, features).exp().tolist() == [[0, 0, 1, 0]] * 3
        assert float(classifier.marginal_loss(omega)) == 0

    def test_a_class_is_the_product_of_its_forks(self) -> None:
        features, labels = blobs(20, 5, spread=2.0)
        queries, _ = blobs(300, 5, seed=1, spread=3.0)
        kernel, tree = Kernel(), class_tree(features, labels, 7)
        classifier = GPTree(kernel, features, labels, tree)
        omega = classifier.sample(4, 3, torch_generator("chains"))
        got = classifier.log_probabilities(omega, queries).exp()
        wanted = torch.ones(300, 7, dtype=torch.float64)
        wanted[:, 5:] = 0
        for number, sides in enumerate(tree):
            rows = [i for i, label in enumerate(labels.tolist()) if sides[label] != ELSEWHERE]
            points = features[rows]
            assert bool((omega[number][:, rows] > 0).all())
            assert float(omega[number].sum()) == pytest.approx(float(omega[number][:, rows].sum()))
            own = Fork(
                kernel(points, points) + 8e-6 * torch.eye(len(rows)), (sides[labels[rows]] == LEFT).double() - 0.5
            )
            left, right = own.predict(omega[number][:, rows], kernel(points, queries), 8.0)
            for label in range(5):
                if sides[label] != ELSEWHERE:
                    wanted[:, label] *= (left if sides[label] == LEFT else right).exp()
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(got.sum(1), torch.ones(300, dtype=torch.float64))
        assert bool((tree[:, :5] == RIGHT).any())

    def test_the_kernel_is_the_squared_exponential_of_the_mean_squared_distance(self) -> None:
        one, other = torch.tensor([[0.0, 0.0], [1.0, 3.0]]).double(), torch.tensor([[1.0, 1.0]]).double()
        got = Kernel(2.0, 0.5)(one, other)
        wanted = [[2 * math.exp(-1 / (2 * 0.25))], [2 * math.exp(-2 / (2 * 0.25))]]
        torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64))

    def test_gradients_of_both_losses_against_finite_differences(self) -> None:
        features, labels = blobs(9, 3, spread=2.0, width=2)
        queries, asked = blobs(6, 3, seed=1, spread=2.0, width=2)
        tree = class_tree(features, labels, 3)
        omega = GPTree(Kernel(), features, labels, tree).sample(3, 2, torch_generator("chains"))

        def marginal(x: Tensor) -> Tensor:
            return GPTree(Kernel(), x, labels, tree).marginal_loss(omega)

        def predictive(x: Tensor, q: Tensor) -> Tensor:
            return nn.functional.nll_loss(GPTree(Kernel(), x, labels, tree).log_probabilities(omega, q), asked)

        x, q = features.clone().requires_grad_(), queries.clone().requires_grad_()
        assert torch.autograd.gradcheck(marginal, (x,))
        assert torch.autograd.gradcheck(predictive, (x, q))

    def test_a_separable_problem_is_learned(self) -> None:
        features, labels = blobs(24, 6)
        queries, asked = blobs(60, 6, seed=1)
        classifier = GPTree(Kernel(), features, labels, class_tree(features, labels, 6))
        omega = classifier.sample(20, 5, torch_generator("chains"))
        chances = classifier.log_probabilities(omega, queries).exp()
        assert float((chances.argmax(1) == asked).double().mean()) == 1.0
        assert float(chances.gather(1, asked[:, None]).min()) > 0.35


class TestPFedGP:
    @staticmethod
    def make(recipe: Recipe, norm: str = "batch", **config: Any) -> PFedGP:
        settings = {"gibbs": 2, "draws": 4, "draws_new": 6, **config}
        return PFedGP.build(PFedGPConfig(**settings), make_task(recipe, norm))

    @pytest.mark.parametrize("objective", ["predictive", "marginal"])
    @pytest.mark.parametrize("norm", ["batch", "group"])
    def test_local_steps_are_sgd_on_the_loss_of_the_features(self, recipe: Recipe, objective: str, norm: str) -> None:
        method, data = self.make(recipe, norm, objective=objective), shapes_examples(14)
        server, context = method.init(7), Context(7, "c", method.task.network.workspace())
        sent, _ = method.client_update(method.broadcast(server, "c"), None, data, context)
        module = method.task.network.build()
        module.load_state_dict(server["model"], strict=False)
        body = nn.Sequential(*list(module.children())[:-1])
        inputs = recipe.preprocessing(data.pixels)
        with torch.no_grad():
            tree = class_tree(body.eval()(inputs), data.labels, 3)
        body.train()
        optimizer = torch.optim.SGD(body.parameters(), recipe.rate, recipe.momentum, weight_decay=recipe.decay)
        posterior, order, losses = context.generator("posterior"), context.generator("batches"), []
        for _ in range(recipe.epochs):
            rows = torch.randperm(14, generator=order)
            features, labels = body(inputs[rows]), data.labels[rows]
            held = half_of_every_class(labels, posterior)
            if objective == "marginal":
                whole = GPTree(Kernel(), features, labels, tree)
                loss = whole.marginal_loss(whole.sample(4, 2, posterior))
            else:
                known = GPTree(Kernel(), features[~held], labels[~held], tree)
                chances = known.log_probabilities(known.sample(4, 2, posterior), features[held])
                loss = -torch.stack([row[label] for row, label in zip(chances, labels[held], strict=True)]).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
        assert sent.numbers["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
        trained = dict(module.state_dict())
        for name, tensor in sent.tensors["model"].items():
            torch.testing.assert_close(tensor, trained[name], rtol=1e-3, atol=1e-5)
        first = next(iter(sorted(method.task.body & method.task.parameters)))
        assert not torch.equal(sent.tensors["model"][first], server["model"][first])

    def test_the_classifier_stays_at_its_start_and_the_bodies_are_averaged(self, recipe: Recipe) -> None:
        method, data = self.make(recipe), clients(3)
        start = method.init(7)
        server, _, log = run_rounds(method, data, rounds=range(1))
        for name, tensor in server["model"].items():
            if name in method.task.head:
                assert torch.equal(tensor, start["model"][name])
            else:
                mean = torch.stack([sent.tensors["model"][name] for sent in log[0].values()]).mean(0)
                torch.testing.assert_close(tensor, mean)

    def test_a_client_of_one_class_sends_the_body_it_got(self, recipe: Recipe) -> None:
        method = self.make(recipe)
        received = method.broadcast(method.init(7), "c")
        context = Context(7, "c", method.task.network.workspace())
        sent, _ = method.client_update(received, None, shapes_examples(5, classes=1), context)
        assert same(sent.tensors, received)

    def test_one_image_a_class_falls_back_to_the_marginal_likelihood(self, recipe: Recipe) -> None:
        features, labels = blobs(3, 3)
        tree = class_tree(features, labels, 3)
        losses = [
            self.make(recipe, objective=objective).loss(features, labels, tree, torch_generator("same"))
            for objective in ("predictive", "marginal")
        ]
        assert torch.equal(*losses)

    def test_holding_out_takes_a_share_of_every_class_and_never_all(self) -> None:
        labels = torch.tensor([0] * 6 + [1] * 3 + [2])
        seen = set()
        for seed in range(5):
            held = half_of_every_class(labels, torch_generator(seed))
            assert [int(held[labels == label].sum()) for label in range(3)] == [3, 1, 0]
            seen.add(tuple(held.tolist()))
        assert len(seen) > 1

    def test_a_new_client_is_predicted_by_the_posterior_of_its_own_images(self, recipe: Recipe) -> None:
        method = self.make(recipe)
        server, _, _ = run_rounds(method, clients(), rounds=range(3))
        data, queries = shapes_examples(18, seed=9), shapes_examples(24, seed=10)
        context, learned, loss = new_client(method, server, "gp", data)
        assert same({"": context.model.tensors()}, {"": method.model(server)})
        body = nn.Sequential(*list(context.model.module.eval().children())[:-1])
        with torch.no_grad():
            known, asked = (body(recipe.preprocessing(pixels)) for pixels in (data.pixels, queries.pixels))
        classifier = GPTree(Kernel(), known, data.labels, class_tree(known, data.labels, 3))
        omega = classifier.sample(6, 2, context.generator("adapt"))
        wanted = classifier.log_probabilities(omega, asked).exp().float()
        got = method.serving.probabilities(context.model, learned, queries.pixels)
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
        assert float((got.argmax(1) == queries.labels).double().mean()) > 0.7
        assert loss == pytest.approx(float(classifier.marginal_loss(omega)), rel=1e-3)
        tuned, nothing, _ = new_client(method, server, "lp", data, epochs=2)
        wanted = predict(tuned.model.module, queries.pixels, recipe.preprocessing)
        assert torch.equal(method.serving.probabilities(tuned.model, nothing, queries.pixels), wanted)
