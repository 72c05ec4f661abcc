"""Tiny real models and images, made here; one torch thread per process."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

from battery import QUICK, RECIPE
from fedbasis.networks.batches import Recipe
from fedbasis.networks.models import Network
from helpers import gone, wait_until
from helpers.cli_own import write_installed
from helpers.fork_server import share_fork_server
from pflbed.lock import alone
from pflbed.sources import digits4
from shapes import write_images

if TYPE_CHECKING:
    from fedbasis.engines.ray.connection import RayConnection

pytest.register_assert_rewrite("methods.helpers")  # their assertions explain themselves, too
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; the processes of tests would inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it, and those that are stopped by it would never end
share_fork_server()
settings.register_profile("steady", deadline=None, derandomize=True)  # no test is timed, and none depends on luck
settings.load_profile("steady")

LONGEST = (
    "test_federation.py",
    "test_every_method.py",
    "test_run.py",
    "test_ray.py",
    "test_bring_your_own.py",
    "test_execute.py",
    "test_wheel.py",
    "test_pool.py",
    "test_jobs.py",
    "test_fedbasis.py",
    "test_api.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that at the end no process waits for another one's."""
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
    """No test uses the user's cache, or another process': some damage theirs. Digits-4 is made once for all of them."""
    base = tmp_path_factory.getbasetemp()
    own = base / "cache"
    if "PYTEST_XDIST_WORKER" in os.environ:
        with alone(base.parent / "digits4.lock"):
            digits4.make(base.parent / "digits4")
        shutil.copytree(base.parent / "digits4", own, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBASIS_CACHE", str(own))
        yield


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installed package with a user's method and network; put it on the path to see them."""
    return write_installed(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="session")
def ray_connection(installed: Path) -> Iterator["RayConnection"]:
    """One Ray cluster of this machine for all tests, with CPUs for all workers that they have at once."""
    from fedbasis.engines.ray import connection

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("PYTHONPATH", os.pathsep.join([*sys.path, str(installed)]))  # workers import what tests define
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
    return RECIPE


@pytest.fixture(scope="session")
def quick() -> Recipe:
    """One epoch, for tests that learning hardly matters to."""
    return QUICK
