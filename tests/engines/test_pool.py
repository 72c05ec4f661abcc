"""Workers in other processes give the bits of this one, however many there are and whichever is killed."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from battery import ROUNDS, VARIANTS, clients, make, same, trained
from fedbasis.engines.base import Result, WorkerContext
from fedbasis.engines.in_process import InProcess
from fedbasis.engines.pool import TRIES, Pool, WorkerError
from fedbasis.engines.simulation import Simulation
from fedbasis.experiment import prepare
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Method, Sent, Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.models import Network
from fedbasis.serving.evaluation import EvaluationPlan, evaluate
from fedbasis.tensors.packed import mapped
from fedbasis.tensors.params import State
from helpers import MINUTES, gone, wait_until
from helpers.other_method import ForMethod
from pflbed.errors import InputError
from small_experiments import small

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


@pytest.fixture(scope="module")
def pool(recipe: Recipe) -> Iterator[Pool]:
    """Two workers, for tests in which the method does not matter."""
    made = Pool(make("fedavg", recipe), ["cpu"] * 2)
    yield made
    made.close()


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


def pids(pool: Pool) -> list[int]:
    """The workers' processes, as soon as all are there."""
    wait_until(lambda: all(worker.process.pid is not None for worker in pool._workers))
    return [worker.process.pid or 0 for worker in pool._workers]


class TestSameBits:
    @pytest.mark.parametrize("variant", ONE_EACH)
    def test_for_every_method(self, variant: str, quick: Recipe, pool: Pool) -> None:
        method, data = make(variant, quick), clients()
        engine = Simulation(ForMethod(pool, method), data, seed=7)
        assert same_outcome(rounds_of(method, engine, list(data)), engine, variant, quick)

    @pytest.mark.parametrize("workers", [1, 3])
    def test_with_any_number_of_workers(self, workers: int, quick: Recipe, pool_of: Callable[..., Pool]) -> None:
        method, data = make("apfl", quick), clients()
        engine = Simulation(pool_of(method, workers), data, seed=7)
        assert same_outcome(rounds_of(method, engine, list(data)), engine, "apfl", quick)

    @pytest.mark.parametrize("variant", ["ditto", "fedbasis"])
    def test_with_a_worker_killed_in_the_middle_of_a_round(
        self, variant: str, recipe: Recipe, pool_of: Callable[..., Pool]
    ) -> None:
        method, data = make(variant, recipe), clients()
        pool = pool_of(method)
        killed: list[int] = []

        def kill(number: int) -> None:
            alive = [pid for pid in pids(pool) if not gone(pid)]
            killed.append(alive[number % len(alive)])
            os.kill(killed[-1], signal.SIGKILL)

        engine = Simulation(pool, data, seed=7)
        assert same_outcome(rounds_of(method, engine, list(data), kill), engine, variant, recipe)
        assert len(set(killed)) == ROUNDS

    def test_in_evaluation(self, dataset: Path, pool_of: Callable[..., Pool]) -> None:
        prepared = prepare(small(dataset))
        method, plan = (
            prepared.method,
            EvaluationPlan(ways=("none", "lp", "ft"), sizes=("S", "M"), rates=(0.05,), adaptation=ADAPTATION),
        )
        server = method.init(0)

        def timeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [{k: v for k, v in record.items() if k not in ("seconds", "peak_memory")} for record in records]

        here = evaluate(InProcess(method), server, prepared.new, plan, 3)
        there = evaluate(pool_of(method), server, prepared.new, plan, 3)
        assert len(here) == 2 * 2 * 6
        assert timeless(here) == timeless(there)


class TestTasks:
    def test_results_come_in_order(self, pool: Pool, tmp_path: Path) -> None:
        state, last = {"a": {"x": torch.arange(5.0)}}, str(tmp_path / "last")
        items = [("", last), ("", ""), ("", ""), (last, "")]
        results = list(pool.run(signalled, state, items, "abcd"))  # the first is done after the last
        assert [rest for _, rest in results] == items
        assert all(torch.equal(result["a"]["x"], 2 * torch.arange(5.0)) for result, _ in results)

    def test_results_need_not_all_be_wanted(self, pool: Pool, tmp_path: Path) -> None:
        never = str(tmp_path / "never")
        results = cast(Generator[Result], pool.run(signalled, {}, [("", ""), ("", never), ("", never)], "abc"))
        next(results)
        busy = pids(pool)
        results.close()
        wait_until(lambda: all(gone(pid) for pid in busy))
        assert len(list(pool.run(signalled, {}, [("", "")] * 2, "ab"))) == 2

    def test_all_workers_killed_at_once_are_replaced(
        self, recipe: Recipe, pool_of: Callable[..., Pool], tmp_path: Path
    ) -> None:
        main, pool = sys.modules["__main__"], pool_of(make("fedavg", recipe), 4)
        begun = [tmp_path / str(number) for number in range(4)]
        go = tmp_path / "go"
        results = pool.run(signalled, {}, [("", ""), *((str(path), str(go)) for path in begun)], "abcde")
        next(results)
        wait_until(lambda: all(path.exists() for path in begun))
        for pid in pids(pool):
            os.kill(pid, signal.SIGKILL)
        go.touch()
        assert [rest[0] for _, rest in results] == [str(path) for path in begun]
        assert sys.modules["__main__"] is main

    def test_workers_share_the_state_and_cannot_change_it(self, recipe: Recipe, pool_of: Callable[..., Pool]) -> None:
        state = {"a": {"x": torch.zeros(4)}}
        one = pool_of(make("fedavg", recipe), 1)
        seen = [rest for _, rest in one.run(greedy, state, [1, 2, 3], ["w"] * 3)]
        assert float(state["a"]["x"].sum()) == 0
        assert [value for value, _ in seen] == [1.0, 2.0, 3.0]  # one worker sees its own changes ...
        assert [value for _, value in seen] == [0.0, 0.0, 0.0]  # ... and the file stays as it was


