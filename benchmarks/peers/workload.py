"""The two workloads that all simulators play, and who plays them by hand and by fedbasis.

``logistic``: 64 images a client in batches of 16, one core. ``cnn``: 500 images a client in batches of 32, two cores.
Both are FedAvg with 10 of 100 clients a round and one epoch of SGD with momentum and weight decay.
"""

import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedbasis.engines.choice import Machine, workers_for
from fedbasis.engines.simulation import Simulation
from fedbasis.methods import METHODS
from fedbasis.methods.base import Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.training.rounds import train
from fedbasis.training.runs import Run
from measure import Turns
from pflbed import Images
from plain import Variant, fedavg_round, floats, prepared, random_images, shared_out

CLIENTS, SAMPLED, FOREVER = 100, 10, 10**6


@dataclass(frozen=True)
class Workload:
    """A network, what its clients hold, and how many cores it may use."""

    network: Network
    samples: int
    batch: int
    cores: int

    @functools.cached_property
    def images(self) -> dict[str, Images]:
        """Every client's images, as fedbasis takes them."""
        return shared_out(*random_images(CLIENTS * self.samples, self.network.resolution), CLIENTS)

    @functools.cached_property
    def ready(self) -> list[tuple[Tensor, Tensor]]:
        """Every client's images as normalized floats, as everybody else takes them."""
        return [floats(images) for images in self.images.values()]

    def model(self) -> nn.Module:
        """Build the network."""
        return self.network.build()


WORKLOADS = {
    "logistic": Workload(Network("plain:logistic", 10, 28), 64, 16, 1),
    "cnn": Workload(Network("cnn", 10, 32), 500, 32, 2),
}


def by_hand(workload: Workload, turns: Turns) -> None:
    """Play the loop that one writes by hand."""
    torch.set_num_threads(workload.cores)
    ready = workload.ready
    model, state = prepared(workload.model(), Variant())
    while True:
        turns.begin()
        chosen = [ready[i] for i in torch.randperm(CLIENTS)[:SAMPLED]]
        state = fedavg_round(model, state, chosen, workload.batch, Variant())
        turns.end()


def ours(workload: Workload, turns: Turns) -> None:
    """Play fedbasis' rounds, with everything that a run does by default."""
    torch.set_num_threads(1)
    recipe = Recipe(preprocessing=Preprocessing(workload.network.resolution), epochs=1, batch=workload.batch)
    method = METHODS["fedavg"].build(None, Task(workload.network, recipe, FOREVER))
    with (
        tempfile.TemporaryDirectory() as folder,
        workers_for(method, Machine(workers=workload.cores, device="cpu")) as workers,
    ):
        federation = Simulation(workers, workload.images, 0)
        turns.begin()
        train(method, federation, list(workload.images), 0, Run(Path(folder)), participation=SAMPLED, emit=turns.listen)
