"""How the cost of a FedBasis round grows with K, with the model's size and with the clients, beside FedAvg's.

    python benchmarks/growth.py            (some minutes; --quick for a look, which writes no chart)

A round has as many gradient steps in both, as in ``basis_round.py``: one thread, a major basis, ResNet-10 at 32 pixels
of width 16 unless another is named, 4 clients of 160 images in batches of 16. Downloads are those of whole messages.
The chart is docs/assets/growth.svg.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from basis_round import BASES
from fedbasis.engines.download import Download, to_send
from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.methods import METHODS
from fedbasis.methods.base import Method, Task
from fedbasis.methods.fedbasis.config import FedBasisConfig
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.report import figures
from fedbasis.report.colors import OTHERS
from fedbasis.report.svg import standalone
from fedbasis.studies.drawing import drawn
from fedbasis.tensors.packed import packed
from fedbasis.tensors.params import nbytes
from measure import options, table, taking_turns
from plain import random_images, shared_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHART = Path(__file__).parents[1] / "docs" / "assets" / "growth.svg"
KS, WIDTHS, CLIENTS = (1, 2, 4, 8, 16), (8, 16, 32, 64), (4, 16, 64)
DOWNLOADS: tuple[Download, ...] = ("float32", "bfloat16", "compact")
Points = dict[float, float]


def network_of(width: int = 16) -> Network:
    return Network("resnet10", 7, 32, {"width": width})


def fedbasis(network: Network, k: int) -> Method:
    settings: dict[str, Any] = {**BASES, "bases": k}
    recipe = Recipe(preprocessing=Preprocessing(32), epochs=1, batch=16)
    return METHODS["fedbasis"].build(FedBasisConfig(**settings), Task(network, recipe, rounds=2))


def fedavg(network: Network) -> Method:
    return METHODS["fedavg"].build(
        None, Task(network, Recipe(preprocessing=Preprocessing(32), epochs=2, batch=16), rounds=2)
    )


def rounds_of(methods: dict[str, Method], clients: int, images: int, repeats: int) -> dict[str, float]:
    """Return the seconds a round of each, in turn."""
    data = shared_out(*random_images(clients * images, 32, 7), clients)
    calls = {}
    for name, method in methods.items():
        engine, server = Simulation(InProcess(method), data, 0), method.init(0)
        calls[name] = lambda m=method, e=engine, s=server: m.aggregate(s, e.map(s, list(data), 0), 0)
    return taking_turns(calls, repeats)


def by_bases(repeats: int) -> Points:
    network = network_of()
    taken = rounds_of({"": fedavg(network), **{str(k): fedbasis(network, k) for k in KS}}, 4, 160, repeats)
    return {k: taken[str(k)] / taken[""] for k in KS}


def by_size(repeats: int) -> Points:
    ratios = {}
    for width in WIDTHS:
        network = network_of(width)
        taken = rounds_of({"a": fedavg(network), "b": fedbasis(network, 4)}, 2, 80, repeats)
        ratios[sum(p.numel() for p in network.skeleton().parameters()) / 1e6] = taken["b"] / taken["a"]
    return ratios


def by_clients(repeats: int) -> Points:
    """Seconds a client of a FedBasis round, as a ratio to those of a round with the fewest."""
    method = fedbasis(network_of(), 4)
    taken = {n: rounds_of({"": method}, n, 32, repeats)[""] / n for n in CLIENTS}
    return {n: seconds / taken[CLIENTS[0]] for n, seconds in taken.items()}


def downloads(download: Download) -> Points:
    network, sizes = network_of(), {}
    for k in KS:
        method = fedbasis(network, k)
        server = method.init(0)
        near = {g: {n: server["major"][n] + 0.05 * t.abs() for n, t in named.items()} for g, named in server.items()}
        sizes[float(k)] = len(packed(to_send(method, near, download))) / nbytes({"": near["major"]})
    return sizes


def chart(bases: Points, size: Points, sent: dict[Download, Points]) -> "Figure":
    figure = figures.new_figure(2 * figures.WIDE, 2.4)
    panels: list[tuple[str, str, Mapping[str, Points]]] = [
        ("Time a round, by K", "FedBasis / FedAvg", {"": bases}),
        ("Time a round, by million weights", "FedBasis / FedAvg, K = 4", {"": size}),
        ("Download a round, by K", "models of float32", {str(kind): points for kind, points in sent.items()}),
    ]
    for place, (title, what, lines) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), place)
        for color, (name, points) in zip(OTHERS, lines.items(), strict=False):
            axes.plot(list(points), list(points.values()), marker="o", markersize=3, label=name, color=color)
        axes.set_title(title)
        axes.set_ylabel(what)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks := list(next(iter(lines.values()))), [f"{x:.2g}" for x in ticks])
        axes.set_ylim(0, None)
        if len(lines) > 1:
            axes.legend(frameon=False)
    return figure


def main() -> None:
    given = options(__doc__)
    torch.set_num_threads(1)
    repeats = 1 if given.quick else 5
    bases, size, clients = by_bases(repeats), by_size(repeats), by_clients(repeats)
    sent = {kind: downloads(kind) for kind in DOWNLOADS}
    rows = [[f"{k:g}", f"{bases[k]:.2f}", *(f"{sent[kind][k]:.2f}" for kind in DOWNLOADS)] for k in KS]
    print(table(["K", "time / FedAvg's", *(f"download, {kind}" for kind in DOWNLOADS)], rows))
    print(table(["million weights", "time / FedAvg's"], [[f"{n:.2f}", f"{ratio:.2f}"] for n, ratio in size.items()]))
    print(table(["clients a round", "time a client / that of 4"], [[f"{n:g}", f"{r:.2f}"] for n, r in clients.items()]))
    if not given.quick:
        CHART.write_text(
            standalone(drawn("growth", "Cost of a FedBasis round", lambda: chart(bases, size, sent), [], []).svg)
        )


if __name__ == "__main__":
    main()
