"""A user's script, without a guard ``if __name__ == "__main__"``: its method, factory and module work in a pool."""

import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedbasis.engines.base import Result, WorkerContext, Workers
from fedbasis.engines.in_process import InProcess
from fedbasis.engines.pool import Pool
from fedbasis.engines.simulation import Simulation
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Context, Method, Sent, Task
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples, Preprocessing
from fedbasis.networks.models import Network
from fedbasis.networks.optimizers import FlatAdam
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import State

SERVED: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedbasis": {"bases": 2, "coefficient_optimizer": "sgd"},
    "fedrod": {},
    "pfedhn": {"hidden": 8, "embedding": 3, "layers": 1},
}
STRENGTH = 0.5
RECIPE = Recipe(preprocessing=Preprocessing(12), epochs=1, batch=8, rate=0.05)


class Shrinking(FedAvg):
    """FedAvg with updates shrunk by a number of this script."""

    def client_update(
        self,
        received: State,
        state: State | None,
        data: Examples,
        context: Context,
        only: tuple[int, int] | None = None,
    ) -> tuple[Sent, State | None]:
        sent, kept = super().client_update(received, state, data, context, only)
        return shrunk(sent), kept


def shrunk(sent: Sent) -> Sent:
    tensors = {group: {name: STRENGTH * t for name, t in named.items()} for group, named in sent.tensors.items()}
    return replace(sent, tensors=tensors)


def factory(classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, classes))


@dataclass(frozen=True)
class Instance(Network):
    """A network that is a module instance."""

    module: nn.Module | None = None

    def _factory(self) -> Any:
        return lambda **_: deepcopy(self.module)


def data() -> dict[str, Examples]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (4, 12, 12, 12, 3), dtype=torch.uint8, generator=generator)
    return {f"client {i}": Examples(pixels[i], torch.arange(12) % 3) for i in range(4)}


def compiler(worker: WorkerContext, shared: State, item: int) -> Result:
    """Whether torch's compiler was imported."""
    return {}, "torch._dynamo" in sys.modules


def train(method: Method, workers: Workers) -> State:
    clients = data()
    engine, server = Simulation(workers, clients, seed=7), method.init(7)
    for number in range(2):
        server = method.aggregate(server, engine.map(server, list(clients), number), 7)
    return server


def methods() -> Iterator[Method]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(432, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    for network in (Network("__main__:factory", 3, 12), Instance("mine", 3, 12, module=module)):
        yield Shrinking.build(Shrinking.Config(), Task(network, RECIPE, 2))


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[g][n], other[g][n]) for g in one for n in one[g])


if "--run" in sys.argv:  # not a guard: a process that imported this script again would do it again
    with Path(sys.argv[-1]).open("a") as file:
        file.write("once\n")
    outcome: dict[str, list[bool]] = {"same": [], "compiler": []}
    for method in methods():
        pool = Pool(method, ["cpu"] * 2)
        outcome["same"].append(same(train(method, pool), train(method, InProcess(method))))
        outcome["compiler"] += [rest for _, rest in pool.run(compiler, {}, range(4), "abcd")]
        pool.close()
    for name, config in SERVED.items():
        made = METHODS[name].build(METHODS[name].Config(**config), Task(Network("cnn-small", 3, 12), RECIPE, 2))
        server, (first, *_) = made.serving.published(train(made, InProcess(made))), data().values()
        for how in ("lp", "ft", *made.ways.own):
            context = Context(7, "new", made.task.network.workspace())
            personalize(made, server, how, first, context, Adaptation(epochs=1, rate=0.05))
    coefficients = torch.zeros(3)
    coefficients.grad = torch.ones(3)
    FlatAdam(coefficients, 0.1).step()
    outcome["compiler"].append("torch._dynamo" in sys.modules)
    print(json.dumps(outcome))
