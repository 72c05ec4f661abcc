"""Rounds and evaluation: sampling, refused updates, and that test labels choose nothing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import shapes_examples
from fedbasis.experiment import Prepared, execute, prepare
from fedbasis.experiment.config import Experiment, parse
from fedbasis.methods.base import Adaptation, Context
from fedbasis.networks.train import Examples, Recipe
from fedbasis.serving.evaluation import chosen_rates, summarize
from fedbasis.serving.personalize import personalize
from fedbasis.training.rounds import sampled
from fedbasis.training.runs import read_lines
from pflbed import Client, InputError
from test_methods import make, trained


def small(dataset: Path, **method: Any) -> Experiment:
    return parse(
        {
            "data": {"source": str(dataset), "resolution": 12, "clients": 3, "new_clients": 2},
            "train": {"rounds": 3, "epochs": 1, "batch": 8, "rate": 0.05},
            "personalize": {"epochs": 4, "rates": [0.01, 0.1], "ways": ["none", "lp", "ft"], "validate_every": 2},
            "machine": {"engine": "serial"},  # some tests replace functions, which other processes do not see
            "method": {"name": "fedavg", **method},
        }
    )


class TestSampling:
    def test_by_count_and_share_and_seed(self) -> None:
        names = [f"c{i}" for i in range(20)]
        assert sampled(names, 1.0, 0, 3) == names
        assert len(sampled(names, 0.1, 0, 3)) == 2
        assert len(sampled(names, 5, 0, 3)) == 5
        assert sampled(names, 5, 0, 3) == sampled(names, 5, 0, 3)
        draws = [tuple(sampled(names, 5, 0, number)) for number in range(40)]
        assert len(set(draws)) > 30
        assert set().union(*map(set, draws)) == set(names)

    def test_too_many(self) -> None:
        with pytest.raises(InputError, match="only 3"):
            sampled(["a", "b", "c"], 4, 0, 0)


def test_a_client_that_sends_nan_is_refused_by_name_and_the_round_goes_on(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedbasis.methods.fedavg import FedAvg

    honest = FedAvg.client_update

    def broken(self: FedAvg, received: Any, kept: Any, data: Examples, context: Any) -> Any:
        sent, kept = honest(self, received, kept, data, context)
        if context.client == "chalk/p01":
            sent.tensors["model"]["fc.bias"][0] = float("nan")
        return sent, kept

    monkeypatch.setattr(FedAvg, "client_update", broken)
    run = execute(prepare(small(dataset)), tmp_path)
    assert [line["refused"] for line in read_lines(run.metrics)] == [["chalk/p01"]] * 3


def poisoned(prepared: Prepared) -> Prepared:
    """The same benchmark with wrong labels on every test image."""

    def wrong(client: Client) -> Client:
        return replace(client, test=replace(client.test, labels=(client.test.labels + 1) % 3))

    return replace(prepared, clients={name: wrong(client) for name, client in prepared.clients.items()})


def test_test_labels_choose_nothing(dataset: Path, tmp_path: Path) -> None:
    prepared = prepare(small(dataset))
    honest = execute(prepared, tmp_path / "honest")
    other = execute(poisoned(prepared), tmp_path / "poisoned")
    lines = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in read_lines(run.evaluation)]
        for run in (honest, other)
    ]
    assert lines[0] == lines[1]  # epochs, validation scores and predictions are the same
    rows = [json.loads(run.results.read_text()) for run in (honest, other)]
    assert [row["rate"] for row in rows[0]] == [row["rate"] for row in rows[1]]
    assert [row["last"] for row in rows[0]] != [row["last"] for row in rows[1]]  # only the scores differ


def test_rate_is_chosen_by_the_mean_last_validation_score() -> None:
    def record(client: str, rate: float, scores: list[float]) -> dict[str, Any]:
        return {"client": client, "how": "ft", "size": "S", "rate": rate, "validation": scores}

    records = [
        record("a", 0.1, [0.9, 0.1]),
        record("b", 0.1, [0.9, 0.9]),
        record("a", 0.2, [0.1, 0.6]),
        record("b", 0.2, [0.1, 0.6]),
    ]
    assert chosen_rates(records) == {("ft", "S"): 0.2}


def test_summary_equals_the_formula_by_hand(dataset: Path, tmp_path: Path) -> None:
    prepared = prepare(small(dataset))
    run = execute(prepared, tmp_path)
    records = read_lines(run.evaluation)
    for row in summarize(type(prepared.method), records, prepared.new):
        scores = []
        for record in records:
            if (record["how"], record["size"], record["rate"]) != (row.how, row.size, row.rate):
                continue
            client = prepared.new[record["client"]]
            total = right = 0.0
            for guess, label in zip(record["last_predicted"], client.test.labels.tolist(), strict=True):
                share = client.label_distribution[label]
                total += share
                right += share * (guess == label)
            scores.append(right / total)
        assert row.last == pytest.approx(np.mean(scores))
        assert row.delta == pytest.approx(abs(row.last - row.best))


def test_finished_run_says_what_it_measured(dataset: Path, tmp_path: Path) -> None:
    experiment = small(dataset, name="fedbasis", bases=2)
    experiment = parse({**experiment.as_dict(), "personalize": {"epochs": 2, "rates": [0.05]}})
    run = execute(prepare(experiment), tmp_path)
    lines = read_lines(run.metrics)
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert {"loss", "seconds", "bytes_up", "bytes_down", "validation", "entropy", "usage", "cosine"} <= set(lines[-1])
    blocks = ["conv1", "conv2", "conv3", "fc"]
    assert list(lines[-1]["entropy"]) == blocks
    assert list(lines[-1]["cosine"]) == ["network", *blocks]
    for block in blocks:
        assert sum(lines[-1]["usage"][block].values()) == pytest.approx(1, abs=1e-5)
    assert lines[-1]["bytes_down"] > 2.9 * lines[-1]["bytes_up"]  # three models down, one up
    assert run.done
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("how", ["none", "knn", "ft"])
def test_the_last_epoch_is_always_looked_at(how: str, recipe: Recipe) -> None:
    """Also by ways that end between two looks: rates are chosen by the last one."""
    method = make("knn-per", recipe)
    server, _, _ = trained("knn-per", recipe)
    plan = Adaptation(epochs=3, validate_every=2)
    context = Context(7, "new", method.task.network.workspace())
    looks = iter(range(9))
    outcome = personalize(method, server, how, shapes_examples(12), context, plan, lambda *_: float(next(looks)))
    assert len(outcome.validation) == {"none": 1, "knn": 1, "ft": 2}[how]
    assert outcome.best.epoch == outcome.last.epoch == len(outcome.losses)
