"""Which workers there are, if nobody asks for others."""

import multiprocessing

import pytest
import torch

from battery import make
from fedbasis.engines import choice
from fedbasis.engines.choice import Machine, devices_of, workers_for
from fedbasis.engines.in_process import InProcess
from fedbasis.engines.pool import Pool
from fedbasis.networks.batches import Recipe


def test_auto_is_a_pool_where_there_are_cores(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    method = make("fedavg", recipe)
    for cores, expected in ((4, Pool), (1, InProcess)):
        monkeypatch.setattr(choice, "cores", lambda cores=cores: cores)
        with workers_for(method, Machine(device="cpu")) as workers:
            assert type(workers) is expected
    assert str(Pool(method, ["cpu"] * 3)) == "3 processes (3 on cpu)"
    assert str(InProcess(method)) == "1 process on cpu"


def test_a_worker_has_no_pool_of_its_own(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "cores", lambda: 4)
    monkeypatch.setattr(multiprocessing.process.current_process(), "_config", {"daemon": True})
    with workers_for(make("fedavg", recipe), Machine(device="cpu")) as workers:
        assert type(workers) is InProcess


def test_threads_leave_cores_for_fewer_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "cores", lambda: 8)
    assert devices_of(Machine(device="cpu")) == ["cpu"] * 8
    assert devices_of(Machine(device="cpu", threads=3)) == ["cpu"] * 2
    assert devices_of(Machine(device="cpu", workers=5)) == ["cpu"] * 5


def test_gpus_are_shared_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "cores", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices_of(Machine()) == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert devices_of(Machine(workers=3)) == ["cuda:0", "cuda:1", "cuda:0"]
