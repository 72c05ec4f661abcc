"""Client states between rounds, stored on disk, so that memory does not grow with the number of clients.

A client has a folder with one file per version, named by the number of rounds after which it was written. A round reads
the newest version that is not newer than itself and writes the next one. So a round that is repeated, because a process
or a whole run was killed in it, starts from the same state.
"""

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from fedbasis.tensors.packed import mapped, note_of, write
from fedbasis.tensors.params import State, is_finite
from pflbed.errors import InputError


class ClientStates(MutableMapping[str, State]):
    """The states of all clients; as a mapping, the newest state of every client.

    Args:
        folder: Where they are stored; None: a temporary folder, which is removed with the object.
    """

    LAST = 1 << 62
    """A round number greater than that of any round."""

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="fedbasis-client-states-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.folder = folder
        self._root = str(folder)
        self._changed: set[str] = set()

    def read(self, client: str, round: int) -> State | None:
        """Return a client's state before this round, or None if it has none."""
        known = self._until(client, round)
        if not known:
            return None
        try:
            return mapped(self._place(client) / str(known[-1]), digest=True)
        except InputError as error:
            raise InputError(
                f"{error} It is the state of {client}; remove the run's folder to start the run again."
            ) from error

    def reference(self, client: str, round: int, near: bool) -> Path | State | None:
        """Return what a worker needs to read a client's state: the folder if it has the same disk, else the state."""
        return self.folder if near else self.read(client, round)

    def write(self, client: str, round: int, state: State | None) -> None:
        """Write a client's state after this round, unless it has values that are not finite."""
        if state is None or not is_finite(state):
            return
        place = self._place(client)
        place.mkdir(parents=True, exist_ok=True)
        temporary = place / f".{round + 1}.tmp"
        try:
            write(temporary, state, note=client, digest=True)
            temporary.replace(place / str(round + 1))
        finally:
            temporary.unlink(missing_ok=True)

    def touch(self, client: str) -> None:
        """Mark that a client may have a new version, for ``sync`` and ``prune``."""
        self._changed.add(client)

    def sync(self, rounds_done: int) -> None:
        """Flush new versions to disk; called before the checkpoint that they belong to is written."""
        for client in self._changed:
            for version in self._until(client, rounds_done)[-1:]:
                with (self._place(client) / str(version)).open("rb") as file:
                    os.fsync(file.fileno())

    def prune(self, rounds_done: int) -> None:
        """Delete versions that no round needs any more; called after that checkpoint is written."""
        for client in self._changed:
            for version in self._until(client, rounds_done)[:-1]:
                (self._place(client) / str(version)).unlink()
        self._changed.clear()

    def rewind(self, rounds_done: int) -> None:
        """Delete versions that are newer than the last checkpoint, and files that a killed process was writing."""
        for place in self._places():
            for file in place.iterdir():
                if not file.name.isdigit() or int(file.name) > rounds_done:
                    file.unlink()

    def remove(self) -> None:
        """Delete all client states."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _until(self, client: str, rounds_done: int) -> list[int]:
        return sorted(version for version in self._versions(client) if version <= rounds_done)

    def _versions(self, client: str) -> list[int]:
        try:
            return [int(name) for name in os.listdir(self._name(client)) if name.isdigit()]  # noqa: PTH208
        except FileNotFoundError:
            return []

    def _place(self, client: str) -> Path:
        return Path(self._name(client))

    def _name(self, client: str) -> str:
        """Return a client's folder as text: clients without a state, of most methods, need no ``Path`` object."""
        digest = hashlib.sha256(client.encode()).hexdigest()[:32]  # a name may be long and have any character
        return f"{self._root}/{digest[:2]}/{digest[2:]}"

    def _places(self) -> Iterator[Path]:
        return self.folder.glob("*/*")

    def __getitem__(self, client: str) -> State:
        versions = self._versions(client)
        if not versions:
            raise KeyError(client)
        return mapped(self._place(client) / str(max(versions)), digest=True)

    def __setitem__(self, client: str, state: State) -> None:
        self.write(client, max(self._versions(client), default=1) - 1, state)

    def __delitem__(self, client: str) -> None:
        shutil.rmtree(self._place(client))

    def __iter__(self) -> Iterator[str]:
        names = []
        for place in self._places():
            versions = [path for path in place.iterdir() if path.name.isdigit()]
            names += [note_of(versions[0], digest=True)] if versions else []
        return iter(sorted(names))

    def __len__(self) -> int:
        return len(list(iter(self)))


def state_of(client: str, reference: Path | State | None, round: int = ClientStates.LAST) -> State | None:
    """Return a client's state before this round, from the result of ``ClientStates.reference``."""
    return ClientStates(reference).read(client, round) if isinstance(reference, Path) else reference