class TestErrors:
    def test_a_task_that_ends_every_process_gets_a_sentence(self, pool: Pool) -> None:
        names = ["client 1", "client 2", "client 3"]
        with pytest.raises(InputError, match=rf"of client 2 ended its process {TRIES} times \(exit code 7\)\.$"):
            list(pool.run(deadly, {}, [1, 7, 3], names))
        with pytest.raises(InputError, match=r"of client 3 .* \(exit code -9\); there may be too little memory"):
            list(pool.run(deadly, {}, [1, 1, -9], names))

    def test_errors_come_back_as_they_are(self, pool: Pool) -> None:
        with pytest.raises(InputError, match="must be 3, but it is 1"):
            list(pool.run(picky, {}, [1], ["one"]))
        with pytest.raises(WorkerError, match=r"KeyError.*in a worker process(.|\n)*in broken"):
            list(pool.run(broken, {}, [1], ["one"]))
        with pytest.raises(FileNotFoundError, match="no/such/file"):
            list(pool.run(lost, {}, [1], ["one"]))
        with pytest.raises(WorkerError, match="cannot pickle"):
            list(pool.run(unsendable, {}, [1], ["one"]))
        assert [rest for _, rest in pool.run(picky, {}, [3], ["three"])] == [3]  # and the pool goes on

    @pytest.mark.parametrize(
        ("network", "kind", "message"),
        [
            (Network("no_such_module:factory", 3, 12), InputError, "^The network .* must be importable"),
            (Network("cnn-small", 3, 12, {"depth": 3}), InputError, "does not take these options"),
            (Network(f"{__name__}:failing_factory", 3, 12), WorkerError, r"KeyError\('no such layer'\)(.|\n)*line"),
        ],
    )
    def test_what_fails_while_a_worker_is_built_is_told(
        self, network: Network, kind: type[Exception], message: str, recipe: Recipe, pool_of: Callable[..., Pool]
    ) -> None:
        method = METHODS["fedavg"].build(METHODS["fedavg"].Config(), Task(network, recipe, 2))
        with pytest.raises(kind, match=message):
            list(pool_of(method).run(picky, {}, [3], ["three"]))


class TestProcesses:
    def test_a_users_script_works_and_is_run_once(self, tmp_path: Path) -> None:
        """Its method, its factory and its module instance; and torch's compiler is imported nowhere."""
        script, times = Path(__file__).with_name("user_script.py"), tmp_path / "times"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(script), "--run", str(times)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        assert times.read_text() == "once\n"
        outcome = json.loads(done.stdout)
        assert outcome["same"] == [True, True]
        assert outcome["compiler"] == [False] * 9

    def test_they_end_with_their_parent_and_leave_nothing(self) -> None:
        code = """
            import sys
            sys.path[:0] = {path!r}
            from fedbasis.methods import METHODS
            from fedbasis.methods.base import Task
            from fedbasis.engines.pool import Pool
            from fedbasis.networks.models import Network
            from fedbasis.networks.batches import Recipe
            from fedbasis.networks.inputs import Preprocessing
            from test_pool import pids, signalled
            task = Task(Network("cnn-small", 3, 12), Recipe(preprocessing=Preprocessing(12)), 2)
            pool = Pool(METHODS["fedavg"].build(METHODS["fedavg"].Config(), task), ["cpu"] * 2)
            results = pool.run(signalled, {{}}, [("", ""), ("", "/never"), ("", "/never")], "abc")
            next(results)
            print(*pids(pool), flush=True)
            print(pool._scratch, flush=True)
            next(results)
        """
        path = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
        script = textwrap.dedent(code).format(path=path)
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        workers, scratch = [int(pid) for pid in child.stdout.readline().split()], Path(child.stdout.readline().strip())
        assert len(workers) == 2
        assert scratch.is_dir()
        child.kill()
        child.wait()
        child.stdout.close()
        wait_until(lambda: all(gone(pid) for pid in workers) and not scratch.exists())


def failing_factory(classes: int) -> nn.Module:
    raise KeyError("no such layer")


def deadly(worker: WorkerContext, shared: State, item: int) -> Result:
    if item == 7:
        os._exit(7)
    if item == -9:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}, item


def picky(worker: WorkerContext, shared: State, item: int) -> Result:
    if item != 3:
        raise InputError(f"The item must be 3, but it is {item}.")
    return {}, item


def broken(worker: WorkerContext, shared: State, item: int) -> Result:
    return {}, shared["nothing"]


def lost(worker: WorkerContext, shared: State, item: int) -> Result:
    return {}, Path("no/such/file").read_text()


def unsendable(worker: WorkerContext, shared: State, item: int) -> Result:
    return {}, iter([(one for one in [1])])


def signalled(worker: WorkerContext, shared: State, item: tuple[str, str]) -> Result:
    """Make the first file, wait for the second, and return the doubled state; no name is no file."""
    made, awaited = item
    if made:
        Path(made).touch()
    until = time.monotonic() + 10 * MINUTES
    while awaited and not Path(awaited).exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return {group: {name: 2 * tensor for name, tensor in named.items()} for group, named in shared.items()}, item


def greedy(worker: WorkerContext, shared: State, item: int) -> Result:
    """Write into the shared state, and read it once more from its file."""
    shared["a"]["x"] += 1
    places = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/shared-" in line]
    again = mapped(Path(places[0]))
    return {}, (float(shared["a"]["x"][0]), float(again["a"]["x"][0]))
