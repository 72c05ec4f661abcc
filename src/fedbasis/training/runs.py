"""A run is a folder named by the hash of its configuration: config, metrics, evaluation, checkpoint, bases, done.

All files are written atomically, so a run can be killed at any moment and started again: it resumes from its last
checkpoint and ends with the same bits. Only one process at a time can use a run.
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

from fedbasis.tensors.files import DIGEST, read_tensors, write_tensors
from fedbasis.tensors.params import State
from pflbed.errors import InputError
from pflbed.files import replacing, write_json
from pflbed.foreign import read_json_lines

CHECKPOINT = "3"
"""The format version of checkpoints."""


@dataclass(frozen=True)
class Run:
    """The paths in a run folder."""

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
        """One json line per served client, way, size and rate."""
        return self.folder / "evaluation.jsonl"

    @property
    def results(self) -> Path:
        """The table of results."""
        return self.folder / "results.json"

    @property
    def checkpoint(self) -> Path:
        """The server's state after a round."""
        return self.folder / "checkpoint.safetensors"

    @property
    def previous_checkpoint(self) -> Path:
        """The checkpoint before, which is used if the last one is damaged."""
        return self.folder / "checkpoint-previous.safetensors"

    @property
    def about(self) -> Path:
        """Texts about the method for reports: its title, the labels of its ways, its charts."""
        return self.folder / "method.json"

    @property
    def client_states(self) -> Path:
        """The client states during training."""
        return self.folder / "client_states"

    @property
    def bases(self) -> Path:
        """The published artifact."""
        return self.folder / "bases"

    @property
    def federation(self) -> Path:
        """The settings of a federation on real nodes; its server has bases, but no images to evaluate on."""
        return self.folder / "federation.json"

    @property
    def done(self) -> bool:
        """Whether the run is complete."""
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
        """Mark the run as complete, with a short summary."""
        write_json(self.folder / "done", summary)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the run; an error if another process holds it. A killed process releases it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"Only one process may train a run, but another is training {self.folder}; wait for it or stop it."
                ) from None
            for stale in (
                *self.folder.glob(".*.tmp"),
                *self.folder.glob("*/.*.tmp"),
            ):  # files that a killed process was writing
                if stale.is_dir():
                    shutil.rmtree(stale)
                else:
                    stale.unlink(missing_ok=True)  # its folder may have just been removed
            yield

    def save_checkpoint(self, server: State, rounds_done: int) -> None:
        """Write the state after a round, in one atomic step; the checkpoint before it is kept."""
        if self.checkpoint.exists():
            self.checkpoint.replace(self.previous_checkpoint)
        state = {f"server/{group}": tensors for group, tensors in server.items()}
        write_tensors(self.checkpoint, state, {"rounds_done": str(rounds_done), "format": CHECKPOINT}, digest=True)

    def load_checkpoint(self) -> tuple[State, int] | None:
        """Return the state and the rounds of the last valid checkpoint, or None if there is none."""
        damaged: InputError | None = None
        for path in (self.checkpoint, self.previous_checkpoint):
            try:
                if path.exists():
                    return _read_checkpoint(path)
            except InputError as error:
                damaged = damaged or error
        if damaged is not None:
            raise damaged
        return None

    def remove_checkpoints(self) -> None:
        """Remove what only a resumed run needs."""
        self.checkpoint.unlink(missing_ok=True)
        self.previous_checkpoint.unlink(missing_ok=True)


def _read_checkpoint(path: Path) -> tuple[State, int]:
    try:
        state, metadata = read_tensors(path)
        rounds_done = int(metadata["rounds_done"])
        if metadata["format"] != CHECKPOINT or DIGEST not in metadata or rounds_done < 0:
            raise ValueError(metadata["format"])
    except (InputError, KeyError, ValueError) as error:
        raise InputError(
            f"The checkpoint {path} must be as this version wrote it, but it is damaged or of another version; remove "
            "it to start this run from its first round."
        ) from error
    server = {group.removeprefix("server/"): t for group, t in state.items() if group.startswith("server/")}
    return server, rounds_done


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append one json line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def sync(path: Path) -> None:
    """Flush a file to disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read json lines; an incomplete last line is ignored."""
    return list(read_json_lines(path, "The log"))


def rewrite_lines(path: Path, records: list[dict[str, Any]]) -> None:
    """Replace a file of json lines, atomically."""
    with replacing(path) as temporary:
        temporary.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
