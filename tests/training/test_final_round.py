"""After the last round every client trains once more; the server's state does not change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedbasis.experiment
from battery import QUICK, clients, clone, make, same
from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.methods.base import Context
from fedbasis.training.rounds import final_round, train
from fedbasis.training.runs import Run, read_lines
from helpers import Serial
from small_experiments import CHOICES, raw

SERVE = {"whom": "participating", "ways": ["client-state"]}
DATA = {"new_clients": 0, "split": [80, 0, 5, 15]}


def choices(run: Run) -> list[list[Any]]:
    return [[line[name] for name in CHOICES] for line in read_lines(run.evaluation)]


def prepared(dataset: Path, method: str = "ditto", **more: Any) -> fedbasis.experiment.Prepared:
    sections = {"train": {"participation": 1}, "personalize": SERVE, "data": DATA, **more}
    return prepare(parse(raw(dataset, method, **sections)))


@pytest.mark.parametrize("variant", ["ditto", "fedrep", "fedamp", "apfl"])
def test_every_client_trains_once_more_from_the_final_state(variant: str) -> None:
    method, data = make(variant, QUICK, rounds=2), clients(5)
    engine = Serial(method, data, seed=7)
    server = train(method, engine, list(data), 7, participation=1)
    before = {client: engine.states.read(client, 2) for client in data}
    kept, copy = {client: None if state is None else clone(state) for client, state in before.items()}, clone(server)
    assert sum(state is None for state in kept.values()) >= 3
    final_round(method, engine, server, list(data))
    assert same(server, copy)
    for client, examples in data.items():
        context = Context(7, client, method.task.network.workspace(), 2)
        _, wanted = method.client_update(method.broadcast(server, client), kept[client], examples, context)
        got = engine.states.read(client, 3)
        assert got is not None
        assert wanted is not None
        assert same(got, wanted)
        assert kept[client] is None or not same(got, kept[client] or {})


def test_without_it_clients_are_scored_with_old_states_and_the_server_is_the_same(
    dataset: Path, tmp_path: Path
) -> None:
    fresh = execute(prepared(dataset), tmp_path)
    stale = execute(prepared(dataset, personalize={**SERVE, "final_round": False}), tmp_path)
    assert fresh.folder != stale.folder
    tensors = [(run.bases / "tensors.safetensors").read_bytes() for run in (fresh, stale)]
    assert tensors[0] == tensors[1]
    assert choices(fresh) != choices(stale)


@pytest.mark.parametrize("moment", ["within", "after"])
def test_stopped_in_or_after_it_a_run_ends_with_the_same_bits(
    moment: str, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = execute(prepared(dataset), tmp_path / "whole")

    def stop(original: Callable[..., None]) -> Callable[..., None]:
        def stopped(method: Any, engine: Any, server: Any, names: Any) -> None:
            original(method, engine, server, names[:2] if moment == "within" else names)
            raise KeyboardInterrupt

        return stopped

    with monkeypatch.context() as patch:
        patch.setattr(fedbasis.experiment, "final_round", stop(final_round))
        with pytest.raises(KeyboardInterrupt):
            execute(prepared(dataset), tmp_path / "stopped")
    resumed = execute(prepared(dataset), tmp_path / "stopped")
    assert resumed.done
    assert choices(resumed) == choices(whole)


def test_a_pool_gives_the_same_bits(dataset: Path, tmp_path: Path) -> None:
    how: tuple[dict[str, Any], ...] = ({"engine": "serial"}, {"engine": "pool", "workers": 2})
    runs = [execute(prepared(dataset, machine=one), tmp_path / one["engine"]) for one in how]
    assert choices(runs[0]) == choices(runs[1])
