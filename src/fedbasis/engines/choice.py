"""Choose the workers: which engine, how many workers, on which devices; from the settings, or the best there is."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fedbasis.engines.base import Workers
from fedbasis.engines.in_process import InProcess
from fedbasis.methods.base import Method
from pflbed.errors import InputError
from pflbed.workers import cores

SHARE_A_DEVICE = 2
"""How many workers share an accelerator by default: while one prepares a batch, the other computes."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The settings of an engine.

    Args:
        engine: "serial", "pool", "ray", or "auto".
        workers: The number of workers; None: as many as fit.
        device: A torch device, or "auto".
        threads: The torch threads of every worker.
    """

    engine: str = "auto"
    workers: int | None = None
    device: str = "auto"
    threads: int = 1


def device_of(name: str) -> torch.device:
    """Return the torch device of this name; "auto" is an accelerator if there is one, else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        if torch.device(name).type == "meta":
            raise RuntimeError("it holds no numbers")
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"The device '{name}' must be a device of this machine, but it is not: {reason}; use auto or cpu."
        ) from error
    return torch.device(name)


def devices_of(machine: Machine) -> list[str]:
    """Choose a device for every worker of this machine; workers are spread evenly over several GPUs."""
    device = device_of(machine.device)
    if device.type == "cpu":
        return ["cpu"] * (machine.workers or max(1, cores() // machine.threads))
    devices = [str(device)]
    if device.type == "cuda" and device.index is None:
        devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    count = machine.workers or min(SHARE_A_DEVICE * len(devices), cores())
    return [devices[i % len(devices)] for i in range(count)]


@contextmanager
def workers_for(method: Method, machine: Machine) -> Iterator[Workers]:
    """Start workers, and stop them when the context ends."""
    workers = _workers(method, machine)
    try:
        yield workers
    finally:
        workers.close()


def _workers(method: Method, machine: Machine) -> Workers:
    if machine.engine == "ray":
        from fedbasis.engines.ray import Cluster

        return Cluster(method, machine.workers, machine.threads, machine.device)
    devices = devices_of(machine)
    daemon = multiprocessing.current_process().daemon  # a daemonic process may have no children
    if machine.engine == "serial" or (machine.engine == "auto" and (daemon or len(devices) == 1)):
        return InProcess(method, device_of(machine.device))
    from fedbasis.engines.pool import Pool

    return Pool(method, devices, machine.threads)
