"""Clusters of the directions in which clients moved."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbasis.methods.shared.clustering import cluster_directions, cluster_models
from fedbasis.networks.models import Network
from fedbasis.tensors.seeding import torch_generator
from pflbed.errors import InputError


def test_finds_directions_whatever_their_length() -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), 10)
    directions = rng.normal(size=(4, 200))
    deltas = directions[truth] + 0.3 * rng.normal(size=(40, 200))
    deltas *= rng.lognormal(0, 2, size=(40, 1))  # raw lengths differ by orders of magnitude
    labels = cluster_directions(torch.from_numpy(deltas).float(), 4, seed=0)
    assert len(set(zip(truth.tolist(), labels.tolist(), strict=True))) == 4


def test_equals_kmeans_on_the_normalized_points() -> None:
    """The Gram embedding keeps all distances: the same inertia as scikit-learn on the points themselves."""
    from sklearn.cluster import KMeans

    points = torch.randn(30, 7, generator=torch_generator(1), dtype=torch.float64)
    unit = (points / points.norm(dim=1, keepdim=True)).numpy()
    labels = cluster_directions(points, 3, seed=0)
    mine = sum(((unit[labels == k] - unit[labels == k].mean(0)) ** 2).sum() for k in range(3))
    best = min(KMeans(3, n_init=4, random_state=s).fit(unit).inertia_ for s in range(4))
    assert mine <= best * 1.05


@settings(max_examples=15, deadline=None)
@given(st.integers(4, 20), st.integers(0, 99))
def test_no_cluster_of_one(count: int, seed: int) -> None:
    """One outlier must not take a basis for itself."""
    deltas = torch.ones(count, 5) + 0.01 * torch.randn(count, 5, generator=torch_generator(seed))
    deltas[0] = -deltas[0]
    assert min(Counter(cluster_directions(deltas, 2, seed).tolist()).values()) >= 2


def test_too_few_models() -> None:
    with pytest.raises(InputError, match="at least 4 client models"):
        cluster_directions(torch.ones(3, 2), 4, 0)


@pytest.mark.parametrize("by_block", [True, False])
def test_models_become_the_means_of_their_clusters(tiny: Network, by_block: bool) -> None:
    layout, start = tiny.layout(tiny.build()), tiny.initial(0)
    moves = [tiny.initial(1), tiny.initial(2)]
    models = [{n: t + (0.1 + 0.01 * i) * moves[i % 2][n] for n, t in start.items()} for i in range(6)]
    means = cluster_models(layout, start, models, [1.0] * 6, 2, 0, by_block)
    wanted = [{n: torch.stack([m[n] for m in models[i::2]]).mean(0) for n in start} for i in range(2)]
    for name in ("fc.weight", "conv1.0.weight"):
        close = [[torch.allclose(mean[name], want[name], atol=1e-6) for want in wanted] for mean in means]
        assert sorted(map(sum, close)) == [1, 1]
