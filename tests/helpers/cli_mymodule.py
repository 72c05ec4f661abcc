"""A user's own network and method, in a file of the user's."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from fedbasis import About, FedAvg, MethodConfig
from fedbasis.methods.base import Insight, Update, ValueTable
from fedbasis.tensors.params import State


def network(classes: int, channels: int = 3, width: int = 6) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(3),
        nn.Flatten(), nn.Linear(9 * width, classes),
    )  # fmt: skip


with torch.random.fork_rng(devices=[]):
    torch.manual_seed(5)  # every process that imports this file has the same weights
    instance = network(3)


class MineConfig(MethodConfig):
    shrink: float = 0.99


class MineInsight(Insight):
    def diagnostics(self, server: State) -> dict[str, Any]:
        return {"length": float(sum(tensor.norm() for tensor in server["model"].values()))}

    def describe(self, published: State) -> list[ValueTable]:
        return [ValueTable(title="What mine is", columns=["shrink"], rows={"all": [self.method.config.shrink]})]


class Mine(FedAvg):
    """The mean, shrunk."""

    about: ClassVar[About] = replace(FedAvg.about, name="mine", title="My Own", paper="nobody")
    Config: ClassVar[type[MethodConfig]] = MineConfig
    insight_type: ClassVar[type[Insight]] = MineInsight

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        mean = super().aggregate(server, updates, seed)["model"]
        return {"model": {n: t * self.config.shrink if t.is_floating_point() else t for n, t in mean.items()}}
