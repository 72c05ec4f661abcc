"""The tree of Gaussian processes against brute force."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

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
from fedbasis.tensors.seeding import torch_generator
from methods.pfedgp.blobs import blobs


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
