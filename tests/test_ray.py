"""The workers of a Ray cluster give the bits of one process, also when they die, and leave nothing behind.

One cluster and few workers serve all tests, because a worker that starts imports torch: where many methods are tried,
the method travels with the job.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import shapes_examples
from fedbasis.algorithms.base import Adaptation, Method
from fedbasis.config import Experiment, parse
from fedbasis.engines.base import Desk, Job, Result
from fedbasis.engines.federation import Federation, Update
from fedbasis.engines.parcels import Shelf, loaded, plain, restored, unloaded
from fedbasis.engines.pool import WorkerError
from fedbasis.engines.ray import Cluster
from fedbasis.engines.ray_connection import Connection, crew_of, library
from fedbasis.engines.serial import Here
from fedbasis.evaluation import Plan, Serving, evaluate, serve
from fedbasis.experiment import Observer, Prepared, execute, prepare
from fedbasis.params import State
from fedbasis.runs import Run, read_lines
from fedbasis.train import Recipe
from pflbed import Images, InputError
from test_methods import ROUNDS, VARIANTS, clients, make, same, trained

if importlib.util.find_spec("ray") is None:
    pytest.skip("the extra 'ray' is not installed", allow_module_level=True)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@dataclass(frozen=True)
class Work:
    """A job of any method."""

    method: Method
    job: Job
    item: Any


def work(_: Desk, shared: State, item: Work) -> Result:
    return item.job(Desk(item.method), shared, item.item)


class Lent:
    """A cluster that works for another method for a while."""

    same_disk = False

    def __init__(self, cluster: Cluster, method: Method) -> None:
        self._cluster, self._method = cluster, method

    def run(self, job: Job, shared: State, items: Sequence[Any], names: Sequence[str]) -> Iterator[Result]:
        return self._cluster.run(work, shared, [Work(self._method, job, item) for item in items], names)

    def close(self) -> None: ...


def fail(desk: Desk, shared: State, item: str) -> Result:
    if item == "input":
        raise InputError("The item must be good, but it is not.")
    if item == "bug":
        raise KeyError("a bug in a job")
    if item == "death":
        os._exit(3)
    time.sleep(60 if item == "sleep" else 0)
    return {}, (item, os.getpid())


def processes(session: int) -> list[str]:
    """The command lines of a session's processes."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            status = (place / "stat").read_text().rpartition(")")[2].split()
            if int(status[3]) == session and status[0] != "Z":
                found.append((place / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def soon(true: Any, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(true())


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    """A cluster of this machine, with CPUs for all that are tried at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # workers import this file too
        made = Connection(cpus=8)
    assert made.ray.util.get_node_ip_address() == "127.0.0.1"
    assert not {"RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"} & set(os.environ)
    yield made
    made.close()
    assert not made.ray.is_initialized()


@pytest.fixture(scope="module")
def two(connection: Connection) -> Iterator[Cluster]:
    made = Cluster(make("fedavg", Recipe(*_pixels())), 2, 1, "cpu")
    yield made
    made.close()
    assert connection.ray.is_initialized()  # who did not start it does not end it


@pytest.fixture(scope="module")
def one(connection: Connection) -> Iterator[Cluster]:
    made = Cluster(make("fedavg", Recipe(*_pixels())), 1, 1, "cpu")
    yield made
    made.close()


def _pixels() -> tuple[Any]:
    from fedbasis.train import Preprocessing

    return (Preprocessing(12),)


def train(workers: Any, method: Method, rounds: range = range(ROUNDS), kill: Any = None) -> tuple[State, Federation]:
    data = clients()
    engine, server = Federation(workers, data, seed=7), method.init(7)
    for number in rounds:
        updates = engine.map(server, list(data), number)
        if kill is not None:
            first = next(updates)
            kill()
            updates = iter([first, *updates])
        server = method.aggregate(server, updates, 7)
    return server, engine


class TestSameBits:
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_for_every_method(self, variant: str, two: Cluster, recipe: Recipe) -> None:
        server, engine, _ = trained(variant, recipe)
        method = make(variant, recipe)
        got, there = train(Lent(two, method), method)
        assert same(server, got)
        assert set(engine.kept) == set(there.kept)
        assert all(same(engine.kept[name], there.kept[name]) for name in engine.kept)

    def test_with_one_worker_and_when_it_is_killed(self, one: Cluster, recipe: Recipe) -> None:
        method = make("scaffold", recipe)
        server, engine, _ = trained("scaffold", recipe)
        killed = []

        def kill() -> None:
            if not killed:
                killed.append(one._ray.kill(one._crew[0].actor))

        got, there = train(Lent(one, method), method, kill=kill)
        assert killed
        assert same(server, got)
        assert all(same(engine.kept[name], there.kept[name]) for name in engine.kept)

    def test_when_one_of_two_workers_is_killed(self, two: Cluster, recipe: Recipe) -> None:
        method = make("fedavg", recipe)
        before = [hand.actor for hand in two._crew]
        got, _ = train(Lent(two, method), method, kill=lambda: two._ray.kill(before[1]))
        assert same(trained("fedavg", recipe)[0], got)
        assert two._crew[0].actor is before[0]
        assert two._crew[1].actor is not before[1]


def experiment(dataset: Path, engine: str) -> Experiment:
    return parse(
        {
            "data": {"source": str(dataset), "resolution": 12, "clients": 3, "new_clients": 2},
            "model": {"options": {"norm": "batch"}},
            "train": {"rounds": 3, "epochs": 1, "batch": 8, "rate": 0.05},
            "personalize": {"epochs": 2, "rates": [0.01, 0.1], "ways": ["none", "lp", "ft"]},
            "machine": {"engine": engine, "workers": 1, "device": "cpu", "checkpoint_seconds": 0.0},
            "method": {"name": "scaffold"},
        }
    )


@pytest.fixture(scope="module")
def serial(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBASIS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        prepared = prepare(experiment(dataset, "serial"))
        return prepared, execute(prepared, tmp_path_factory.mktemp("serial"))


def timeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


class TestEvaluation:
    def test_is_the_same_and_images_that_are_shared_travel_once(
        self, two: Cluster, serial: tuple[Prepared, Run]
    ) -> None:
        prepared, _ = serial
        method, new = prepared.method, prepared.new
        plan = Plan(("none", "lp", "ft"), ("S", "M"), (0.05,), Adaptation(epochs=2, rate=0.05))
        server = method.published(method.init(7))
        put: list[int] = []
        shelf = Shelf(lambda arrays: put.append(1) or two._ray.put(arrays))
        two._shelf, before = shelf, two._shelf
        try:
            got = evaluate(Lent(two, method), server, new, plan, 7)  # type: ignore[arg-type]
        finally:
            two._shelf = before
        assert timeless(got) == timeless(evaluate(Here(method), server, new, plan, 7))
        domains = {client.domain for client in new.values()}
        assert len(put) == len(new) + 2 * len(domains)  # every client's own, and each domain's val and test

    def test_after_stop_and_resume(
        self, connection: Connection, serial: tuple[Prepared, Run], dataset: Path, tmp_path: Path
    ) -> None:
        class Stop(Observer):
            def round(self, record: dict[str, Any]) -> None:
                if record["round"] == 2:
                    raise KeyboardInterrupt

        class Stop2(Observer):
            def served(self, done: int, total: int, record: dict[str, Any]) -> None:
                if done == 5:
                    raise KeyboardInterrupt

        prepared = replace(serial[0], experiment=experiment(dataset, "ray"))
        for stop in (Stop(), Stop2()):
            with pytest.raises(KeyboardInterrupt):
                execute(prepared, tmp_path, stop)
        run = execute(prepared, tmp_path)
        assert run.folder.name == serial[1].folder.name
        for name in ("bases/tensors.safetensors", "bases/card.json", "done"):
            assert (run.folder / name).read_bytes() == (serial[1].folder / name).read_bytes()
        assert timeless(read_lines(run.evaluation)) == timeless(read_lines(serial[1].evaluation))


class TestErrors:
    def test_an_input_error_is_raised_as_itself(self, one: Cluster) -> None:
        with pytest.raises(InputError, match=r"^The item must be good, but it is not\.$"):
            list(one.run(fail, {}, ["", "input"], "ab"))

    def test_any_other_error_with_its_place(self, one: Cluster) -> None:
        with pytest.raises(WorkerError, match=r"KeyError\('a bug in a job'\)(.|\n)*in fail"):
            list(one.run(fail, {}, ["bug"], "a"))

    def test_a_job_that_kills_every_worker(self, one: Cluster) -> None:
        with pytest.raises(InputError, match="the one for b ended its process 3 times"):
            list(one.run(fail, {}, ["", "death", ""], "abc"))

    @LINUX
    def test_who_stops_listening_leaves_nobody_at_work(self, one: Cluster) -> None:
        results = one.run(fail, {}, ["", "sleep", "sleep"], "abc")
        _, (_, pid) = next(results)
        assert not gone(pid)
        results.close()  # type: ignore[attr-defined]
        assert soon(lambda: gone(pid))

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(InputError, match=r"pip install 'fedbasis\[ray\]'"):
            library()
