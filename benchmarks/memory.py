"""What a pool of workers holds in memory while they train: a ResNet-18 with K + 1 = 5 bases as the server's state.

    python benchmarks/memory.py            (some minutes; --quick for a look)

The server's state should be in memory once, however many workers read it, and the server should hold one update at a
time, however many clients send one. Memory is counted as proportional set size (a page that n processes share counts
1/n for each), so figures of several processes add up. Every row is a run of its own in a fresh process.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from fedbasis.engines.pool import Pool
from fedbasis.engines.simulation import Simulation
from fedbasis.methods import METHODS
from fedbasis.methods.base import Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.tensors.params import nbytes
from measure import family, forget_peak, mebibytes, options, table
from plain import random_images, shared_out

SIZE, SAMPLES, BATCH, K = 32, 32, 16, 4
BASES: dict[str, Any] = {"bases": K, "init": "random", "warm_start": 0.0}
MIB = 2**20


def shared_file(processes: Iterable[int]) -> float:
    """Add up what processes hold of the file that the state is broadcast in, in MiB."""
    total = 0
    for process in processes:
        inside = False
        for line in (Path("/proc") / str(process) / "smaps").read_text(encoding="utf-8").splitlines():
            if "-" in line.split(" ", 1)[0]:  # a mapping begins: addresses, rights, ..., its file
                inside = "/shared-" in line
            elif inside and line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


class Watch(threading.Thread):
    """Look at the memory of this process and its family while a round is under way."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()
        self.workers = self.file = 0.0

    def run(self) -> None:
        """Look again and again."""
        while not self._over.wait(0.2):
            below = family(os.getpid())
            try:
                self.workers = max(self.workers, sum(mebibytes("Pss", process) for process in below))
                self.file = max(self.file, shared_file([os.getpid(), *below]))
            except OSError:
                continue  # one of them ended just now

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self.join()


def one_round(workers: int, clients: int) -> dict[str, float]:
    """Play a round and return what it held, in MiB."""
    torch.set_num_threads(1)
    task = Task(
        Network("resnet18", 7, SIZE), Recipe(preprocessing=Preprocessing(SIZE), epochs=1, batch=BATCH), rounds=2
    )
    method = METHODS["fedbasis"].build(METHODS["fedbasis"].Config(**BASES), task)
    data = shared_out(*random_images(clients * SAMPLES, SIZE, 7), clients)
    server, pool, watch = method.init(0), Pool(method, ["cpu"] * workers), Watch()
    sent = 0

    def updates() -> Any:
        nonlocal sent
        for client, update in Simulation(pool, data, 0).map(server, list(data), 0):
            sent = nbytes(update.tensors)
            yield client, update

    before = mebibytes("VmRSS")
    forget_peak()
    watch.start()
    try:
        after = method.aggregate(server, updates(), 0)
    finally:
        peak = mebibytes("VmHWM")
        watch.stop()
        pool.close()
    del after
    state, update = nbytes(server) / MIB, sent / MIB
    return {"state": state, "update": update, "file": watch.file, "workers": watch.workers, "server": peak - before}


def measured(workers: int, clients: int) -> dict[str, float]:
    """Play a round in a fresh process."""
    command = [sys.executable, __file__, "--workers", str(workers), "--clients", str(clients)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    said: dict[str, float] = json.loads(output)
    return said


def main() -> None:
    given = options(__doc__, workers={"type": int}, clients={"type": int})
    if given.workers is not None:
        print(json.dumps(one_round(given.workers, given.clients)))
        return
    rows = []
    for workers in (1, 2) if given.quick else (1, 2, 4):
        found = measured(workers, 2 * workers)
        cells = [f"{found['file']:.0f}", f"{found['file'] / found['state']:.2f}", "1.10"]
        rows.append([str(workers), *cells, f"{workers * found['state']:.0f}", f"{found['workers'] / workers:.0f}"])
    print(f"The state is {found['state']:.0f} MiB, an update {found['update']:.0f} MiB.\n")
    heads = ["workers", "state held by all, MiB", "ratio to the state", "at most", "a copy each, MiB"]
    print(table([*heads, "all of a worker, MiB"], rows, words=0))
    few, many = 2, 4 if given.quick else 12
    rows = []
    for clients in (few, many):
        found = measured(1, clients)
        above = found["server"]
        rows.append([str(clients), f"{above:.0f}", f"{above / found['state']:.2f}", f"{above / found['update']:.1f}"])
    heads = ["clients a round", "server's peak above its state, MiB", "in states", "in updates"]
    print(table(heads, rows, words=0))


if __name__ == "__main__":
    main()
