"""A Gaussian-process classifier: a binary tree of classes with one binary Gaussian process at every inner node (fork).

Achituve et al., "GP-Tree: A Gaussian Process Classifier for Few-Shot Incremental Learning", ICML 2021. At a fork the
labels are y = 1 (left) or 0 (right) with p(y = 1 | f) = sigmoid(f) and f ~ N(0, K). With kappa = y - 1/2 and one
Polya-Gamma variable omega per point everything is Gaussian (Polson et al. 2013):

    p(y | omega) = 2^-n |B|^-1/2 exp(kappa^T K a / 2),     B = I + W K W,     W = diag(omega)^1/2
    f | y, omega ~ N(K a, K - K W B^-1 W K),               a = kappa - W B^-1 W K kappa
    omega | y, f ~ PG(1, f)

The last two lines are the Gibbs sampler. The probability of a class is the product over the forks on the path to it.
Everything is computed on the CPU in double precision; gradients treat the sampled omegas as constants.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

LEFT, RIGHT, ELSEWHERE = 1, 0, -1
TERMS = 32
"""Terms of the Polya-Gamma series that are sampled; the rest (6e-7 of the variance) is replaced by its mean."""
JITTER = 1e-6
CHUNK = 256  # queries predicted at once
NODES, WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.hermite.hermgauss(20))


def polya_gamma(c: Tensor, generator: torch.Generator) -> Tensor:
    """Draw omega ~ PG(1, c) for every entry of ``c``.

    PG(1, c) is the sum over k = 1, 2, ... of E_k / (2 pi^2 ((k - 1/2)^2 + c^2 / (4 pi^2))), with E_k exponential.
    """
    k = torch.arange(1, TERMS + 1, dtype=torch.float64) - 0.5
    scale = 1 / (2 * math.pi**2 * (k**2 + (c.double()[..., None] / (2 * math.pi)) ** 2))
    size = c.double().abs().clamp_min(1e-4)
    rest = torch.tanh(size / 2) / (2 * size) - scale.sum(-1)  # the mean of the terms that are not sampled
    drawn = torch.empty_like(scale).exponential_(generator=generator)
    return (drawn * scale).sum(-1) + rest.clamp_min(0)


@dataclass(frozen=True)
class Kernel:
    """The RBF kernel; squared distances are means over the features, so that they do not grow with the width."""

    variance: float = 8.0
    length: float = 1.0

    def __call__(self, one: Tensor, other: Tensor) -> Tensor:
        """Return the covariance of every row of one with every row of the other."""
        squared = one.square().sum(1)[:, None] + other.square().sum(1) - 2 * one @ other.t()
        return self.variance * torch.exp(-squared.clamp_min(0) / (2 * self.length**2 * one.shape[1]))


@dataclass(frozen=True)
class Fork:
    """The Gaussian process of one fork: the covariance of its points and their kappa."""

    covariance: Tensor
    kappa: Tensor

    def sample(self, draws: int, steps: int, generator: torch.Generator) -> Tensor:
        """Draw omega [draws, n] from its posterior, by independent Gibbs chains that start from the prior."""
        with torch.no_grad():
            shape = (draws, len(self.kappa), 1)
            root = torch.linalg.cholesky(self.covariance)

            def prior() -> Tensor:
                return torch.matmul(root, torch.randn(shape, generator=generator, dtype=torch.float64))

            omega = polya_gamma(prior().squeeze(-1), generator)
            for _ in range(steps):
                w, factor, a = self._solved(omega)
                f = prior()  # the next lines turn this draw from the prior into one from the posterior
                noisy = w * f + torch.randn(shape, generator=generator, dtype=torch.float64)
                f = f + self.covariance @ (a - w * torch.cholesky_solve(noisy, factor))
                omega = polya_gamma(f.squeeze(-1), generator)
        return omega

    def log_marginal(self, omega: Tensor) -> Tensor:
        """Return log p(y | omega) for every draw; its mean gradient is that of log p(y), by Fisher's identity."""
        _, factor, a = self._solved(omega)
        half_determinant = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        fit = (self.kappa @ self.covariance @ a).squeeze(-1) / 2
        return fit - half_determinant - len(self.kappa) * math.log(2)

    def predict(self, omega: Tensor, cross: Tensor, variance: float) -> tuple[Tensor, Tensor]:
        """Return log p(left) and log p(right) of queries with the covariances ``cross`` [n, queries]."""
        w, factor, a = self._solved(omega)
        mean = (cross.t() @ a).squeeze(-1)
        explained = torch.linalg.solve_triangular(factor, w * cross, upper=False).square().sum(-2)
        deviation = (variance - explained).clamp_min(1e-12).sqrt()
        f = mean[..., None] + math.sqrt(2) * deviation[..., None] * NODES  # Gauss-Hermite
        left, right = (((torch.sigmoid(sign * f) @ WEIGHTS) / math.sqrt(math.pi)).mean(0) for sign in (1, -1))
        return left.clamp_min(1e-300).log(), right.clamp_min(1e-300).log()

    def _solved(self, omega: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return W as columns [draws, n, 1], the Cholesky factor of B, and a [draws, n, 1]."""
        w = omega.sqrt()[..., None]
        identity = torch.eye(len(self.kappa), dtype=torch.float64)
        factor = torch.linalg.cholesky(identity + w * self.covariance * w.transpose(1, 2))
        a = self.kappa[:, None] - w * torch.cholesky_solve(w * (self.covariance @ self.kappa[:, None]), factor)
        return w, factor, a


@dataclass(frozen=True)
class GPTree:
    """The classifier of labelled features; ``tree`` [forks, classes] is the side of every class at every fork."""

    kernel: Kernel
    features: Tensor
    labels: Tensor
    tree: Tensor

    def _forks(self) -> list[tuple[Tensor, Tensor, Fork]]:
        forks = []
        for sides in self.tree:
            rows = (sides[self.labels] != ELSEWHERE).nonzero().squeeze(1)
            points = self.features[rows].double().cpu()
            covariance = self.kernel(points, points)
            covariance = covariance + JITTER * self.kernel.variance * torch.eye(len(rows), dtype=torch.float64)
            forks.append((rows, points, Fork(covariance, sides[self.labels[rows]].double() - 0.5)))
        return forks

    def sample(self, draws: int, steps: int, generator: torch.Generator) -> Tensor:
        """Draw every fork's omegas [forks, draws, n]; they are zero for points that are not below the fork."""
        omega = torch.zeros(len(self.tree), draws, len(self.labels), dtype=torch.float64)
        for number, (rows, _, fork) in enumerate(self._forks()):
            omega[number][:, rows] = fork.sample(draws, steps, generator)
        return omega

    def marginal_loss(self, omega: Tensor) -> Tensor:
        """Return the negative log marginal likelihood per point given the omegas, averaged over the draws."""
        total = torch.zeros((), dtype=torch.float64)
        for draws, (rows, _, fork) in zip(omega, self._forks(), strict=True):
            total = total - fork.log_marginal(draws[:, rows].double()).mean()
        return total / len(self.labels)

    def log_probabilities(self, omega: Tensor, queries: Tensor) -> Tensor:
        """Return the log probability of every class [queries, classes]; minus infinity for a class without points."""
        known = torch.zeros(self.tree.shape[1], dtype=torch.bool)
        known[self.labels] = True
        start = torch.zeros(len(known), dtype=torch.float64).masked_fill(~known, -math.inf)
        forks, parts = self._forks(), []
        for part in torch.split(queries.double().cpu(), CHUNK):
            total = start.expand(len(part), -1)
            for (rows, points, fork), sides, draws in zip(forks, self.tree, omega, strict=True):
                left, right = fork.predict(draws[:, rows].double(), self.kernel(points, part), self.kernel.variance)
                total = total + left[:, None] * (sides == LEFT) + right[:, None] * (sides == RIGHT)
            parts.append(total)
        return torch.cat(parts)


def class_tree(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Split the occurring classes recursively in two, by clustering their means, until every class is a leaf."""
    rows, pending = [], [sorted(set(labels.tolist()))]
    while pending:
        group: list[int] = pending.pop(0)
        if len(group) < 2:
            continue
        means = torch.stack([features[labels == label].double().cpu().mean(0) for label in group])
        left = two_means(means)
        row = torch.full((classes,), ELSEWHERE)
        row[torch.tensor(group)] = torch.where(left, LEFT, RIGHT)
        rows.append(row)
        pending += [[label for label, is_left in zip(group, left.tolist(), strict=True) if is_left is side]
                    for side in (True, False)]  # fmt: skip
    return torch.stack(rows) if rows else torch.empty(0, classes, dtype=torch.int64)


def two_means(points: Tensor) -> Tensor:
    """Cluster points by 2-means, from the two that are farthest apart; return the mask of the first point's cluster."""
    apart = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    centres = points[list(divmod(int(apart.argmax()), len(points)))]
    first = torch.zeros(len(points), dtype=torch.bool)
    for _ in range(100):
        nearer = torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(1) == 0
        if nearer.all() or not nearer.any():  # all points are equal
            nearer = torch.arange(len(points)) == 0
        if torch.equal(nearer, first):
            break
        first = nearer
        centres = torch.stack([points[first].mean(0), points[~first].mean(0)])
    return first == first[0]
