"""What a user brings: a module with a network and a method of the user's own, and small images to train on."""

from pathlib import Path
from typing import Any

import numpy as np

import pflbed
from helpers.cli_images import draw

MODULE = Path(__file__).with_name("cli_mymodule.py").read_text(encoding="utf-8")
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


def write_installed(site: Path) -> Path:
    """Write a package of the user's with entry points, as pip would install it."""
    about = site / "my_package-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "my_package.py").write_text(MODULE, encoding="utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    entries = "[fedbasis.methods]\nmy-own = my_package:Mine\n[fedbasis.networks]\nmy-net = my_package:network\n"
    (about / "entry_points.txt").write_text(entries)
    return site


def write_module(folder: Path) -> Path:
    """Write the user's file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mymodule.py").write_text(MODULE, encoding="utf-8")
    return folder
