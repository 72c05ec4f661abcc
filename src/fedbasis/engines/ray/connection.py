"""A connection to a Ray cluster: to a running one, or to a local one that is started and stopped with it.

The cluster is the one that this program is already connected to, or the one at RAY_ADDRESS. If there is neither, Ray is
started here: it listens on the loopback interface only, has no dashboard, and sends no usage statistics.
"""

import contextlib
import logging
import math
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedbasis.engines.choice import SHARE_A_DEVICE
from pflbed.errors import InputError
from pflbed.workers import cores

ADDRESS = "RAY_ADDRESS"
PRIVATE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # despite its name, on every system: use the loopback interface
    "RAY_worker_niceness": "0",  # at Ray's default of 15 its workers starve beside any other process
}
"""Ray reads the second one when it is imported."""
CONNECT_SECONDS = 10.0


def library() -> Any:
    """Import Ray, which is an optional dependency."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise InputError(
            f"machine.engine 'ray' needs the package ray, but it cannot be imported ({error}); "
            "run pip install -e '.[ray]' in the checkout, or set machine.engine to 'pool'."
        ) from error
    return ray


def _running() -> bool:
    return "ray" in sys.modules and bool(library().is_initialized())


class RayConnection:
    """A connection to a Ray cluster.

    Args:
        cpus: The least number of CPUs of a cluster that is started here.
    """

    def __init__(self, cpus: int) -> None:
        running = _running()
        self.address = None if running else os.environ.get(ADDRESS)
        self._session: str | None = None
        self._ours = not running
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        if running:
            self.ray = library()
        elif self.address:
            try:
                _require_answer(self.address)
                self.ray = library()
                self.ray.init(self.address, **quiet)
            except InputError:
                raise
            except (RuntimeError, ValueError, OSError) as error:
                raise InputError(
                    f"{ADDRESS} must be the address of a Ray cluster that runs with this version of Ray and Python, "
                    f"but {self.address} is not ({_first_line(error)}); start one with 'ray start --head', give its "
                    f"token in RAY_AUTH_TOKEN if it wants one, or unset {ADDRESS}."
                ) from error
        else:
            with _environment(PRIVATE):
                self.ray = library()
                context = self.ray.init("local", num_cpus=max(cpus, cores()), include_dashboard=False, **quiet)
            self._session = context.address_info["session_dir"]

    def close(self) -> None:
        """Disconnect; if the cluster was started here, stop it and remove its logs."""
        if self._ours and self.ray.is_initialized():
            self.ray.shutdown()
        if self._session is not None:
            shutil.rmtree(self._session, ignore_errors=True)
        self._ours, self._session = False, None

    def __str__(self) -> str:
        machines = sum(node["Alive"] for node in self.ray.nodes())
        place = f"at {self.address}" if self.address else "of this machine" if self._session else "of this program"
        return f"the Ray cluster {place} ({machines} machine{'s' if machines > 1 else ''})"


@dataclass(frozen=True)
class Placement:
    """How many workers there are, and the resources of each."""

    count: int
    cpus: int
    gpus: float
    device: str


def placement_of(resources: dict[str, float], workers: int | None, threads: int, device: str) -> Placement:
    """Choose as many workers as fit into a cluster, or check that the requested ones do."""
    cpus, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    if ":" in device or (device == "cuda" and not gpus):
        raise InputError(
            f"With engine 'ray', machine.device must be auto, cpu, or cuda if the cluster has GPUs, which Ray "
            f"assigns, but it is '{device}' and the cluster has {gpus} GPUs; set it to auto."
        )
    fitting = cpus // threads
    if max(workers or 1, 1) > fitting:
        raise InputError(
            f"The Ray cluster must have room for machine.workers ({workers or 1}) of machine.threads ({threads}) CPUs "
            f"each, but it has {cpus} CPUs; lower these numbers or add machines."
        )
    if device == "cpu" or not gpus:
        return Placement(workers or fitting, threads, 0.0, "cpu" if device == "auto" else device)
    count = workers or min(SHARE_A_DEVICE * gpus, fitting)
    return Placement(count, threads, 1 / math.ceil(count / gpus), "cuda")


def _require_answer(address: str) -> None:
    """Fail at once if no cluster answers; Ray itself would retry for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables within the context; those that the user has set are not changed."""
    added = [name for name in values if name not in os.environ]
    os.environ.update({name: values[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
