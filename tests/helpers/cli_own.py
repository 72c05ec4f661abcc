"""What a user brings: a module with a network and a method of the user's own, and small images to train on."""

from pathlib import Path
from typing import Any

import numpy as np

import pflbed
from helpers.cli_images import draw

MODULE = '''
"""A user's own network and method."""

from dataclasses import replace

from torch import nn

from fedbasis import FedAvg, MethodConfig
from fedbasis.methods.base import Insight, ValueTable


def network(classes, channels=3, width=6):
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(3),
        nn.Flatten(), nn.Linear(9 * width, classes),
    )


class MineConfig(MethodConfig):
    shrink: float = 0.99


class MineInsight(Insight):
    def diagnostics(self, server):
        return {"length": float(sum(tensor.norm() for tensor in server["model"].values()))}

    def describe(self, published):
        return [ValueTable(title="What mine is", columns=["shrink"], rows={"all": [self.method.config.shrink]})]


class Mine(FedAvg):
    """The mean, shrunk."""

    about = replace(FedAvg.about, name="mine", title="My Own", paper="nobody")
    Config = MineConfig
    insight_type = MineInsight

    def aggregate(self, server, updates, seed):
        mean = super().aggregate(server, updates, seed)["model"]
        return {"model": {n: t * self.config.shrink if t.is_floating_point() else t for n, t in mean.items()}}
'''
"""The user's file ``mymodule.py``."""

TOML = """
seed = 1
data = {{ source = "{data}", resolution = 12, clients = 2, new_clients = 1 }}
model = {{ name = "{network}" }}
train = {{ rounds = 2, epochs = 1, rate = 0.05 }}
personalize = {{ epochs = 2, rates = [0.01], ways = ["none", "ft"] }}
machine = {{ engine = "{engine}", workers = 2, device = "cpu" }}
[method]
name = "{method}"
"""


def own_clients(height: int = 12, width: int = 12, channels: int = 3, **spec: Any) -> pflbed.Clients:
    """Two domains of three shapes, as images of any size and number of channels (0: gray, without an axis)."""
    rng = np.random.default_rng(0)
    labels, domains = np.arange(180) % 3, np.arange(180) // 90
    drawn = [draw(int(label), int(domain), rng) for label, domain in zip(labels, domains, strict=True)]
    square = np.stack(drawn)
    across = np.tile(square, (1, 2, 2, 1 + channels // 3))[:, :height, :width]
    images = across[..., 0] if channels == 0 else across[..., :channels]
    return pflbed.from_arrays(
        np.ascontiguousarray(images), labels, domains=[("chalk", "paint")[d] for d in domains],
        classes=["circle", "cross", "square"], **{"clients": 2, "new": 1, **spec},
    )  # fmt: skip


def write_module(folder: Path) -> Path:
    """Write the user's file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mymodule.py").write_text(MODULE, encoding="utf-8")
    return folder
