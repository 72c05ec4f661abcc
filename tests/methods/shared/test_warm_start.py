"""The warm start of IFCA and FedEM: FedAvg's rounds, then the clusters that FedBasis would get."""

from typing import Any

import pytest

from battery import clients, run_rounds, same
from fedbasis.methods.base import CLOCK, MODEL, Task
from fedbasis.methods.fedbasis import FedBasis
from fedbasis.methods.shared.warm_start import warm_rounds
from fedbasis.networks.batches import Recipe
from fedbasis.tensors.averaging import Averaging
from methods.helpers.cluster import WEIGHTINGS, method_of, task_of
from pflbed.errors import InputError

BOTH = [("ifca", "clusters", "cluster"), ("fedem", "components", "component")]


def warmed(task: Task, name: str, **settings: Any) -> tuple[Any, list[Any]]:
    """Return a method and its states after each of four rounds."""
    method, states = method_of(name, task, **settings), list[Any]()
    run_rounds(method, clients(6), rounds=range(task.rounds), states=states)
    return method, states


def test_a_share_of_the_rounds_is_warm_but_never_none_and_never_all() -> None:
    assert [warm_rounds(share, 10) for share in (0, 0.01, 0.3, 0.35, 0.99)] == [0, 1, 3, 4, 9]
    assert warm_rounds(0.9, 2) == 1


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize(("name", "setting", "prefix"), BOTH)
def test_the_first_rounds_are_fedavg_and_then_come_the_clusters_of_fedbasis(
    recipe: Recipe, name: str, setting: str, prefix: str, weighting: str
) -> None:
    task = task_of(recipe, rounds=4, weighting=weighting)
    method, states = warmed(task, name, warm_start=0.5, **{setting: 2})
    _, average = warmed(task, "fedavg")
    bases, theirs = warmed(task, "fedbasis", bases=2, major=False, cluster="network", warm_start=0.5)
    assert isinstance(bases, FedBasis)
    assert method.warm_rounds == bases.warm_rounds == 2
    assert same({MODEL: states[0][MODEL]}, {MODEL: average[0][MODEL]})
    assert method.insight.phase(states[0]) == "warm start"
    assert method.insight.phase(states[1]) == f"{prefix}s"
    assert not method.insight.ready(states[0])
    assert MODEL not in states[1]
    assert CLOCK not in states[1]
    for k in range(2):
        assert same({"": states[1][f"{prefix}_{k}"]}, {"": theirs[1][f"basis_{k}"]})
        assert not same({"": states[3][f"{prefix}_{k}"]}, {"": states[1][f"{prefix}_{k}"]})


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize(("name", "setting", "prefix"), BOTH)
def test_one_model_is_fedavg_bit_for_bit_whatever_the_start(
    recipe: Recipe, name: str, setting: str, prefix: str, weighting: str
) -> None:
    task = task_of(recipe, weighting=weighting)
    _, average = warmed(task, "fedavg")
    for start in ("warm", "noise"):
        method, states = warmed(task, name, start=start, **{setting: 1})
        assert method.warm_rounds == 0
        assert same({"": states[-1][f"{prefix}_0"]}, {"": average[-1][MODEL]})


@pytest.mark.parametrize(("name", "setting", "prefix"), BOTH)
def test_what_a_warm_start_needs(recipe: Recipe, name: str, setting: str, prefix: str) -> None:
    with pytest.raises(InputError, match=f"at least 2 rounds, one of FedAvg and one of {prefix}s"):
        method_of(name, task_of(recipe, rounds=1), **{setting: 2})
    method_of(name, task_of(recipe, rounds=1), start="noise", **{setting: 2})
    method = method_of(name, task_of(recipe), **{setting: 3})
    method.updates.require_clients(3)
    with pytest.raises(InputError, match=f"3 {prefix}s need at least as many clients a round, but there are 2"):
        method.updates.require_clients(2)
    with pytest.raises(InputError, match=r"\[privacy\] protects"):
        method.updates.require_average()
    noisy = method_of(name, task_of(recipe), start="noise", **{setting: 3})
    noisy.updates.require_clients(1)
    if name == "fedem":
        noisy.updates.require_average()


@pytest.mark.parametrize(("name", "setting", "prefix"), BOTH)
def test_a_robust_warm_start_clusters_clamped_models(recipe: Recipe, name: str, setting: str, prefix: str) -> None:
    task = task_of(recipe, rounds=2, averaging=Averaging(kind="trimmed", trim=0.2))
    _, states = warmed(task, name, **{setting: 2})
    _, plain = warmed(task_of(recipe, rounds=2), name, **{setting: 2})
    assert states[-1].keys() == plain[-1].keys()
    assert not same(states[0], plain[0])
