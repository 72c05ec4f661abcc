"""Clusters of the directions in which clients moved."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from battery import QUICK, clients, make, run_rounds, same
from fedbasis.methods.fedavg import FedAvg
from fedbasis.methods.fedbasis import FedBasis
from fedbasis.methods.shared.clustering import cluster_directions, cluster_models
from fedbasis.networks.models import Network
from fedbasis.tensors.params import State
from fedbasis.tensors.seeding import torch_generator
from pflbed.errors import InputError


def fedbasis_config(**settings: Any) -> Any:
    return FedBasis.Config(**settings)


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
    means = cluster_models(layout, [start] * 6, models, [1.0] * 6, 2, 0, by_block)
    wanted = [{n: torch.stack([m[n] for m in models[i::2]]).mean(0) for n in start} for i in range(2)]
    for name in ("fc.weight", "conv1.0.weight"):
        close = [[torch.allclose(mean[name], want[name], atol=1e-6) for want in wanted] for mean in means]
        assert sorted(map(sum, close)) == [1, 1]


def test_models_of_other_rounds_are_compared_by_how_they_moved(tiny: Network) -> None:
    """Two starts far from each other: the direction of a move decides, not where it began."""
    layout, starts = tiny.layout(tiny.build()), [tiny.initial(0), tiny.initial(5)]
    moves = [tiny.initial(1), tiny.initial(2)]
    begun = [starts[i // 4] for i in range(8)]
    models = [{n: t + 0.1 * moves[i % 2][n] for n, t in begun[i].items()} for i in range(8)]
    means = cluster_models(layout, begun, models, [1.0] * 8, 2, 0, by_block=False)
    wanted = [{n: torch.stack([m[n] for m in models[i::2]]).mean(0) for n in starts[0]} for i in range(2)]
    close = [[torch.allclose(mean["fc.weight"], want["fc.weight"], atol=1e-6) for want in wanted] for mean in means]
    assert sorted(map(sum, close)) == [1, 1]


class TestSeveralRounds:
    """Bases from the local models of the last rounds of the warm start, with few clients a round."""

    @staticmethod
    def trained(rounds: int, collect: int, states: list[State], **settings: Any) -> State:
        task = make("fedavg", QUICK, rounds=6).task
        config = fedbasis_config(bases=3, warm_start=0.7, cluster_rounds=collect, **settings)
        names = list(clients(6))
        server, _, _ = run_rounds(
            FedBasis.build(config, task), clients(6), rounds=range(rounds), states=states,
            sample=lambda number: names[2 * (number % 3) : 2 * (number % 3) + 2] if collect > 1 else names,
        )  # fmt: skip
        return server

    def test_one_round_is_as_before_bit_for_bit(self) -> None:
        """With enough clients a round nothing is collected, and the bases are those of the last round."""
        states: list[State] = []
        server = self.trained(4, 1, states)
        assert all(set(state) == {"model", "clock"} for state in states[:-1])
        average = FedAvg.build(None, make("fedavg", QUICK, rounds=6).task)
        start, _, _ = run_rounds(average, clients(6), rounds=range(3))
        _, _, log = run_rounds(average, clients(6), start, rounds=range(3, 4))
        models = [sent.tensors["model"] for sent in log[0].values()]
        layout = average.task.layout
        expected = cluster_models(layout, [start["model"]] * 6, models, [1.0] * 6, 3, 7, by_block=True)
        for k, basis in enumerate(expected):
            assert same({"": server[f"basis_{k}"]}, {"": basis})

    def test_the_models_of_the_last_rounds_are_clustered(self) -> None:
        states: list[State] = []
        server = self.trained(4, 3, states, cluster="network")
        assert [sum(group.startswith("local_model") for group in state) for state in states] == [0, 2, 4, 0]
        average = FedAvg.build(None, make("fedavg", QUICK, rounds=6).task)
        names, now, starts, models = list(clients(6)), average.init(7), [], []
        for number in range(4):
            chosen = names[2 * (number % 3) : 2 * (number % 3) + 2]
            sample = dict.fromkeys(range(4), chosen).__getitem__
            after, _, log = run_rounds(average, clients(6), now, rounds=range(number, number + 1), sample=sample)
            if number > 0:
                starts += [now["model"]] * 2
                models += [sent.tensors["model"] for sent in log[0].values()]
            now = after
        expected = cluster_models(average.task.layout, starts, models, [1.0] * 6, 3, 7, by_block=False)
        for k, basis in enumerate(expected):
            assert same({"": server[f"basis_{k}"]}, {"": basis})
        assert same({"": server["major"]}, {"": now["model"]})

    def test_collected_models_stay_at_the_server(self) -> None:
        states: list[State] = []
        self.trained(3, 3, states)
        method = FedBasis.build(fedbasis_config(bases=3, cluster_rounds=3), make("fedavg", QUICK, rounds=6).task)
        assert len(states[-1]) == 2 + 2 * (2 + 2)
        assert set(method.broadcast(states[-1], "a")) == {"model", "clock"}

    def test_as_many_models_are_needed_as_bases(self) -> None:
        task = make("fedavg", QUICK, rounds=6).task
        few = FedBasis.build(fedbasis_config(bases=3, warm_start=0.7), task)
        with pytest.raises(InputError, match="raise 'participation' or 'cluster_rounds'"):
            few.updates.require_clients(2)
        FedBasis.build(fedbasis_config(bases=3, warm_start=0.7, cluster_rounds=2), task).updates.require_clients(2)
        short = FedBasis.build(fedbasis_config(bases=3, warm_start=0.1, cluster_rounds=9), task)  # one round of FedAvg
        with pytest.raises(InputError, match="local models"):
            short.updates.require_clients(2)
