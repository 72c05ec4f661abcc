"""Killed at any moment and started again, a run ends with the bits of one that nobody stopped.

Every change that a training makes to its run folder is seen by Python as an audit event (a file is opened for writing,
renamed, removed). So a test can name a moment exactly, such as "when the second checkpoint is renamed", and the process
kills itself there with SIGKILL, before the change. The processes are forked from a server that has imported
everything, which makes a training of these tiny images a matter of a second.
"""

import contextlib
import functools
import itertools
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import fedbasis.experiment
import fedbasis.serving.artifact
import fedbasis.tensors.files
import fedbasis.training.rounds
from fedbasis import cli
from fedbasis.experiment import Observer
from fedbasis.experiment.config import read
from fedbasis.experiment.jobs import execute_all
from fedbasis.training.runs import Run, read_lines
from pflbed.errors import InputError

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "fedbasis.cli",
        "fedbasis.cli.display",
        "fedbasis.experiment",
        "sklearn.cluster",
        "pyarrow.parquet",
        "torch._dynamo",
    ]
)
CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "tempfile.mkstemp", "shutil.rmtree"})
WRITING = os.O_WRONLY | os.O_RDWR
METHODS = {
    "fedbasis": 'name = "fedbasis"\nbases = 2\nwarm_start = 0.5',
    "by step": 'name = "fedbasis"\nbases = 2\nwarm_start = 0.25\ncommunicate_every = "step"\nupload = "full"',
    "fedavg": 'name = "fedavg"',
}
CONFIG = """
seed = 3
data = {{ source = "{data}", resolution = 12, clients = 3, new_clients = 1, sizes = {{ S = 0.5, M = 1.0 }} }}
model = {{ options = {{ norm = "batch" }} }}
train = {{ rounds = {rounds}, epochs = 1, rate = 0.05, participation = 5 }}
personalize = {{ epochs = 2, rates = [0.01, 0.05] }}
machine = {{ device = "cpu", engine = "{engine}", workers = 2, checkpoint_seconds = 0.0 }}
[method]
{method}
"""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def watch(folder: str, when: Callable[[str, str], None]) -> None:
    """Call ``when(event, path)`` just before every change below a folder."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        writing = event == "open" and isinstance(args[2], int) and bool(args[2] & WRITING)
        if (writing or event in CHANGES) and folder in str(args[0]):
            when(event, str(args[0]))

    sys.addaudithook(hook)


def kill_at_change(number: int, folder: str) -> None:
    """Die before the so-and-so-many-th change of the folder."""
    seen = iter(range(1, number))
    watch(folder, lambda event, path: None if next(seen, 0) else die())


def kill_at(event: str, name: str, number: int, folder: str) -> None:
    """Die when the event happens to such a file for the so-many-th time."""
    seen = iter(range(1, number))

    def when(got: str, path: str) -> None:
        if got == event and name in path and not next(seen, 0):
            die()

    watch(folder, when)


def kill_in_tensors(number: int, folder: str) -> None:
    """Die when half the bytes of the so-many-th safetensors file are written."""
    seen, save = iter(range(1, number)), vars(fedbasis.tensors.files)["save_file"]

    def half(tensors: dict[str, Any], path: Path, metadata: dict[str, str]) -> None:
        save(tensors, path, metadata)
        if not next(seen, 0):
            os.truncate(path, path.stat().st_size // 2)
            die()

    vars(fedbasis.tensors.files)["save_file"] = half


def kill_in_line(module: str, number: int, folder: str) -> None:
    """Die when half of the so-many-th line of a log is written."""
    seen, target = iter(range(1, number)), vars(sys.modules[f"fedbasis.{module}"])
    append: Callable[[Path, dict[str, Any]], None] = target["append_line"]

    def half(path: Path, record: dict[str, Any]) -> None:
        if next(seen, 0):
            return append(path, record)
        with path.open("a", encoding="utf-8") as file:
            text = json.dumps(record)
            file.write(text[: len(text) // 2])
        return die()

    target["append_line"] = half


def work(argv: list[str], folder: Path, kill: Callable[[str], None] | None, cache: str) -> None:
    """What a child process does: the command line, with its output in files."""
    os.environ["FEDBASIS_CACHE"] = cache
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # a pool's workers are deaf, and come from there too
    sys.stdout, sys.stderr = (folder / "stdout").open("a"), (folder / "stderr").open("a")
    sys.argv = ["fedbasis", *argv]
    if kill is not None:
        kill(str(folder / "runs"))
    cli.main()


class Trial:
    """A configuration in a folder of its own, trained there by child processes."""

    def __init__(self, folder: Path, data: Path, method: str, rounds: int = 4, engine: str = "serial") -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        text = CONFIG.format(data=data, method=METHODS[method], rounds=rounds, engine=engine)
        self.config.write_text(text, encoding="utf-8")

    def start(self, kill: Callable[[str], None] | None = None) -> BaseProcess:
        """Begin to train in a child process."""
        argv = ["train", str(self.config), "--out", str(self.folder / "runs")]
        for name in ("stdout", "stderr"):
            (self.folder / name).write_text("")
        child = SERVER.Process(target=work, args=(argv, self.folder, kill, os.environ["FEDBASIS_CACHE"]))
        child.start()
        return child

    def train(self, kill: Callable[[str], None] | None = None) -> int | None:
        """Train in a child process, and return how it ended."""
        child = self.start(kill)
        child.join()
        return child.exitcode

    @property
    def run(self) -> Run:
        (folder,) = (self.folder / "runs").iterdir()
        return Run(folder)

    def has_trained(self) -> bool:
        """Whether two rounds are over."""
        return any(len(read_lines(Run(folder).metrics)) >= 2 for folder in (self.folder / "runs").glob("*"))

    @property
    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    @property
    def files(self) -> list[str]:
        return sorted(path.relative_to(self.run.folder).as_posix() for path in self.run.folder.rglob("*"))

    @property
    def contents(self) -> list[Path]:
        return [path for path in self.run.folder.rglob("*") if path.is_file()]

    def outcome(self) -> dict[str, Any]:
        """All that must not depend on where a run was stopped: everything but what was measured of the machine."""
        run = self.run
        content: dict[str, Any] = {name: (run.folder / name).read_bytes() for name in EXACT}
        for path in (run.metrics, run.evaluation):
            content[path.name] = [_timeless(line) for line in read_lines(path)]
        content["results"] = [_timeless(row) for row in json.loads(run.results.read_text())]
        return content


EXACT = (
    "bases/tensors.safetensors", "bases/card.json", "config.json", "done", "benchmark/card.json",
    "benchmark/manifest.parquet",
)  # fmt: skip
FILES = sorted([*EXACT, "bases", "benchmark", ".lock", "evaluation.jsonl", "metrics.jsonl", "results.json"])


def _timeless(record: dict[str, Any]) -> dict[str, str]:
    return {key: repr(value) for key, value in record.items() if key not in ("seconds", "peak_memory")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Callable[[str], dict[str, Any]]:
    """The outcome of every method's run that nobody stopped."""

    @functools.cache
    def outcome(method: str) -> dict[str, Any]:
        trial = Trial(tmp_path_factory.mktemp("uninterrupted"), dataset, method)
        assert trial.train() == 0, trial.errors
        assert trial.files == FILES
        return trial.outcome()

    return outcome


