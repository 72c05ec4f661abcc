"""Bases from a finished training: FedBasis' own warm start after FedAvg, and bases for every other method."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedbasis as fb
from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.methods import METHODS
from fedbasis.tensors.params import State
from helpers.cli_images import write_images
from helpers.cli_own import own_clients
from helpers.cli_running import Ended, run_command
from pflbed import Clients, InputError
from small_experiments import raw

QUICK: dict[str, Any] = {"epochs": 1, "rate": 0.05, "batch": 8, "engine": "serial", "device": "cpu"}


@pytest.fixture(scope="module")
def clients() -> Clients:
    return own_clients()


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(
        one[g].keys() == other[g].keys() and all(torch.equal(one[g][n], other[g][n]) for n in one[g]) for g in one
    )


def after_warm_start(clients: Clients, rounds: int, **settings: Any) -> State:
    """The state of FedBasis when its warm start of so many rounds is over."""
    states: list[State] = []
    method = fb.FedBasis(network="cnn-small", warm_start=0.5, **settings)
    kept = FedBasisStates(states)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fb.FedBasis, "aggregate", kept.wrapping(fb.FedBasis.aggregate))
        fb.train(method, clients, rounds=2 * rounds, seed=5, **QUICK)
    return states[rounds - 1]


class FedBasisStates:
    """Keeps what an aggregation returns."""

    def __init__(self, states: list[State]) -> None:
        self.states = states

    def wrapping(self, aggregate: Callable[..., State]) -> Callable[..., State]:
        def wrapped(method: fb.FedBasis, *arguments: Any) -> State:
            self.states.append(aggregate(method, *arguments))
            return self.states[-1]

        return wrapped


@pytest.mark.parametrize(("major", "cluster"), [(True, "block"), (True, "network"), (False, "block")])
def test_after_fedavg_the_bases_are_those_of_fedbasis_own_warm_start(
    clients: Clients, major: bool, cluster: Any
) -> None:
    """Bit for bit: FedAvg's rounds and one more are the rounds of the warm start."""
    average = fb.train(fb.FedAvg(network="cnn-small"), clients, rounds=2, seed=5, **QUICK)
    made = fb.bases_from(average, clients, bases=2, major=major, cluster=cluster, engine="serial")
    expected = after_warm_start(clients, 3, bases=2, major=major, cluster=cluster)
    assert same(made.state, expected)
    assert made.card.provenance["from_method"] == "fedavg"
    assert made.card.provenance["rounds"] == 3


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"fedavg"}))
def test_every_method_can_be_followed(name: str, dataset: Path, tmp_path: Path) -> None:
    personal = {"epochs": 1, "rates": [0.05], "validate_every": 1, "ways": ["none"]}
    prepared = prepare(parse(raw(dataset, name, train={"rounds": 2}, personalize=personal)))
    run = execute(prepared, tmp_path)
    ended = run_command("bases", run.folder, "--out", tmp_path / "bases", "--bases", 2)
    assert ended.code == 0, ended.errors
    assert f"2 bases from the local models of 6 clients, after {name}." in ended.out
    made = fb.load(tmp_path / "bases")
    assert isinstance(made, fb.Trained)
    client = prepared.clients[prepared.benchmark.new[0]]
    mine = fb.personalize(made, client.train, epochs=1)
    assert set(mine.alpha) == {"conv1", "conv2", "conv3", "fc"}
    assert np.isclose(sum(mine.alpha["fc"]), 1)


def test_the_command_does_what_the_library_does(tmp_path: Path, dataset: Path) -> None:
    run = execute(prepare(parse(raw(dataset, train={"rounds": 1}))), tmp_path / "runs")
    options = ("--bases", 2, "--no-major", "--cluster", "network", "--epochs", 2)
    ended = run_command("bases", run.folder, "--out", tmp_path / "bases", *options)
    assert ended.code == 0, ended.errors
    clients = prepare(parse(json.loads(run.config.read_text()))).clients
    trained = fb.load(run.folder)
    assert isinstance(trained, fb.Trained)
    assert isinstance(clients, Clients)
    made = fb.bases_from(
        trained, clients, bases=2, major=False, cluster="network", epochs=2, batch=8, rate=0.05, engine="serial"
    )
    loaded = fb.load(tmp_path / "bases")
    assert isinstance(loaded, fb.Trained)
    assert same(made.state, loaded.state)
    personal = run_command("personalize", tmp_path / "bases", "--data", dataset / "chalk", "--out", tmp_path / "model")
    assert personal.code == 0, personal.errors


def test_mistakes_get_a_sentence(clients: Clients, tmp_path: Path, dataset: Path) -> None:
    trained = fb.train(fb.FedAvg(network="cnn-small"), clients, rounds=1, **QUICK)
    with pytest.raises(InputError, match="at least as many local models"):
        fb.bases_from(trained, clients, bases=1000, engine="serial")
    with pytest.raises(InputError, match="'epochs' must be above 0"):
        fb.bases_from(trained, clients, epochs=0, engine="serial")
    other = prepare(parse(raw(dataset, data={"resolution": 16}))).clients
    assert isinstance(other, Clients)
    with pytest.raises(InputError, match="classes and the image shape"):
        fb.bases_from(trained, other, engine="serial")
    for arguments, reason in (
        (("bases", tmp_path / "nothing", "--out", tmp_path / "bases"), "finished run"),
        (("bases", tmp_path, "--out", tmp_path), "must not exist yet"),
    ):
        ended: Ended = run_command(*arguments)
        assert ended.code == 2
        assert reason in ended.errors


def test_a_run_from_memory_needs_its_images(clients: Clients, tmp_path: Path) -> None:
    trained = fb.train(fb.FedAvg(network="cnn-small"), clients, rounds=1, out=tmp_path, **QUICK)
    assert trained.run is not None
    ended = run_command("bases", trained.run.folder, "--out", tmp_path / "bases")
    assert ended.code == 2
    assert "trained from memory" in ended.errors


def test_a_private_training_is_not_followed_by_single_models(clients: Clients) -> None:
    trained = fb.train(fb.FedAvg(network="cnn-small"), clients, rounds=1, **QUICK)
    trained.card.provenance["privacy"] = {"epsilon": 1.0}
    with pytest.raises(InputError, match=r"had \[privacy\]"):
        fb.bases_from(trained, clients, bases=2, engine="serial")


def test_images_may_have_moved(tmp_path: Path, dataset: Path) -> None:
    write_images(tmp_path / "images" / "a", 20)
    write_images(tmp_path / "images" / "b", 20, domain=1)
    settings = raw(tmp_path / "images", data={"clients": 2}, train={"rounds": 1}, personalize={"ways": ["none"]})
    run = execute(prepare(parse(settings)), tmp_path / "runs")
    (tmp_path / "images").rename(tmp_path / "moved")
    assert run_command("bases", run.folder, "--out", tmp_path / "bases").code == 2
    ended = run_command("bases", run.folder, "--out", tmp_path / "bases", "--bases", 2, "--data", tmp_path / "moved")
    assert ended.code == 0, ended.errors
