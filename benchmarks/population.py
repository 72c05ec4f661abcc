"""What a large population costs: 10 clients a round out of a hundred, ten thousand and a million.

    python benchmarks/population.py            (about a minute; --quick for a look)

Every client's images are rows of one memory-mapped file and its name is made when it is asked for, as a lazy benchmark
does it, so whatever grows with the population is ours. FedAvg's clients keep nothing; Ditto's and APFL's keep a model
each, on disk. Every population is a process of its own that plays a round when it is its turn.
"""

import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray

from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.methods import METHODS
from fedbasis.methods.base import Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.training.events import Event, RoundEnded
from fedbasis.training.rounds import train
from fedbasis.training.runs import Run
from measure import Player, Turns, mebibytes, options, ratio, table
from pflbed import Images
from plain import PIXELS, random_images

POPULATIONS = (100, 10_000, 1_000_000)
NAMES = ("fedavg", "ditto", "apfl")
SAMPLED, SAMPLES, STORED = 10, 64, 4096


class Names(Sequence[str]):
    """So many names, none of them kept."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        return f"client-{index}"


class Population(Mapping[str, Images]):
    """The images of so many clients: rows of one file, each client's made when it is asked for."""

    def __init__(self, names: Names, pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        self._names, self._pixels, self._labels = names, pixels, labels

    def __getitem__(self, name: str) -> Images:
        rows = (int(name.removeprefix("client-")) * 7 + np.arange(SAMPLES)) % len(self._labels)
        return Images(self._pixels, rows, self._labels[rows])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def player(name: str, population: int) -> None:
    """Play rounds of a method with a population, and tell the peak of memory after each."""
    torch.set_num_threads(1)
    turns = Turns()
    task = Task(
        Network("plain:logistic", 10, PIXELS),
        Recipe(preprocessing=Preprocessing(PIXELS), epochs=1, batch=16),
        rounds=10**6,
    )
    method = METHODS[name].build(METHODS[name].Config(), task)
    with tempfile.TemporaryDirectory() as folder:
        pixels, labels = random_images(STORED, PIXELS)
        np.save(Path(folder) / "pixels.npy", pixels)
        del pixels
        names = Names(population)
        data = Population(names, np.load(Path(folder) / "pixels.npy", mmap_mode="r"), labels)
        engine = Simulation(InProcess(method), data, 0)

        def seen(event: Event) -> None:
            if isinstance(event, RoundEnded):
                turns.end(peak=mebibytes("VmHWM"))
                turns.begin()

        turns.begin()
        train(method, engine, names, 0, Run(Path(folder)), participation=SAMPLED, emit=seen)


def measured(name: str, rounds: int) -> dict[int, tuple[float, float]]:
    """Return the median seconds a round and the peak in MiB for every population; the first rounds warm up."""
    said: dict[int, list[dict[str, float]]] = {population: [] for population in POPULATIONS}
    with ExitStack() as stack:
        commands = {p: [sys.executable, __file__, "--player", name, "--population", str(p)] for p in POPULATIONS}
        players = {p: stack.enter_context(Player(command)) for p, command in commands.items()}
        for _ in range(rounds):
            for population, each in players.items():
                said[population].append(each.play())
    return {p: (statistics.median(s["seconds"] for s in told[2:]), told[-1]["peak"]) for p, told in said.items()}


def main() -> None:
    given = options(__doc__, player={"choices": NAMES}, population={"type": int})
    if given.player is not None:
        player(given.player, given.population)
        return
    rows = []
    for name in NAMES:
        found = measured(name, 6 if given.quick else 42)
        seconds, peak = found[POPULATIONS[0]]
        for population, (s, mib) in found.items():
            limit = "1.10" if population == POPULATIONS[-1] else ""
            cells = [f"{1000 * s:.0f}", ratio(s, seconds), f"{mib:.0f}", ratio(mib, peak), limit]
            rows.append([METHODS[name].about.title, f"{population:,}", *cells])
    heads = ["method", "clients", "ms a round", "ratio", "peak MiB", "ratio", "at most"]
    print(table(heads, rows))


if __name__ == "__main__":
    main()
