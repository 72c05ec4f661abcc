"""What the benchmarks share: taking turns, memory as the kernel counts it, and tables.

Every figure is a ratio of two things that took turns in one run, so that a busy machine slows both alike. Things that
need other threads or another environment take turns as processes of their own: a ``Player`` waits for its turn, plays
one round, and says how long it took.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

ANSWER = "answer: "
"""Before what a player says; whatever else it prints is for nobody."""
Rows = Sequence[Sequence[str]]


def options(doc: str | None, **more: dict[str, Any]) -> argparse.Namespace:
    """Read the command line: ``--quick``, and options of the benchmark's own."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short look: the ratios are rough")
    for name, settings in more.items():
        parser.add_argument(f"--{name}", **settings)
    return parser.parse_args()


def table(heads: Sequence[str], rows: Rows, words: int = 1) -> str:
    """Make a Markdown table whose first columns hold words and the others numbers."""
    rule = ["---" if column < words else "---:" for column in range(len(heads))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, rule, *rows)) + "\n"


def taking_turns(kinds: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Call functions in turn, each once to warm up and then so often; return the median seconds of each."""
    for call in kinds.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(repeats):
        for name, call in kinds.items():
            began = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in taken.items()}


class Player:
    """A process that plays a round whenever it is asked to."""

    def __init__(self, command: Sequence[str], threads: int = 1) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def play(self) -> dict[str, float]:
        """Ask for one round; return what the player says of it: its ``seconds``, and more if it likes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # the loop below finds that it has gone
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                said: dict[str, float] = json.loads(line.removeprefix(ANSWER))
                return said
        raise RuntimeError(f"its process ended with exit code {self._process.wait()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has gone already
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Turns:
    """The player's side: it waits for its turn before a round, and answers after it."""

    def begin(self) -> None:
        """Wait; nobody who could ask is there any more: leave."""
        if not sys.stdin.readline():
            raise SystemExit
        self._began = time.perf_counter()

    def end(self, **more: float) -> None:
        """Say how long the round took."""
        seconds = time.perf_counter() - self._began
        print(ANSWER + json.dumps({"seconds": seconds, **more}), flush=True)

    def next(self) -> None:
        """End a round and wait for the next one."""
        self.end()
        self.begin()

    def listen(self, event: object) -> None:
        """Take a training's events: when a round has ended, the next one waits for its turn."""
        from fedbasis.training.events import RoundEnded

        if isinstance(event, RoundEnded):
            self.next()


def play(
    commands: Mapping[str, Sequence[str]], repeats: int, threads: Mapping[str, int], warm_up: int = 2
) -> dict[str, float]:
    """Let players take turns; return the median seconds of each, after some rounds to warm up."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    with ExitStack() as stack:
        players = {name: stack.enter_context(Player(command, threads[name])) for name, command in commands.items()}
        for number in range(-warm_up, repeats):
            for name, player in players.items():
                seconds = player.play()["seconds"]
                if number >= 0:
                    taken[name].append(seconds)
    return {name: statistics.median(values) for name, values in taken.items()}


def mebibytes(name: str, process: int | str = "self") -> float:
    """Read one figure of a process's memory: ``VmRSS`` (now), ``VmHWM`` (its peak) or ``Pss`` (its fair share)."""
    place = Path("/proc") / str(process) / ("smaps_rollup" if name == "Pss" else "status")
    lines = place.read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) / 1024


def forget_peak() -> None:
    """From now on this process's ``VmHWM`` is its peak since now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def family(process: int) -> list[int]:
    """List the processes that descend from one."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended just now
        children.setdefault(parent, []).append(int(status.parent.name))
    found: list[int] = []
    ahead: list[int] = [process]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def ratio(value: float, other: float) -> str:
    """Write how many times the other one it is."""
    return f"{value / other:.2f}"


def put(page: str, name: str, text: str) -> str:
    """Return a page with what stands between the marks of a name replaced."""
    begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must hold '{begin}' and '{end}' once each")
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n{text.strip()}\n{end}{rest.partition(end)[2]}"
