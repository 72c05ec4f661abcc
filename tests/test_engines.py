"""Workers in other processes give the bits of this one, whatever their number and whoever is killed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import shapes_examples
from fedbasis.engines import choice
from fedbasis.engines.base import Result, WorkerContext
from fedbasis.engines.choice import Machine, devices_of, workers_for
from fedbasis.engines.in_process import InProcess, Serial
from fedbasis.engines.pool import TRIES, Pool, WorkerError
from fedbasis.engines.simulation import Simulation
from fedbasis.experiment import prepare
from fedbasis.methods.base import Adaptation, Context, Method, Sent
from fedbasis.networks.classifier import apply_head, passed
from fedbasis.networks.train import Examples, Recipe, examples_of, predict
from fedbasis.serving.evaluation import EvaluationPlan, SharedPredictions, evaluate
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.packed import mapped
from fedbasis.tensors.params import State, Tensors
from pflbed import Client
from pflbed.errors import InputError
from test_methods import ROUNDS, VARIANTS, clients, make, same, trained
from test_rounds import small

ADAPTATION = Adaptation(epochs=2, batch=8)
ONE_EACH = list({name: variant for variant, (name, _) in reversed(VARIANTS.items())}.values())


@pytest.fixture
def pool_of() -> Iterator[Callable[..., Pool]]:
    pools: list[Pool] = []

    def make_pool(method: Method, workers: int = 2) -> Pool:
        pools.append(Pool(method, ["cpu"] * workers))
        return pools[-1]

    yield make_pool
    for pool in pools:
        pool.close()


def rounds_of(
    method: Method, engine: Simulation, names: Sequence[str], between: Callable[[int], None] | None = None
) -> State:
    """Train; ``between`` is called in the middle of every round with its number."""
    server = method.init(7)
    for number in range(ROUNDS):

        def stream(server: State = server, number: int = number) -> Iterator[tuple[str, Sent]]:
            for client, sent in engine.map(server, names, number):
                yield client, sent
                if between is not None and client == names[0]:
                    between(number)

        server = method.aggregate(server, stream(), 7)
    return server


def same_outcome(server: State, engine: Simulation, variant: str, recipe: Recipe) -> bool:
    expected, serial, _ = trained(variant, recipe)
    kept = dict(engine.states)
    return (
        same(server, expected)
        and kept.keys() == serial.states.keys()
        and all(same(kept[c], serial.states[c]) for c in kept)
    )


class TestPool:
    @pytest.mark.parametrize("variant", ONE_EACH)
    def test_gives_the_bits_of_serial(self, variant: str, recipe: Recipe, pool_of: Callable[..., Pool]) -> None:
        method, data = make(variant, recipe), clients()
        engine = Simulation(pool_of(method), data, seed=7)
        assert same_outcome(rounds_of(method, engine, list(data)), engine, variant, recipe)

    @pytest.mark.parametrize("workers", [1, 3, 6])
    def test_any_number_of_workers(self, workers: int, recipe: Recipe, pool_of: Callable[..., Pool]) -> None:
        method, data = make("apfl", recipe), clients()
        engine = Simulation(pool_of(method, workers), data, seed=7)
        assert same_outcome(rounds_of(method, engine, list(data)), engine, "apfl", recipe)

    @pytest.mark.parametrize("variant", ["ditto", "fedbasis"])
    def test_a_worker_killed_in_the_middle_of_a_round_changes_nothing(
        self, variant: str, recipe: Recipe, pool_of: Callable[..., Pool]
    ) -> None:
        method, data = make(variant, recipe), clients()
        pool = pool_of(method)
        killed: list[int] = []

        def kill(number: int) -> None:
            process = worker(pool, number % 2)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            killed.append(process.pid)

        engine = Simulation(pool, data, seed=7)
        assert same_outcome(rounds_of(method, engine, list(data), kill), engine, variant, recipe)
        assert len(set(killed)) == ROUNDS

    def test_a_job_that_ends_every_process_gets_a_sentence(self, recipe: Recipe, pool_of: Callable[..., Pool]) -> None:
        with pytest.raises(InputError, match=rf"for client 2 ended its process {TRIES} times \(exit code 7\)"):
            list(pool_of(make("fedavg", recipe)).run(deadly, {}, [1, 2, 3], ["client 1", "client 2", "client 3"]))

    def test_errors_come_back_as_they_are(self, recipe: Recipe, pool_of: Callable[..., Pool]) -> None:
        pool = pool_of(make("fedavg", recipe))
        with pytest.raises(InputError, match="must be 3, but it is 1"):
            list(pool.run(picky, {}, [1], ["one"]))
        with pytest.raises(WorkerError, match=r"KeyError.*in a worker process(.|\n)*in broken"):
            list(pool.run(broken, {}, [1], ["one"]))
        with pytest.raises(FileNotFoundError, match="no/such/file"):
            list(pool.run(lost, {}, [1], ["one"]))
        assert [rest for _, rest in pool.run(picky, {}, [3], ["three"])] == [3]  # and the pool goes on

    def test_all_workers_killed_at_once_are_replaced(self, recipe: Recipe, pool_of: Callable[..., Pool]) -> None:
        main, pool = sys.modules["__main__"], pool_of(make("fedavg", recipe), 4)
        results = pool.run(slow, {"a": {}}, [0.0, *[0.5] * 4], ["w"] * 5)
        next(results)
        for number in range(4):
            worker(pool, number).kill()
        assert [rest for _, rest in results] == [0.5] * 4
        assert sys.modules["__main__"] is main

    def test_results_come_in_order_and_need_not_all_be_wanted(
        self, recipe: Recipe, pool_of: Callable[..., Pool]
    ) -> None:
        pool, state = pool_of(make("fedavg", recipe)), {"a": {"x": torch.arange(5.0)}}
        waits = [0.3, 0.0, 0.1, 0.0]
        assert [rest for _, rest in pool.run(slow, state, waits, ["w"] * 4)] == waits
        first = pool.run(slow, state, [0.0, 9.0], ["w"] * 2)
        next(first)
        began = time.monotonic()
        first.close()  # type: ignore[attr-defined]
        (result, _), _ = pool.run(slow, state, [0.0, 0.0], ["w"] * 2)
        assert time.monotonic() - began < 5
        assert torch.equal(result["a"]["x"], 2 * torch.arange(5.0))

    def test_workers_share_the_state_and_cannot_change_it(self, recipe: Recipe, pool_of: Callable[..., Pool]) -> None:
        state = {"a": {"x": torch.zeros(4)}}
        pool = pool_of(make("fedavg", recipe), 1)
        seen = [rest for _, rest in pool.run(greedy, state, [1, 2, 3], ["w"] * 3)]
        assert float(state["a"]["x"].sum()) == 0
        assert [value for value, _ in seen] == [1.0, 2.0, 3.0]  # one worker sees its own scribbling ...
        assert [value for _, value in seen] == [0.0, 0.0, 0.0]  # ... and the file stays as it was

    def test_evaluation_is_the_same(self, dataset: Path, pool_of: Callable[..., Pool]) -> None:
        prepared = prepare(small(dataset))
        method, plan = prepared.method, EvaluationPlan(("none", "lp", "ft"), ("S", "M"), (0.05,), ADAPTATION)
        server = method.init(0)

        def timeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [{k: v for k, v in record.items() if k != "seconds"} for record in records]

        here = evaluate(InProcess(method), server, prepared.new, plan, 3)
        pool = evaluate(pool_of(method), server, prepared.new, plan, 3)
        assert len(here) == 2 * 2 * 6
        assert timeless(here) == timeless(pool)

    def test_ends_with_its_parent_and_leaves_nothing(self, tmp_path: Path) -> None:
        code = """
            import os, signal, sys, threading, time
            sys.path[:0] = {path!r}
            from fedbasis.methods import METHODS
            from fedbasis.methods.base import Task
            from fedbasis.engines.pool import Pool
            from fedbasis.networks.models import Network
            from fedbasis.networks.train import Preprocessing, Recipe
            from test_engines import slow, worker
            task = Task(Network("cnn-small", 3, 12), Recipe(preprocessing=Preprocessing(12)), 2)
            pool = Pool(METHODS["fedavg"].build(METHODS["fedavg"].Config(), task), ["cpu"] * 2)
            results = pool.run(slow, {{"a": {{}}}}, [0.0, 60.0, 60.0], ["a", "b", "c"])
            next(results)
            print(*(worker(pool, number).pid for number in range(2)), flush=True)
            print(pool._scratch, flush=True)
            time.sleep(60)
        """
        path = [str(Path(__file__).parent)]
        script = textwrap.dedent(code).format(path=path)
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        pids, scratch = [int(pid) for pid in child.stdout.readline().split()], Path(child.stdout.readline().strip())
        assert len(pids) == 2
        assert scratch.is_dir()
        child.kill()
        child.wait()
        child.stdout.close()
        ends = time.monotonic() + 10
        while time.monotonic() < ends and (any(alive(pid) for pid in pids) or scratch.exists()):
            time.sleep(0.05)
        assert not any(alive(pid) for pid in pids)
        assert not scratch.exists()


def worker(pool: Pool, number: int) -> BaseProcess:
    """A worker's process, as soon as it is there."""
    while (process := pool._workers[number].process) is None:
        time.sleep(0.01)
    return process


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[2] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def deadly(worker: WorkerContext, shared: State, item: int) -> Result:
    if item == 2:
        os._exit(7)
    return {}, item