MOMENTS: dict[str, Callable[[str], None]] = {
    "nothing but the folder": functools.partial(kill_at, "open", ".lock", 1),
    "before the first checkpoint": functools.partial(kill_at, "tempfile.mkstemp", "checkpoint", 1),
    "half a checkpoint, warm-up": functools.partial(kill_in_tensors, 1),
    "half a checkpoint, bases": functools.partial(kill_in_tensors, 3),
    "a checkpoint is renamed": functools.partial(kill_at, "os.rename", "checkpoint", 2),
    "half a line of metrics": functools.partial(kill_in_line, "training.rounds", 3),
    "between metrics and checkpoint": functools.partial(kill_at, "tempfile.mkstemp", "checkpoint", 4),
    "half the bases": functools.partial(kill_in_tensors, 5),
    "the bases are renamed": functools.partial(kill_at, "os.rename", ".bases", 3),
    "evaluation begins": functools.partial(kill_at, "open", "evaluation.jsonl", 4),
    "half a line of evaluation": functools.partial(kill_in_line, "experiment", 5),
    "the results are renamed": functools.partial(kill_at, "os.rename", "results", 1),
    "the benchmark is written": functools.partial(kill_at, "os.rename", "manifest", 1),
    "before it is marked as done": functools.partial(kill_at, "os.rename", ".done", 1),
    "before the checkpoint is removed": functools.partial(kill_at, "os.remove", "checkpoint.safetensors", 5),
}


