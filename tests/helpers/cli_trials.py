"""Train in child processes that can be killed at a named moment.

Every change that a training makes to its run folder is seen by Python as an audit event (a file is opened for writing,
renamed, removed). So a test can name a moment exactly, such as "when the second checkpoint is renamed", and the process
kills itself there with SIGKILL, before the change. The processes are forked from a server that has imported
everything, which makes a training of these tiny images a matter of a second.
"""

import contextlib
import functools
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import fedbasis.experiment
import fedbasis.tensors.files
import fedbasis.training.rounds
from fedbasis import cli
from fedbasis.training.runs import Run, read_lines
from helpers import MINUTES as MINUTES  # noqa: PLC0414  (tests import them from here)
from helpers import wait_until as wait_until  # noqa: PLC0414

SERVER = multiprocessing.get_context("forkserver")


CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "tempfile.mkstemp", "shutil.rmtree"})


WRITING = os.O_WRONLY | os.O_RDWR
"""Longer than anything takes that happens at all; no test that passes waits for it."""


METHODS = {
    "fedbasis": 'name = "fedbasis"\nbases = 2\nwarm_start = 0.5',
    "by step": 'name = "fedbasis"\nbases = 2\nwarm_start = 0.25\ncommunicate_every = "step"\nupload = "full"',
    "fedavg": 'name = "fedavg"',
}


CONFIG = """
seed = 3
data = {{ source = "{data}", resolution = 12, clients = 2, new_clients = 1, sizes = {{ M = 1.0 }} }}
model = {{ options = {{ norm = "batch" }} }}
train = {{ rounds = {rounds}, epochs = 1, rate = 0.05, participation = 3 }}
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


def hold_after(rounds: int, folder: str) -> None:
    """Wait after so many rounds for the signal that ends the process, however late on a busy machine it comes."""

    def when(event: str, path: str) -> None:
        while event == "open" and path.endswith("metrics.jsonl") and len(read_lines(Path(path))) >= rounds:
            time.sleep(0.1)

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


def limit_files(room: int, folder: str) -> None:
    """Let the system refuse files above a size: the error of a full disk, without one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


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
    "bases/tensors.safetensors", "bases/card.json", "config.json", "method.json", "done", "benchmark/card.json",
    "benchmark/manifest.parquet",
)  # fmt: skip


FILES = sorted([*EXACT, "bases", "benchmark", ".lock", "evaluation.jsonl", "metrics.jsonl", "results.json"])


def _timeless(record: dict[str, Any]) -> dict[str, str]:
    return {key: repr(value) for key, value in record.items() if key not in ("seconds", "peak_memory")}


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
    "half a line of evaluation": functools.partial(kill_in_line, "experiment", 3),
    "the results are renamed": functools.partial(kill_at, "os.rename", "results", 1),
    "the benchmark is written": functools.partial(kill_at, "os.rename", "manifest", 1),
    "before it is marked as done": functools.partial(kill_at, "os.rename", ".done", 1),
    "before the checkpoint is removed": functools.partial(kill_at, "os.remove", "checkpoint.safetensors", 5),
}


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


def living(session: int) -> list[int]:
    """List the processes of a session that still run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended just now
            state, _, _, its_session = status.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                found.append(int(status.parent.name))
    return found


def sentences(errors: str) -> int:
    """Count what a user is told: a line is a sentence."""
    assert "Traceback" not in errors
    return len([line for line in errors.splitlines() if line.strip()])