def picky(worker: WorkerContext, shared: State, item: int) -> Result:
    if item != 3:
        raise InputError(f"The item must be 3, but it is {item}.")
    return {}, item


def broken(worker: WorkerContext, shared: State, item: int) -> Result:
    return {}, shared["nothing"]


def lost(worker: WorkerContext, shared: State, item: int) -> Result:
    return {}, Path("no/such/file").read_text()


def slow(worker: WorkerContext, shared: State, item: float) -> Result:
    time.sleep(item)
    return {group: {name: 2 * tensor for name, tensor in named.items()} for group, named in shared.items()}, item


def greedy(worker: WorkerContext, shared: State, item: int) -> Result:
    """Write into the shared state, and look at it once more where it came from."""
    shared["a"]["x"] += 1
    places = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/shared-" in line]
    again = mapped(Path(places[0]))
    return {}, (float(shared["a"]["x"][0]), float(again["a"]["x"][0]))


class TestLooks:
    """What is shared between looks must be what every client would have seen alone."""

    @pytest.mark.parametrize(("variant", "how"), [("fedavg", "none"), ("fedavg", "lp"), ("fedrod", "rod")])
    def test_a_shared_look_sees_what_a_look_of_its_own_sees(
        self, variant: str, how: str, recipe: Recipe, dataset: Path
    ) -> None:
        method = make(variant, recipe)
        server, _, _ = trained(variant, recipe)
        worker, found = WorkerContext(method), prepare(small(dataset)).new
        for client in [*found.values(), *found.values()]:
            look = SharedPredictions(worker, how)

            def validate(
                _: Context, learned: Tensors, client: Client = client, look: SharedPredictions = look
            ) -> float:
                return float(look(client.val, learned).sum())

            context, data = Context(7, client.id, worker.model), examples_of(client.train)
            outcome = personalize(method, server, how, data, context, ADAPTATION, validate)
            assert outcome.validation
            for images in (client.val, client.test):
                alone = method.serving.probabilities(
                    worker.model, outcome.last.learned, torch.from_numpy(images.pixels)
                )
                assert look(images, outcome.last.learned).tolist() == alone.argmax(1).tolist()
        sets = {images.key for client in found.values() for images in (client.val, client.test)}
        assert len(worker.cache) == len(sets) < 2 * len(found)  # clients of a domain share theirs

    def test_features_of_another_state_are_forgotten(self, recipe: Recipe) -> None:
        here = InProcess(make("fedavg", recipe))

        def note(worker: WorkerContext, shared: State, item: int) -> Result:
            known = dict(worker.cache)
            worker.cache["seen"] = item
            return {}, known

        assert [rest for _, rest in here.run(note, {}, [1, 2], ["a", "b"])] == [{}, {"seen": 1}]
        assert [rest for _, rest in here.run(note, {}, [3], ["c"])] == [{}]

    def test_the_head_of_features_is_the_prediction(self, recipe: Recipe) -> None:
        method, data = make("fedavg", recipe), shapes_examples(600, 0, seed=3)
        model = method.task.network.workspace()
        seen = passed(model.module, "fc", data.pixels, recipe.preprocessing)
        expected = predict(model.module, data.pixels, recipe.preprocessing)
        assert torch.equal(apply_head(model.module, "fc", seen.features), expected)