@pytest.mark.parametrize(
    ("method", "moment"),
    [
        *(("fedbasis", moment) for moment in list(MOMENTS)[::2]),  # the moments take turns
        *(("fedavg", moment) for moment in list(MOMENTS)[1::2]),
        ("by step", "between metrics and checkpoint"),
    ],
)
def test_killed_and_started_again_ends_with_the_same_bits(
    method: str, moment: str, tmp_path: Path, dataset: Path, uninterrupted: Callable[[str], dict[str, Any]]
) -> None:
    trial = Trial(tmp_path, dataset, method)
    assert trial.train(MOMENTS[moment]) == -signal.SIGKILL, trial.errors
    assert trial.train() == 0, trial.errors
    assert trial.outcome() == uninterrupted(method)
    assert trial.files == FILES  # neither a checkpoint nor anything half-written is left


@pytest.mark.parametrize("method", list(METHODS))
def test_killed_again_and_again_a_run_still_ends_with_the_same_bits(
    method: str, tmp_path: Path, dataset: Path, uninterrupted: Callable[[str], dict[str, Any]]
) -> None:
    trial, kills = Trial(tmp_path, dataset, method), 0
    for number in itertools.count(5, 9):  # every attempt is killed a little later than the one before
        ended = trial.train(functools.partial(kill_at_change, number))
        if ended == 0:
            break
        assert ended == -signal.SIGKILL, trial.errors
        kills += 1
    assert kills >= 4
    assert trial.outcome() == uninterrupted(method)
    assert trial.files == FILES


def test_killed_while_it_replaces_its_bases_a_run_has_them_whole_or_not_at_all(
    tmp_path: Path, dataset: Path, uninterrupted: Callable[[str], dict[str, Any]]
) -> None:
    trial = Trial(tmp_path, dataset, "fedbasis")
    assert trial.train(MOMENTS["evaluation begins"]) == -signal.SIGKILL
    published = (trial.run.bases / "card.json").read_bytes()
    for there, moment in (
        (True, functools.partial(kill_at, "os.rename", "/bases", 1)),
        (False, functools.partial(kill_at, "os.rename", ".bases", 3)),
        (False, functools.partial(kill_at, "shutil.rmtree", ".old.tmp", 1)),  # while it clears up after the last one
    ):
        assert trial.train(moment) == -signal.SIGKILL, trial.errors
        assert trial.run.bases.exists() == there
        if there:
            fedbasis.serving.artifact.load(trial.run.bases, "bases")
            assert (trial.run.bases / "card.json").read_bytes() == published
    assert trial.train() == 0, trial.errors
    assert trial.outcome() == uninterrupted("fedbasis")
    assert trial.files == FILES


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_stopped_from_outside_a_run_goes_on_after_its_last_round(
    number: signal.Signals, code: int, tmp_path: Path, dataset: Path
) -> None:
    trial = Trial(tmp_path, dataset, "fedavg", rounds=20)
    child = trial.start()
    wait_until(trial.has_trained)
    assert child.pid is not None
    os.kill(child.pid, number)
    child.join()
    assert child.exitcode == code, trial.errors
    assert not trial.run.done
    assert sentences(trial.errors) == (1 if number == signal.SIGINT else 0)
    finished = read_lines(trial.run.metrics)[-1]["round"]
    assert trial.train() == 0, trial.errors
    text = (trial.folder / "stdout").read_text()
    assert f"goes on after round {finished}/20" in text
    assert f"round {max(1, finished - 1):>3}/20" not in text  # at most the round whose checkpoint was not written yet
    assert [line["round"] for line in read_lines(trial.run.metrics)] == list(range(1, 21))


