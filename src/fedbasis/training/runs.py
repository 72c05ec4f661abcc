"""A run is a folder named by the hash of its configuration: config, metrics, evaluation, checkpoint, bases, done.

Everything in it appears whole or not at all, so a run can be killed at any moment and started again: it goes on from
its last checkpoint and ends with the same bits. One process at a time works on a run.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbasis.tensors.files import read_tensors, write_tensors
from fedbasis.tensors.params import State
from pflbed.errors import InputError
from pflbed.files import replacing, write_json

CHECKPOINT = "2"
"""The format of checkpoints; the first one held what clients keep as well."""


@dataclass(frozen=True)
class Run:
    """The places inside a run folder."""

    folder: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.folder / "config.json"

    @property
    def metrics(self) -> Path:
        """One json line per round."""
        return self.folder / "metrics.jsonl"

    @property
    def evaluation(self) -> Path:
        """One json line per new client, way, size and rate."""
        return self.folder / "evaluation.jsonl"

    @property
    def results(self) -> Path:
        """The scored table."""
        return self.folder / "results.json"

    @property
    def checkpoint(self) -> Path:
        """The server's state after a round."""
        return self.folder / "checkpoint.safetensors"

    @property
    def about(self) -> Path:
        """What reports print about the method: its title, its ways, its charts."""
        return self.folder / "method.json"

    @property
    def client_states(self) -> Path:
        """What clients keep while the run trains."""
        return self.folder / "client_states"

    @property
    def bases(self) -> Path:
        """The published artifact."""
        return self.folder / "bases"

    @property
    def federation(self) -> Path:
        """The terms of a federation whose nodes hold the data; its server has bases, and no images to score."""
        return self.folder / "federation.json"

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return (self.folder / "done").exists()

    @property
    def active(self) -> bool:
        """Whether a process works on the run at this moment."""
        try:
            with (self.folder / ".lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # nobody ever worked on it, or its folder is not ours to read
            return False
        return False

    def finish(self, summary: dict[str, Any]) -> None:
        """Mark the end."""
        write_json(self.folder / "done", summary)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Work on the run alone; a second process is refused at once, and a killed one leaves no lock behind."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"Only one process may train a run, but another is training {self.folder}; wait for it or stop it."
                ) from None
            for stale in (*self.folder.glob(".*.tmp"), *self.folder.glob("*/.*.tmp")):  # what a killed one was writing
                if stale.is_dir():
                    shutil.rmtree(stale)
                else:
                    stale.unlink(missing_ok=True)  # it may have lain in a folder removed just now
            yield

    def save_checkpoint(self, server: State, rounds_done: int) -> None:
        """Write the state after a round, in one atomic step."""
        state = {f"server/{group}": tensors for group, tensors in server.items()}
        write_tensors(self.checkpoint, state, {"rounds_done": str(rounds_done), "format": CHECKPOINT})

    def load_checkpoint(self) -> tuple[State, int] | None:
        """Read the last checkpoint, or nothing when there is none."""
        if not self.checkpoint.exists():
            return None
        try:
            state, metadata = read_tensors(self.checkpoint)
            rounds_done = int(metadata["rounds_done"])
            if metadata["format"] != CHECKPOINT:
                raise ValueError(metadata["format"])
        except (InputError, KeyError, ValueError) as error:
            raise InputError(
                f"The checkpoint {self.checkpoint} must be whole and of this version, but it is not; "
                "remove it to start this run from its first round."
            ) from error
        server = {group.removeprefix("server/"): t for group, t in state.items() if group.startswith("server/")}
        return server, rounds_done


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Add one json line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def sync(path: Path) -> None:
    """Push a file to the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read json lines; a last line that a kill cut short does not count."""
    records: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                break
    return records


def rewrite_lines(path: Path, records: list[dict[str, Any]]) -> None:
    """Replace a file of json lines as a whole."""
    with replacing(path) as temporary:
        temporary.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