class TestChoice:
    def test_auto_is_a_pool_where_there_are_cores(self, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
        method = make("fedavg", recipe)
        for cores, expected in ((4, Pool), (1, InProcess)):
            monkeypatch.setattr(choice, "cores", lambda cores=cores: cores)
            with workers_for(method, Machine(device="cpu")) as workers:
                assert type(workers) is expected
        assert str(Pool(method, ["cpu"] * 3)) == "3 processes (3 on cpu)"
        assert str(InProcess(method)) == "1 process on cpu"

    def test_a_helper_process_has_no_pool_of_its_own(self, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(choice, "cores", lambda: 4)
        monkeypatch.setattr(multiprocessing.process.current_process(), "_config", {"daemon": True})
        with workers_for(make("fedavg", recipe), Machine(device="cpu")) as workers:
            assert type(workers) is InProcess

    def test_threads_leave_cores_for_fewer_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(choice, "cores", lambda: 8)
        assert devices_of(Machine(device="cpu")) == ["cpu"] * 8
        assert devices_of(Machine(device="cpu", threads=3)) == ["cpu"] * 2
        assert devices_of(Machine(device="cpu", workers=5)) == ["cpu"] * 5

    def test_gpus_are_shared_in_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(choice, "cores", lambda: 8)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert devices_of(Machine()) == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
        assert devices_of(Machine(workers=3)) == ["cuda:0", "cuda:1", "cuda:0"]


def test_serial_takes_examples_and_images_alike(recipe: Recipe, dataset: Path) -> None:
    prepared = prepare(small(dataset))
    method, name = prepared.method, prepared.benchmark.participating[0]
    images = prepared.training[name]
    server, examples = method.init(0), Examples(torch.from_numpy(images.pixels), torch.from_numpy(images.labels))
    sents = [
        next(iter(Serial(method, {name: data}, 0).map(server, [name], 0)))[1].tensors for data in (images, examples)
    ]
    assert same(*sents)
