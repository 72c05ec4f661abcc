"""A whole round of FedBasis beside a whole round of FedAvg with as many gradient steps, one thread.

    python benchmarks/basis_round.py            (some minutes; --quick for a look)

FedAvg trains two epochs; FedBasis spends one on the coefficients and one on the bases; both are sent and aggregated.
The K-fold way trains every basis in every step and sends them all, which gives the same bases.
"""

from typing import Any

import torch

from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.methods import METHODS
from fedbasis.methods.base import Method, Task
from fedbasis.methods.fedbasis.config import FedBasisConfig
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from measure import options, ratio, table, taking_turns
from plain import random_images, shared_out

NETWORKS = {
    "cnn-small, 28 px, 160 images, batch 16": (Network("cnn-small", 10, 28), 160, 16),
    "resnet10 of width 16, 32 px, 160 images, batch 16": (Network("resnet10", 7, 32), 160, 16),
    "cnn, 32 px, 500 images, batch 32": (Network("cnn", 10, 32), 500, 32),  # as in throughput.py
}
CLIENTS, K = 4, 4
BASES: dict[str, Any] = {"bases": K, "init": "random", "warm_start": 0.0}


class KFold(FedBasisConfig):
    """The settings of the K-fold way."""

    @property
    def factored(self) -> bool:
        """No: all bases are trained."""
        return False


def methods_of(network: Network, batch: int) -> dict[str, Method]:
    """Make the three ways to spend a client's steps."""
    one, two = (
        Recipe(preprocessing=Preprocessing(network.resolution), epochs=epochs, batch=batch) for epochs in (1, 2)
    )
    basis = METHODS["fedbasis"]
    return {
        "FedAvg": METHODS["fedavg"].build(None, Task(network, two, rounds=2)),
        "FedBasis": basis.build(FedBasisConfig(**BASES), Task(network, one, rounds=2)),
        "K-fold": basis.build(KFold(**BASES, upload="full", aggregation="mean"), Task(network, one, rounds=2)),
    }


def measured(network: Network, samples: int, batch: int, repeats: int) -> dict[str, float]:
    """Return the seconds a round of each."""
    data = shared_out(*random_images(CLIENTS * samples, network.resolution, network.classes), CLIENTS)
    rounds = {}
    for name, method in methods_of(network, batch).items():
        engine, server = Simulation(InProcess(method), data, 0), method.init(0)
        rounds[name] = lambda m=method, e=engine, s=server: m.aggregate(s, e.map(s, list(data), 0), 0)
    return taking_turns(rounds, repeats)


def main() -> None:
    given = options(__doc__)
    torch.set_num_threads(1)
    rows = []
    for name, (network, samples, batch) in NETWORKS.items():
        taken = measured(network, samples, batch, 2 if given.quick else 7)
        for kind, seconds in taken.items():
            limit = "1.08" if kind == "FedBasis" else ""
            rows.append([name, kind, f"{1000 * seconds:.0f}", ratio(seconds, taken["FedAvg"]), limit])
    print(table(["network", "method", "ms a round of 4 clients", "ratio to FedAvg", "at most"], rows, words=2))


if __name__ == "__main__":
    main()
