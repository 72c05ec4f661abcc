"""The workers of a Ray cluster give the bits of one process, also when they die, and leave nothing behind.

All tests share one cluster and few workers, because every worker imports torch: where many methods are tried, the
method travels with the item.
"""

import importlib.util
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from battery import clients, make, same
from fedbasis.engines.base import Result, WorkerContext, Workers
from fedbasis.engines.in_process import InProcess
from fedbasis.engines.pool import WorkerError
from fedbasis.engines.ray import Cluster, RayWorker, connection
from fedbasis.engines.ray.connection import Placement, RayConnection, library, placement_of
from fedbasis.engines.ray.transfer import ObjectCache
from fedbasis.engines.simulation import Simulation
from fedbasis.engines.transport import dumps
from fedbasis.experiment import Prepared, execute, prepare
from fedbasis.experiment.config import Experiment, parse
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Method, Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.models import Network
from fedbasis.serving.evaluation import EvaluationPlan, evaluate
from fedbasis.tensors.packed import packed
from fedbasis.tensors.params import State
from fedbasis.training.events import Event, RoundEnded
from fedbasis.training.runs import Run, read_lines
from helpers import MINUTES, gone, wait_until
from helpers.other_method import ForMethod
from pflbed import InputError

RAY = importlib.util.find_spec("ray")  # importing it here would be too early for its settings
if RAY is None or RAY.origin is None:  # this folder, too, is called ray
    pytest.skip("the extra 'ray' is not installed", allow_module_level=True)


def misbehave(worker: WorkerContext, shared: State, item: str) -> Result:
    if item == "wrong":
        raise InputError("The item must be good, but it is not.")
    if item == "bug":
        raise KeyError("a bug in a task")
    if item == "deadly":
        os._exit(3)
    time.sleep(10 * MINUTES if item == "endless" else 0)
    return {}, (item, os.getpid())


@pytest.fixture(scope="module")
def two(ray_connection: RayConnection, recipe: Recipe) -> Iterator[Cluster]:
    made = Cluster(make("fedavg", recipe), 2, 1, "cpu")
    yield made
    made.close()
    assert ray_connection.ray.is_initialized()  # what it did not start it does not end


@pytest.fixture(scope="module")
def one(ray_connection: RayConnection, recipe: Recipe) -> Iterator[Cluster]:
    made = Cluster(make("fedavg", recipe), 1, 1, "cpu")
    yield made
    made.close()


def train(workers: Any, method: Method, kill: Callable[[int], None] = lambda number: None) -> tuple[State, Simulation]:
    """Two rounds: in the first one clients begin to keep something, in the second they use it."""
    data = clients()
    engine, server = Simulation(workers, data, seed=7), method.init(7)
    for number in range(2):
        updates = engine.map(server, list(data), number)
        first = next(updates)
        kill(number)
        server = method.aggregate(server, iter([first, *updates]), 7)
    return server, engine


def alike(one: tuple[State, Simulation], other: tuple[State, Simulation]) -> bool:
    kept, again = one[1].states, other[1].states
    return same(one[0], other[0]) and set(kept) == set(again) and all(same(kept[name], again[name]) for name in kept)


KINDS = ("fedavg", "scaffold", "ditto", "fedbn", "fedem", "pfedhn", "fedbasis")
"""One model, control variates, a model that clients keep, a part that they keep, several models, made ones, bases."""


class TestSameBits:
    def test_with_two_workers_for_methods_of_all_kinds(self, two: Cluster, recipe: Recipe) -> None:
        """The pool goes through every method, and sends and receives in the same way."""
        keeping = 0
        for variant in KINDS:
            method = make(variant, replace(recipe, epochs=1))
            here, there = train(InProcess(method), method), train(ForMethod(two, method), method)
            assert alike(here, there), variant
            keeping += len(here[1].states) > 0
        assert keeping == 4

    def test_with_one_worker_that_is_killed(self, one: Cluster, recipe: Recipe) -> None:
        method, killed = make("scaffold", recipe), []

        def kill(number: int) -> None:
            if number == 1:
                killed.append(one._workers[0].actor)
                one._ray.kill(killed[0])

        assert alike(train(InProcess(method), method), train(ForMethod(one, method), method, kill))
        assert one._workers[0].actor is not killed[0]

    def test_with_two_workers_of_whom_one_is_killed(self, two: Cluster, recipe: Recipe) -> None:
        method = make("ditto", recipe)
        list(two.run(misbehave, {}, ["", ""], "ab"))  # both have started now
        before = [handle.actor for handle in two._workers]

        def kill(number: int) -> None:
            if number == 0:
                two._ray.kill(before[1])

        assert alike(train(InProcess(method), method), train(ForMethod(two, method), method, kill))
        assert two._workers[0].actor is before[0]
        assert two._workers[1].actor is not before[1]


def test_a_method_and_a_factory_of_a_users_script_and_what_the_user_did_wrong(
    ray_connection: RayConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(Path(__file__).parents[1].joinpath("user_script.py").read_text(encoding="utf-8"), script)
    monkeypatch.setattr(sys.modules["__main__"], "factory", script["factory"], raising=False)
    by_factory, by_instance = script["methods"]()
    one = Cluster(by_factory, 1, 1, "cpu")
    try:
        assert script["same"](script["train"](by_factory, one), script["train"](by_factory, InProcess(by_factory)))
        there, here = (script["train"](by_instance, w) for w in (ForMethod(one, by_instance), InProcess(by_instance)))
        assert script["same"](there, here)
        with pytest.raises(InputError, match=r"^The item must be good, but it is not\.$"):
            list(one.run(misbehave, {}, ["", "wrong"], "ab"))
    finally:
        one.close()


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
    prepared = prepare(experiment(dataset, "serial"))
    return prepared, execute(prepared, tmp_path_factory.mktemp("serial"))


def timeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in record.items() if key not in ("seconds", "peak_memory")} for record in records
    ]


