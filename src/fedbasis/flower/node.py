"""The data of a node: its images, which never leave it, and its client states.

The paths are in the node's own configuration; nothing that a server sends is ever used as a path.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pflbed
from fedbasis.engines.client_state import ClientStates
from fedbasis.networks.inputs import Examples, examples_of
from pflbed.cache import decode
from pflbed.errors import InputError
from pflbed.folders import scan_client
from pflbed.images import Resolution
from pflbed.manifest import CARD


@dataclass(frozen=True)
class Node:
    """A node's name and folders."""

    name: str
    data: Path
    """A folder ``<class>/<image>``, or a benchmark of 'pflbed build' that has a client of this name."""
    state: Path
    """A folder for decoded images, client states and personal models."""

    @classmethod
    def configured(cls, config: Mapping[str, Any]) -> "Node":
        """Read a node configuration."""
        wrong = [key for key in ("name", "data", "state") if not isinstance(config.get(key), str) or not config[key]]
        if wrong:
            raise InputError(
                f"A node's configuration must give '{wrong[0]}' as text, but it does not; start the SuperNode with "
                '--node-config \'name="..." data="..." state="..."\'.'
            )
        node = cls(str(config["name"]), Path(config["data"]).expanduser(), Path(config["state"]).expanduser())
        if not node.data.is_dir():
            raise InputError(f"The data of node {node.name} must be a folder, but it is not; see its configuration.")
        return node

    def images(self, classes: Sequence[str], resolution: Resolution, channels: int = 3) -> Examples:
        """Return the node's images; they are decoded once and cached."""
        if (self.data / CARD).is_file():
            return self._benchmark_images(classes, resolution, channels)
        table = scan_client(self.data)
        if unknown := [name for name in table.class_names if name not in classes]:
            raise InputError(
                f"Every class folder of node {self.name} must be a class of the federation, but '{unknown[0]}' is not."
            )
        os.environ.setdefault("FEDBASIS_CACHE", str(self.state / "cache"))
        decoded = decode(self.data, table, resolution, channels=channels)
        known = np.array([classes.index(name) for name in decoded.table.class_names])
        labels = torch.from_numpy(known[decoded.table.labels])
        return Examples(torch.from_numpy(np.array(decoded.images)), labels)

    def _benchmark_images(self, classes: Sequence[str], resolution: Resolution, channels: int) -> Examples:
        clients = pflbed.load(self.data, resolution=resolution, channels=channels)
        if self.name not in clients or list(clients.benchmark.table.class_names) != list(classes):
            raise InputError(
                f"The benchmark of node {self.name} must have a client of this name and the federation's classes, "
                "but it does not; build it again or choose another."
            )
        return examples_of(clients[self.name].train)

    def place(self, run: str) -> Path:
        """Return the folder of one run; its name is hashed, so that a server cannot choose the path."""
        return self.state / "runs" / hashlib.sha256(run.encode()).hexdigest()[:24]

    def states(self, run: str, version: int, checkpoint: int) -> ClientStates:
        """Return the client states of a run, in the version that the server used.

        The server used the update of ``version`` and none after it, so newer states are deleted. It may resume from
        ``checkpoint``, so states that are older than that are deleted too.
        """
        states = ClientStates(self.place(run) / "client_states")
        states.rewind(version)
        states.touch(self.name)
        states.prune(min(version, checkpoint))
        return states
