"""A small bundle for tests without training, made once for all processes of a test run."""

import os
import shutil
import tempfile
import uuid
from functools import cache
from pathlib import Path

import torch

from fedbasis.edge.bundle import export_edge
from fedbasis.methods.base import Task
from fedbasis.methods.fedbasis import FedBasis
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.serving import artifact
from helpers.cli_images import CLASSES
from pflbed.lock import alone

RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
"""Processes of one test run have the same."""


@cache
def small_bundle() -> Path:
    """Bases of a small network that differ at random, and their graphs; do not change them."""
    folder = Path(tempfile.gettempdir()) / f"fedbasis-test-edge-{RUN}"
    folder.mkdir(exist_ok=True)
    with alone(folder / "lock"):
        if not (folder / "bases" / "edge.json").exists():
            shutil.rmtree(folder / "bases", ignore_errors=True)  # left by a process that was stopped
            write_bases(folder / "bases")
            export_edge(folder / "bases")
    return folder / "bases"


def write_bases(folder: Path, resolution: int = 8, norm: str = "batch") -> None:
    """Write untrained bases of cnn-small: noise around one model."""
    network = Network("cnn-small", len(CLASSES), resolution, {"norm": norm, "width": 4})
    pixels = Preprocessing(resolution)
    method = FedBasis.build(
        FedBasis.Config.model_validate({"bases": 2}), Task(network, Recipe(preprocessing=pixels), 2)
    )
    start, generator = network.initial(0), torch.Generator().manual_seed(1)

    def moved(name: str, tensor: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(tensor.shape, generator=generator)
        return tensor + (noise if "running" in name else 0.1 * tensor.std().nan_to_num(0) * (noise - 0.5))

    state = {g: {n: moved(n, t) for n, t in start.items()} for g in ("major", "basis_0", "basis_1")}
    card = artifact.Card(
        kind="bases", method="fedbasis", settings={"bases": 2}, architecture=artifact.describe(network),
        classes=list(CLASSES), preprocessing=artifact.describe_pixels(pixels),
    )  # fmt: skip
    method.serving.check(state)
    artifact.save(folder, state, card)
