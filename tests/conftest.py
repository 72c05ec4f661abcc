"""Tiny real models and images for all tests; one torch thread per process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from battery import QUICK, RECIPE
from fedbasis.networks.models import Network
from fedbasis.networks.train import Recipe
from shapes import write_images

pytest.register_assert_rewrite("methods.helpers")  # their assertions explain themselves, too
torch.set_num_threads(1)
settings.register_profile("steady", deadline=None, derandomize=True)  # no test is timed, and none depends on luck
settings.load_profile("steady")

LONGEST = (
    "test_federation.py",
    "test_every_method.py",
    "test_reproduce.py",
    "test_resume.py",
    "test_engines.py",
    "test_wheel.py",
    "test_ray.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests, so that at the end no process waits for another one's."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset folder <domain>/<class>/<image> with two domains and three classes."""
    root = tmp_path_factory.mktemp("shapes")
    for domain, name in enumerate(("chalk", "paint")):
        write_images(root / name, 40, domain, seed=domain)
    return root


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's cache; decoded images are shared within a session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBASIS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(scope="session")
def tiny() -> Network:
    """A network small enough for hundreds of steps a second, with BatchNorm."""
    return Network("cnn-small", 3, 12, {"norm": "batch"})


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    return RECIPE


@pytest.fixture(scope="session")
def quick() -> Recipe:
    """One epoch, for tests that learning hardly matters to."""
    return QUICK
