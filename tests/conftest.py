"""Tiny real models and images, made here; one torch thread per process."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

from fedbasis.networks.models import Network
from fedbasis.networks.train import Examples, Preprocessing, Recipe
from helpers import gone, wait_until

if TYPE_CHECKING:
    from fedbasis.engines.ray.connection import RayConnection

torch.set_num_threads(1)
settings.register_profile("steady", deadline=None, derandomize=True)  # no test is timed, and none depends on luck
settings.load_profile("steady")

LONGEST = (
    "test_federation.py",
    "test_methods.py",
    "test_reproduce.py",
    "test_resume.py",
    "test_pool.py",
    "test_wheel.py",
    "test_ray.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests, so that at the end no process waits for another one's."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


CLASSES = ("circle", "cross", "square")


def draw(label: int, domain: int, rng: np.random.Generator, size: int = 12) -> np.ndarray:
    """Draw a small real shape: the class is its form, the domain its colours and noise."""
    canvas = np.zeros((size, size), dtype=bool)
    y, x = np.mgrid[:size, :size]
    cy, cx = rng.uniform(4.5, 6.5, 2)
    radius = rng.uniform(3.0, 4.0)
    distance = np.hypot(y - cy, x - cx)
    if label == 0:
        canvas = np.abs(distance - radius) < 1.0
    elif label == 1:
        canvas = (np.abs(y - cy) < 1.0) | (np.abs(x - cx) < 1.0)
    else:
        canvas = (np.maximum(np.abs(y - cy), np.abs(x - cx)) - radius + 0.5).__abs__() < 0.8
    ink, paper = ((230, 230, 230), (20, 20, 20)) if domain == 0 else ((40, 90, 200), (250, 220, 120))
    image = np.where(canvas[..., None], np.array(ink), np.array(paper)) + rng.normal(0, 12, (size, size, 3))
    return np.clip(image, 0, 255).astype(np.uint8)


def shapes_examples(count: int, domain: int = 0, seed: int = 0, classes: int = 3) -> Examples:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    pixels = np.stack([draw(int(label), domain, rng) for label in labels])
    return Examples(torch.from_numpy(pixels), torch.from_numpy(labels))


def write_images(root: Path, per_class: int, domain: int = 0, seed: int = 0, classes: int = 3) -> Path:
    """Write a client's folder <class>/<image>."""
    rng = np.random.default_rng(seed)
    for label, name in enumerate(CLASSES[:classes]):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(per_class):
            Image.fromarray(draw(label, domain, rng)).save(root / name / f"{i:03d}.png")
    return root


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset folder <domain>/<class>/<image> with two domains and three classes."""
    root = tmp_path_factory.mktemp("shapes")
    for domain, name in enumerate(("chalk", "paint")):
        write_images(root / name, 40, domain, seed=domain)
    return root


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache; decoded images are shared within a session."""
    monkeypatch.setenv("FEDBASIS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def ray_connection() -> Iterator["RayConnection"]:
    """One Ray cluster of this machine for all tests, with CPUs for all workers that they have at once."""
    from fedbasis.engines.ray import connection

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # workers import the tests' functions
        before = children()
        made = connection.RayConnection(cpus=8)
    session = Path(made.ray.get_runtime_context().worker.node.get_session_dir_path())
    started = children() - before
    assert session.is_dir()
    assert made.ray.util.get_node_ip_address() == "127.0.0.1"  # nobody else can reach it
    assert not set(connection.PRIVATE) & set(os.environ)
    yield made
    made.close()
    assert not made.ray.is_initialized()
    assert not session.exists()
    wait_until(lambda: all(gone(pid) for pid in started))


def children() -> set[int]:
    """The children of this process (known on Linux alone)."""
    return {int(pid) for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()}


@pytest.fixture(scope="session")
def tiny() -> Network:
    """A network small enough for hundreds of steps a second, with BatchNorm."""
    return Network("cnn-small", 3, 12, {"norm": "batch"})


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    return Recipe(preprocessing=Preprocessing(12), epochs=2, batch=8, rate=0.05, momentum=0.9, decay=1e-2)