@pytest.mark.parametrize(("method", "number"), [("by step", signal.SIGKILL), ("fedbasis", signal.SIGINT)])
def test_a_pool_that_is_stopped_leaves_no_process_and_goes_on_with_the_same_bits(
    method: str,
    number: signal.Signals,
    tmp_path: Path,
    dataset: Path,
    uninterrupted: Callable[[str], dict[str, Any]],
) -> None:
    trial = Trial(tmp_path, dataset, method, engine="pool")
    child = trial.start()
    wait_until(trial.has_trained)
    assert child.pid is not None
    family = descendants(child.pid)
    assert len(family) >= 3  # two workers, and the process that they come from
    os.kill(child.pid, number)
    began = time.monotonic()
    child.join()
    assert time.monotonic() - began < 2
    assert child.exitcode == (130 if number == signal.SIGINT else -number), trial.errors
    wait_until(lambda: not family & running().keys())
    assert trial.train() == 0, trial.errors
    assert "works with 2 processes (2 on cpu)" in (trial.folder / "stdout").read_text()
    expected = uninterrupted(method)
    assert {**trial.outcome(), "config.json": None} == {**expected, "config.json": None}
    assert trial.files == FILES


def test_a_run_that_is_done_is_only_read(tmp_path: Path, dataset: Path) -> None:
    trial = Trial(tmp_path, dataset, "fedavg", rounds=2)
    assert trial.train() == 0, trial.errors
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in trial.contents}
    assert trial.train() == 0, trial.errors
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in trial.contents} == before
    text = (trial.folder / "stdout").read_text()
    assert "is already done" in text
    assert "FedAvg" in text
    assert "Personalized accuracy" in text
    assert "validation" not in text  # no round was trained


def test_a_second_training_of_the_same_run_is_refused(tmp_path: Path, dataset: Path) -> None:
    trial = Trial(tmp_path, dataset, "fedavg")
    assert trial.train(MOMENTS["half a checkpoint, warm-up"]) == -signal.SIGKILL
    with trial.run.locked():
        before = trial.files
        assert trial.train() == 2
        assert sentences(trial.errors) == 1
        assert f"another is training {trial.run.folder}" in trial.errors
        assert trial.files == before
    assert trial.train() == 0, trial.errors


def test_a_checkpoint_that_something_else_cut_short_gets_a_sentence(tmp_path: Path, dataset: Path) -> None:
    trial = Trial(tmp_path, dataset, "fedavg")
    assert trial.train(MOMENTS["half a checkpoint, bases"]) == -signal.SIGKILL
    checkpoint = trial.run.checkpoint
    whole = checkpoint.read_bytes()
    for keep in (0, 5, 1000, -8):
        checkpoint.write_bytes(whole[:keep])
        assert trial.train() == 2
        assert sentences(trial.errors) == 1
        assert f"The checkpoint {checkpoint} must be whole" in trial.errors
    checkpoint.unlink()  # as the sentence says
    assert trial.train() == 0, trial.errors


@pytest.mark.parametrize("room", [100, 20_000])
def test_a_full_disk_gets_a_sentence_and_the_run_goes_on_when_there_is_room(
    room: int, tmp_path: Path, dataset: Path, uninterrupted: Callable[[str], dict[str, Any]]
) -> None:
    uninterrupted("fedavg")
    trial = Trial(tmp_path, dataset, "fedavg")
    assert trial.train(functools.partial(limit_files, room)) == 2
    assert sentences(trial.errors) == 1, trial.errors
    assert "File too large" in trial.errors
    assert not [name for name in trial.files if name.endswith(".tmp")]
    assert not trial.run.done
    assert trial.train() == 0, trial.errors
    assert trial.outcome() == uninterrupted("fedavg")


