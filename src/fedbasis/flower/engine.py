"""The engine of a real federation: nodes that keep their data compute a round's updates, which are checked on receipt.

``rounds.train`` and the methods are unchanged. Client states never leave their node; the server only sends every node
the number of its last update that was used. So a node whose answer was too late continues from its state before that
update, exactly as if it had not been sampled.
"""

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedbasis.engines.base import NoUpdate
from fedbasis.engines.download import to_send
from fedbasis.engines.processes import peak_memory
from fedbasis.flower.batching import Answer, RequestBatcher
from fedbasis.flower.expected import Expected, Kind, kinds, rehearsed
from fedbasis.flower.payload import Block, Payload, pack_state
from fedbasis.flower.settings import FederatedRun
from fedbasis.methods.base import Method, Sent
from fedbasis.tensors.params import State
from fedbasis.training.runs import Run
from pflbed.errors import InputError
from pflbed.files import write_json
from pflbed.foreign import read_json_object


class UsedVersions:
    """The round of each client's last used update; the client states themselves are on the nodes.

    It is written next to the checkpoint that it belongs to. It is not in the log, which has no names with secret noise.
    """

    def __init__(self, run: Run) -> None:
        self.folder = run.client_states
        self.versions: dict[str, int] = {}
        self.checkpoint = 0

    def rewind(self, rounds_done: int) -> None:
        """Read the versions of the checkpoint after ``rounds_done`` rounds."""
        if rounds_done:
            found = read_json_object(self._record(rounds_done), "The record of used updates")
            if not all(isinstance(version, int) for version in found.values()):
                raise InputError(
                    f"{self._record(rounds_done)} must give a round for every client, but it does not; remove the "
                    "run's folder to start the run again."
                )
            self.versions = found
        self.checkpoint = rounds_done

    def sync(self, rounds_done: int) -> None:
        """Write the versions; called before the checkpoint that they belong to is written."""
        self.folder.mkdir(exist_ok=True)
        write_json(self._record(rounds_done), self.versions)

    def prune(self, rounds_done: int) -> None:
        """Delete older records; called after that checkpoint is written. Nodes may then delete older states."""
        self.checkpoint = rounds_done
        for old in self.folder.glob("used-*.json"):
            number = old.stem.removeprefix("used-")
            if number.isdecimal() and int(number) < rounds_done:
                old.unlink()

    def remove(self) -> None:
        """Delete all records."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _record(self, rounds_done: int) -> Path:
        return self.folder / f"used-{rounds_done}.json"


class Nodes:
    """The engine whose clients are nodes of a federation."""

    def __init__(self, plan: FederatedRun, method: Method, batcher: RequestBatcher, run: Run) -> None:
        self._plan, self._method, self._batcher, self._run = plan, method, batcher, run
        self.states = UsedVersions(run)
        self._rehearsals: dict[tuple[tuple[tuple[str, str], Kind], ...], Expected] = {}

    def map(self, server: State, clients: Sequence[str], round: int) -> Iterator[tuple[str, Sent | NoUpdate]]:
        """Have the nodes update the named clients, and yield ``(client, update)``, in this order."""
        terms = self._plan.federation
        payloads: dict[str, Payload] = {}
        expected: dict[str, Expected] = {}
        blocks: dict[tuple[int, ...], tuple[State, Block]] = {}  # most methods send all clients the same
        for client in clients:
            received = self._method.broadcast(server, client)
            same = tuple(id(tensor) for tensors in received.values() for tensor in tensors.values())
            if same not in blocks:
                blocks[same] = received, pack_state(to_send(self._method, received, terms.download))
            payloads[client] = self._payload(client, round, blocks[same][1])
            expected[client] = self._expected(received, round)
        answers = self._batcher.ask(payloads, max(e.largest for e in expected.values()))
        checked = [self._checked(client, answers[client], payloads[client], expected[client]) for client in clients]
        self._require_enough(clients, checked, round)
        for client, sent in zip(clients, checked, strict=True):
            if isinstance(sent, Sent):
                self.states.versions[client] = round + 1
            yield client, sent

    def peak_memory(self) -> int:
        """Return the peak memory of the server, in bytes."""
        return peak_memory()

    def _payload(self, client: str, round: int, block: Block) -> Payload:
        words: dict[str, str | int] = {
            "experiment": self._plan.name,
            "run": self._run.folder.name,
            "client": client,
            "round": round,
            "seed": self._plan.experiment.seed,
            "version": self.states.versions.get(client, 0),
            "checkpoint": self.states.checkpoint,
            "digest": hashlib.sha256(block.data).hexdigest(),
        }
        return Payload(words, {}, block)

    def _expected(self, received: State, round: int) -> Expected:
        structure = tuple(kinds(received).items())
        if structure not in self._rehearsals:
            self._rehearsals[structure] = rehearsed(self._method, received, len(self._plan.federation.classes), round)
        return self._rehearsals[structure]

    def _checked(self, client: str, answer: Answer, asked: Payload, expected: Expected) -> Sent | NoUpdate:
        if isinstance(answer, NoUpdate):
            return answer
        for key in ("run", "client", "round", "digest"):
            if answer.words.get(key) != asked.words[key]:
                other = str(answer.words.get(key))[:80]
                return NoUpdate(f"it must answer to {key} {asked.words[key]}, but it answers to {other}.")
        if reason := answer.word("error"):
            return NoUpdate(f"it failed: {reason[:300]}")
        try:
            return expected.update(answer.block, answer.numbers)
        except InputError as error:
            return NoUpdate(str(error))

    def _require_enough(self, clients: Sequence[str], checked: Sequence[Sent | NoUpdate], round: int) -> None:
        share, good = self._plan.federation.minimum, sum(isinstance(sent, Sent) for sent in checked)
        if good >= max(1.0, share * len(clients) - 1e-9):
            return
        lost = [(client, sent) for client, sent in zip(clients, checked, strict=True) if isinstance(sent, NoUpdate)]
        why = "; ".join(f"{client}: {sent.reason.rstrip('.')}" for client, sent in lost[:3])
        raise InputError(
            f"Round {round + 1} needs usable updates of {share:.0%} of {len(clients)} clients ('minimum'), but has "
            f"{good} ({why}); repair the nodes and start again, which resumes from the last checkpoint."
        )