def test_evaluation_is_the_same_and_shared_images_travel_once(two: Cluster, serial: tuple[Prepared, Run]) -> None:
    method, new = serial[0].method, serial[0].new
    plan = EvaluationPlan(
        ways=("none", "lp", "ft"), sizes=("S", "M"), rates=(0.05,), adaptation=Adaptation(epochs=2, rate=0.05)
    )
    server = method.serving.published(method.init(7))
    put: list[Any] = []

    def counted(arrays: Any) -> Any:
        put.append(arrays)
        return two._ray.put(arrays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two, "_object_cache", ObjectCache(counted))
        got = evaluate(cast(Workers, ForMethod(two, method)), server, new, plan, 7)
    assert timeless(got) == timeless(evaluate(InProcess(method), server, new, plan, 7))
    domains = {client.domain for client in new.values()}
    assert len(put) == len(new) + 2 * len(domains)  # every client's own images, and each domain's val and test


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_results_need_not_all_be_wanted(two: Cluster) -> None:
    results = cast(Generator[Result], two.run(misbehave, {}, ["", "endless", "endless"], "abc"))
    _, (_, pid) = next(results)
    assert not gone(pid)
    results.close()  # this ends the workers, so it is the last test of these two
    wait_until(lambda: gone(pid))


def test_a_run_that_is_stopped_and_goes_on(
    ray_connection: RayConnection, serial: tuple[Prepared, Run], dataset: Path, tmp_path: Path
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, RoundEnded) and event.record["round"] == 2:
            raise KeyboardInterrupt

    prepared = replace(serial[0], experiment=experiment(dataset, "ray"))
    with pytest.raises(KeyboardInterrupt):
        execute(prepared, tmp_path, stop)
    run, whole = execute(prepared, tmp_path), serial[1]
    assert run.folder.name == whole.folder.name
    for name in ("bases/tensors.safetensors", "bases/card.json", "done"):
        assert (run.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    assert timeless(read_lines(run.evaluation)) == timeless(read_lines(whole.evaluation))


class TestErrors:
    def test_a_task_that_ends_every_worker(self, one: Cluster) -> None:
        with pytest.raises(InputError, match=r"the task of b ended its process 3 times \(\w+\)\.$"):
            list(one.run(misbehave, {}, ["", "deadly", ""], "abc"))

    def test_any_other_error_says_where_it_was(self, recipe: Recipe) -> None:
        answer, tensors = RayWorker(dumps(make("fedavg", recipe)), "cpu", 1).do(misbehave, 1, packed({}), "bug")
        assert isinstance(answer, WorkerError)
        assert re.search(r"KeyError\('a bug in a task'\)(.|\n)*in misbehave", str(answer))
        assert tensors is None

    def test_what_fails_while_a_worker_is_built_is_told(self, recipe: Recipe) -> None:
        task = Task(Network("no_such_module:factory", 3, 12), recipe, 2)
        method = dumps(METHODS["fedavg"].build(METHODS["fedavg"].Config(), task))
        answer, _ = RayWorker(method, "cpu", 1).do(misbehave, 1, packed({}), "")
        assert isinstance(answer, InputError)
        assert "must be importable" in str(answer)
        answer, _ = RayWorker(b"no method", "cpu", 1).do(misbehave, 1, packed({}), "")
        assert isinstance(answer, WorkerError)
        assert "UnpicklingError" in str(answer)

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(InputError, match=r"pip install -e '\.\[ray\]'"):
            library()

    def test_an_address_where_nobody_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.setattr(connection, "_running", lambda: False)
        with pytest.raises(InputError, match=f"RAY_ADDRESS must be .* but {address} is not"):
            RayConnection(1)


class TestPlacement:
    def test_fills_the_cluster_or_is_what_was_asked_for(self) -> None:
        assert placement_of({"CPU": 9}, None, 2, "auto") == Placement(4, 2, 0.0, "cpu")
        assert placement_of({"CPU": 9}, 3, 2, "cpu") == Placement(3, 2, 0.0, "cpu")
        assert placement_of({"CPU": 64, "GPU": 3}, None, 1, "auto") == Placement(6, 1, 0.5, "cuda")
        assert placement_of({"CPU": 64, "GPU": 2}, 3, 1, "cuda") == Placement(3, 1, 0.5, "cuda")
        assert placement_of({"CPU": 64, "GPU": 4}, 2, 1, "cuda") == Placement(2, 1, 1.0, "cuda")
        assert placement_of({"CPU": 64, "GPU": 4}, None, 1, "cpu") == Placement(64, 1, 0.0, "cpu")

    @pytest.mark.parametrize(
        ("resources", "workers", "threads", "device", "message"),
        [
            ({"CPU": 2}, 3, 1, "cpu", r"machine\.workers \(3\)"),
            ({"CPU": 2}, None, 4, "cpu", r"machine\.threads \(4\)"),
            ({"CPU": 2}, None, 1, "cuda", "has 0 GPUs"),
            ({"CPU": 2, "GPU": 2.0}, None, 1, "cuda:1", "it is 'cuda:1'"),
        ],
    )
    def test_what_does_not_fit(
        self, resources: dict[str, float], workers: int | None, threads: int, device: str, message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            placement_of(resources, workers, threads, device)
