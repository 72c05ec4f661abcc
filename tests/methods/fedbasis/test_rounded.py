"""Clients that received rounded bases: the server applies their changes to its exact bases."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from battery import RECIPE, clients, same
from fedbasis.engines.download import Download, as_received, to_send
from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.methods import METHODS
from fedbasis.methods.base import Method, Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.models import Network
from fedbasis.tensors.averaging import Averaging
from fedbasis.tensors.params import State, Tensors
from fedbasis.training.rounds import train

STILL = replace(RECIPE, rate=0.0, epochs=1)
QUICK = replace(RECIPE, epochs=1)


def built(recipe: Recipe, norm: str = "group", rounds: int = 2, averaging: Averaging | None = None, **s: Any) -> Method:
    settings = {"bases": 2, "init": "random", "warm_start": 0, **s}
    task = Task(Network("cnn-small", 3, 12, {"norm": norm}), recipe, rounds, averaging=averaging or Averaging())
    return METHODS["fedbasis"].build(METHODS["fedbasis"].Config(**settings), task)


def representable(method: Method) -> State:
    """Bases that a compact download does not change: a reference r of few digits, and r + d, r - d."""
    generator = torch.Generator().manual_seed(3)
    near: Tensors = {}
    step: Tensors = {}
    for name, tensor in method.task.initial(0).items():
        near[name] = (tensor * 256).round() / 256
        codes = torch.randint(-7, 8, tensor.shape, generator=generator).float()
        if codes.ndim > 1:
            codes.view(len(codes), -1)[:, 0] = 7
        step[name] = codes * 2.0**-9 if name in method.task.parameters else torch.zeros_like(codes)
    bases = {
        "basis_0": {name: t + step[name] for name, t in near.items()},
        "basis_1": {name: t - step[name] for name, t in near.items()},
    }
    return {**({"major": near} if method.config.major else {}), **bases}


def rounded(method: Method, server: State, download: Download = "compact") -> State:
    sent = to_send(method, method.broadcast(server, "a"), download)
    return {**server, **as_received(sent, method.task.layout.shapes)}


def trained(method: Method, download: Download) -> State:
    data = clients(3)
    return train(method, Simulation(InProcess(method), data, 7, download=download), list(data), 7, download=download)


def parameters(method: Method, state: State) -> State:
    return {g: {n: t for n, t in named.items() if n in method.task.parameters} for g, named in state.items()}


SETTINGS = [
    {"aggregation": "mean"},
    {"aggregation": "usage"},
    {"aggregation": "mean", "major": False},
    {"aggregation": "usage", "major": False},
    {"aggregation": "mean", "upload": "full"},
    {"aggregation": "usage", "upload": "full"},
    {"aggregation": "mean", "upload": "full", "basis_optimizer": "adam"},
]
ROBUST = Averaging(kind="trimmed", trim=0.25)


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("averaging", [Averaging(), ROBUST, Averaging(clip=0.05)], ids=["mean", "trimmed", "clip"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_without_rounding_it_is_the_plain_algorithm(settings: dict[str, Any], averaging: Averaging, norm: str) -> None:
    if averaging.robust and "basis_optimizer" in settings:
        pytest.skip("robust means need one direction for all bases")
    method = built(QUICK, norm, averaging=averaging, **settings)
    server, data = representable(method), clients(4)
    received = rounded(method, server)
    assert same(received, server)
    updates = list(Simulation(InProcess(method), data, 7).map(server, list(data), 0))
    coded = list(Simulation(InProcess(method), data, 7, download="compact").map(server, list(data), 0))
    assert all(same(one.tensors, other.tensors) for (_, one), (_, other) in zip(updates, coded, strict=True))
    plain = method.aggregate(server, iter(updates), 7)
    after = method.updates.aggregate_rounded(server, received, iter(updates), 7)
    torch.testing.assert_close(after, plain, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("download", ["bfloat16", "compact"])
@pytest.mark.parametrize("settings", SETTINGS[:4], ids=lambda s: "-".join(map(str, s.values())))
def test_clients_that_change_nothing_change_no_bit(settings: dict[str, Any], download: Download) -> None:
    for norm in ("group", "batch"):
        method = built(STILL, norm, rounds=4, **settings)
        start, end = method.init(7), trained(method, download)
        assert not same(rounded(method, start, download), start)
        assert same(parameters(method, end), parameters(method, start))


@pytest.mark.parametrize("averaging", [ROBUST, Averaging(clip=1e-3)], ids=["trimmed", "clip"])
def test_robust_and_clipped_means_measure_from_what_clients_received(averaging: Averaging) -> None:
    """Rounding changes a model by more than the clip; measured from the exact bases it would be a change."""
    method = built(STILL, rounds=3, averaging=averaging)
    start, end = method.init(7), trained(method, "compact")
    received = rounded(method, start)
    moved, error = (
        max(float((other[g][n] - t).abs().max()) for g, named in start.items() for n, t in named.items())
        for other in (end, received)
    )
    assert moved < 1e-5
    assert error > 1e-3


@pytest.mark.parametrize("download", ["bfloat16", "compact"])
def test_changes_that_are_smaller_than_the_rounding_add_up(download: Download, monkeypatch: pytest.MonkeyPatch) -> None:
    method = built(replace(QUICK, rate=1e-5, decay=0.0), rounds=6, coefficient_epochs=1)
    far = method.init(7)
    start = {g: {n: far["major"][n] + 0.05 * t for n, t in named.items()} for g, named in far.items()}
    monkeypatch.setattr(method, "init", lambda _: start)
    plain, coded = (parameters(method, trained(method, kind)) for kind in ("float32", download))
    flat = [torch.cat([(s[g][n] - start[g][n]).reshape(-1) for g in start for n in start[g]]) for s in (plain, coded)]
    received = parameters(method, rounded(method, start, download))
    step = max(float((received[g][n] - start[g][n]).abs().max()) for g in start for n in start[g])
    assert float(flat[0].abs().max()) < step
    assert float(torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0)) > 0.9
    assert float(flat[1].norm() / flat[0].norm()) == pytest.approx(1, abs=0.1)


class TestWarmStart:
    def test_one_model_is_sent_as_bfloat16(self) -> None:
        method = built(QUICK, init="pretrained", warm_start=0.5, rounds=4)
        sent = to_send(method, method.broadcast(method.init(7), "a"), "compact")
        assert {tensor.dtype for tensor in sent["model"].values()} == {torch.bfloat16}

    @pytest.mark.parametrize("download", ["bfloat16", "compact"])
    def test_it_keeps_the_exact_model(self, download: Download) -> None:
        method = built(STILL, init="pretrained", warm_start=0.75, rounds=4)
        server, data = method.init(7), clients(3)
        first = server["model"]
        engine = Simulation(InProcess(method), data, 7, download=download)
        for number in range(2):
            received = rounded(method, server, download)
            updates = engine.map(server, list(data), number)
            server = method.updates.aggregate_rounded(server, received, updates, 7)
        assert int(server["clock"]["round"]) == 2
        assert same({"": server["model"]}, {"": first})

    @pytest.mark.parametrize("rounds", [1, 2])
    def test_a_training_ends_with_bases(self, rounds: int) -> None:
        method = built(QUICK, "batch", init="pretrained", warm_start=0.5, rounds=4, cluster_rounds=rounds)
        end = trained(method, "compact")
        assert sorted(end) == ["basis_0", "basis_1", "major"]
        for named in end.values():
            assert all(float(t.min()) > 0 for name, t in named.items() if name.endswith("running_var"))
