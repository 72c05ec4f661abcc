"""The table of all clients' latest models."""

from typing import Any

import pytest
import torch

from fedbasis.methods.base import Task
from fedbasis.methods.fed_mtl import FedMTL, FedMTLConfig
from fedbasis.methods.fedamp import FedAMP, FedAMPConfig
from fedbasis.methods.fedfomo import FedFomo, FedFomoConfig
from fedbasis.methods.shared.client_models import combination
from methods.helpers.related import DATA, NAMES, equal, task_of, train


def mtl(task: Task, **config: Any) -> FedMTL:
    return FedMTL.build(FedMTLConfig(**config), task)


def amp(task: Task, **config: Any) -> FedAMP:
    return FedAMP.build(FedAMPConfig(**config), task)


def fomo(task: Task, **config: Any) -> FedFomo:
    return FedFomo.build(FedFomoConfig(**config), task)


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
