"""What FedBasis costs beside FedAvg: time of an epoch, upload, peak memory. All ratios come from one run, interleaved.

    python benchmarks/cost.py            (about two minutes; --quick for a look)

Times are medians over alternating epochs of the same network on the same data, so that a busy machine slows all of
them alike. Peak memory is measured in a process of its own for every kind of epoch.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedbasis.methods import METHODS
from fedbasis.methods.base import Context, Task
from fedbasis.methods.fedbasis import coefficients
from fedbasis.methods.fedbasis import local_round as basis_round
from fedbasis.methods.fedbasis.learning import (
    CoefficientSettings,
    LocalWork,
    learn_coefficients,
    train_bases,
    train_factored,
)
from fedbasis.methods.fedbasis.received import ReceivedBases
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples, Preprocessing
from fedbasis.networks.models import Network
from fedbasis.networks.train import local_sgd
from fedbasis.tensors.params import nbytes
from fedbasis.tensors.seeding import torch_generator

NETWORKS = {
    "cnn-small, 28 px, batch 16": (Network("cnn-small", 10, 28), 16),
    "resnet10 of width 16, 32 px, batch 16": (Network("resnet10", 7, 32), 16),
}
MEMORY = (Network("resnet18", 7, 96), 16)
K = 4
KINDS = ("FedAvg", "basis epochs", "whole update")


def data_for(network: Network, count: int) -> Examples:
    generator = torch_generator("benchmark data")
    channels, height, width = network.input_shape
    pixels = torch.randint(0, 256, (count, height, width, channels), dtype=torch.uint8, generator=generator)
    return Examples(pixels, torch.randint(0, network.classes, (count,), generator=generator))


def epochs_of(network: Network, batch: int, count: int) -> dict[str, Callable[[], None]]:
    """Return one function per kind of epoch, all on the same data, model and batches."""
    data = data_for(network, count)
    recipe = Recipe(preprocessing=Preprocessing(network.resolution), epochs=1, batch=batch)
    model = network.workspace()
    layout = model.layout
    start = network.initial(0)
    received = ReceivedBases(layout, [network.initial(i) for i in range(K + 1)], True)
    bases = received.stacked()
    psi = torch.randn(len(layout.blocks), K, generator=torch_generator("psi"))
    c = coefficients.combination(coefficients.alpha(psi, 0.1), True)
    work = LocalWork(model, data, recipe)

    def fedavg() -> None:
        model.load(start)
        local_sgd(model, data, recipe, torch_generator("order"))

    def basis() -> None:
        received.combine_into(c, model)
        train_factored(work, c, torch_generator("order"), True)

    def learn() -> None:
        for _ in learn_coefficients(
            work, received, torch.zeros_like(psi), torch_generator("order"), CoefficientSettings()
        ):
            pass

    def naive() -> None:
        train_bases(work, bases, psi, 0.1, torch_generator("order"), True)

    return {
        "FedAvg epoch": fedavg,
        "basis epoch (factored)": basis,
        "coefficient epoch": learn,
        "basis epoch (K-fold)": naive,
    }


def times(epochs: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    for epoch in epochs.values():
        epoch()
    taken: dict[str, list[float]] = {name: [] for name in epochs}
    for _ in range(repeats):
        for name, epoch in epochs.items():
            began = time.perf_counter()
            epoch()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in taken.items()}


def upload_ratio(network: Network) -> float:
    task = Task(network, Recipe(preprocessing=Preprocessing(network.resolution), epochs=1), rounds=2)
    sent = []
    for name, config in (("fedavg", {}), ("fedbasis", {"bases": K, "init": "random", "warm_start": 0})):
        method = METHODS[name].build(METHODS[name].Config(**config), task)
        context = Context(0, "client", network.workspace())
        update, _ = method.client_update(method.init(0), None, data_for(network, 16), context)
        sent.append(nbytes(update.tensors))
    return sent[1] / sent[0]


def peak(kind: str) -> None:
    """Print the peak memory (MiB) of one client's update in this process, above its data and what it received.

    ``basis epochs`` looks at that part of the update alone, from the moment it begins to its end; ``whole update`` also
    at the coefficient epochs, which read the bases where they were received.
    """
    torch.set_num_threads(1)
    network, batch = MEMORY
    task = Task(network, Recipe(preprocessing=Preprocessing(network.resolution), epochs=1, batch=batch), rounds=2)
    settings: dict[str, Any] = {} if kind == "FedAvg" else {"bases": K, "init": "random", "warm_start": 0.0}
    name = "fedavg" if kind == "FedAvg" else "fedbasis"
    method = METHODS[name].build(METHODS[name].Config(**settings), task)
    received, context = method.init(0), Context(0, "client", network.workspace())
    data = data_for(network, 2 * batch)
    peaks: list[int] = []
    original = getattr(basis_round, "train_factored")  # noqa: B009

    def watched(*args: Any, **options: Any) -> Any:
        peaks.append(_memory("VmHWM"))
        _forget_peak()
        result = original(*args, **options)
        peaks.append(_memory("VmHWM"))
        return result

    setattr(basis_round, "train_factored", watched)  # noqa: B010
    _forget_peak()
    before = _memory("VmRSS")
    method.client_update(received, None, data, context)
    highest = peaks[-1] if kind == "basis epochs" else max([*peaks, _memory("VmHWM")])
    sys.stdout.write(f"{(highest - before) / 1024}\n")


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _memory(name: str) -> int:
    """Read a line of this process's memory, in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        peak(arguments.peak)
        return
    torch.set_num_threads(1)
    print(f"K = {K} and a major basis; torch {torch.__version__}, 1 thread\n")
    print("| network | kind | ms an epoch of 160 images | ratio to FedAvg |\n| --- | --- | ---: | ---: |")
    for name, (network, batch) in NETWORKS.items():
        measured = times(epochs_of(network, batch, 160), 5 if arguments.quick else 25)
        for kind, seconds in measured.items():
            print(f"| {name} | {kind} | {1000 * seconds:.1f} | {seconds / measured['FedAvg epoch']:.2f} |")
    print("\n| what | ratio to FedAvg |\n| --- | ---: |")
    for name, (network, _) in NETWORKS.items():
        print(f"| upload, {name.partition(',')[0]} | {upload_ratio(network):.4f} |")
    peaks = {kind: statistics.median(_peak_of(kind) for _ in range(1 if arguments.quick else 3)) for kind in KINDS}
    for kind in KINDS[1:]:
        sizes = f"{peaks[kind]:.0f} against {peaks['FedAvg']:.0f} MiB"
        print(f"| peak memory, {kind}, resnet18 at 96 px ({sizes}) | {peaks[kind] / peaks['FedAvg']:.2f} |")


def _peak_of(kind: str) -> float:
    command = [sys.executable, __file__, "--peak", kind]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