def limit_files(room: int, folder: str) -> None:
    """Let the system refuse files above a size: the error of a full disk, without one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


DEMO = """
import sys
from pathlib import Path
from fedbasis import cli
from fedbasis.experiment import config, demo
plans = [config.read(Path(path)) for path in sys.argv[2:]]
demo.experiments = lambda seed, fast: plans
sys.argv = ["fedbasis", "demo", "--out", sys.argv[1] + "/runs", "--report", sys.argv[1] + "/report.html"]
cli.main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_stopped_experiments_leave_no_process_behind(
    number: signal.Signals, code: int, tmp_path: Path, dataset: Path
) -> None:
    configs = [tmp_path / f"{name}.toml" for name in ("fedavg", "fedbasis")]
    for path in configs:
        path.write_text(
            CONFIG.format(data=dataset, method=METHODS[path.stem], rounds=100_000, engine="auto"), encoding="utf-8"
        )
    with (tmp_path / "stderr").open("w") as errors:
        demo = subprocess.Popen(
            [sys.executable, "-c", DEMO, str(tmp_path), *map(str, configs)], start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip
    try:
        wait_until(lambda: len(list(tmp_path.glob("runs/*/metrics.jsonl"))) == 2 or demo.poll() is not None)
        assert demo.poll() is None, (tmp_path / "stderr").read_text()
        others = set(living(demo.pid)) - {demo.pid}
        assert len(others) >= 2
        if number == signal.SIGINT:
            for other in others:  # a terminal's Ctrl-C reaches every process, but only the first one acts on it
                os.kill(other, number)
            time.sleep(0.3)
            assert others <= set(living(demo.pid))
            os.killpg(demo.pid, number)
        else:
            os.kill(demo.pid, number)
        assert demo.wait(timeout=20) == code
        wait_until(lambda: not living(demo.pid))
    finally:
        if living(demo.pid):
            os.killpg(demo.pid, signal.SIGKILL)
    for folder in (tmp_path / "runs").iterdir():
        with Run(folder).locked():  # nobody trains it any more
            assert not Run(folder).done
    text = (tmp_path / "stderr").read_text()
    assert "Traceback" not in text
    if number == signal.SIGINT:
        assert sentences(text) == 1


def test_an_experiment_that_fails_ends_the_others_and_says_why(tmp_path: Path, dataset: Path) -> None:
    trial = Trial(tmp_path, dataset, "fedavg")
    assert trial.train(MOMENTS["half a checkpoint, warm-up"]) == -signal.SIGKILL
    config = tmp_path / "long.toml"
    config.write_text(
        CONFIG.format(data=dataset, method=METHODS["fedbasis"], rounds=100_000, engine="auto"), encoding="utf-8"
    )
    plans = [read(config), read(trial.config)]
    with trial.run.locked(), pytest.raises(InputError, match="another is training"):
        execute_all(plans, tmp_path / "runs", [Observer(), Observer()])
    assert multiprocessing.active_children() == []


def wait_until(happened: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def running() -> dict[int, int]:
    """All processes that have not ended, and their parents."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                found[int(stat.parent.name)] = int(parent)
    return found


def descendants(pid: int) -> set[int]:
    """The children of a process, their children, and so on."""
    parents, found = running(), {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def sentences(errors: str) -> int:
    """Count what a user is told: a line is a sentence."""
    assert "Traceback" not in errors
    return len([line for line in errors.splitlines() if line.strip()])


def living(session: int) -> list[int]:
    """List the processes of a session that still run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended just now
            state, _, _, its_session = status.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                found.append(int(status.parent.name))
    return found
