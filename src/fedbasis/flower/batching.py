"""Requests to nodes and their answers, in one Flower message to a node for all experiments.

Experiments are trained at the same time, each in its own thread, and only one thread runs at a time. A thread that
sends requests waits until all others send theirs too (or are done); then one message is sent to every node. A node
starts a process for every message, which takes seconds, so several experiments cost little more than one.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedbasis.engines.base import NoUpdate
from fedbasis.flower.message_limit import limited
from fedbasis.flower.payload import Payload, from_record, spooled, to_record
from pflbed.errors import InputError

POLL_SECONDS = 0.25
NAME_SECONDS = 120.0
"""How long a node may take to report its name."""
LITTLE = 2**20
"""The maximal size of an answer without tensors, in bytes."""
WHO = f"{MessageType.QUERY}.who"
Answer = Payload | NoUpdate


@dataclass
class _Batch:
    payloads: Mapping[str, Payload]
    largest: int
    answers: dict[str, Answer] = field(default_factory=dict)
    done: bool = False
    error: Exception | None = None


class RequestBatcher:
    """Sends requests to nodes by name.

    Args:
        grid: Flower's connection to the nodes.
        parties: How many threads send requests.
        kind: The Flower message type.
        deadline: Seconds until a node's answer is not waited for.
        minimum: After the first message, the share of the nodes whose connection is waited for.
    """

    def __init__(self, grid: Grid, parties: int, kind: str, deadline: float, minimum: float = 1.0) -> None:
        self._grid, self._parties, self._kind = grid, parties, kind
        self._deadline, self._minimum, self._began = deadline, minimum, False
        self.turn = threading.Condition()
        """Held by the thread that runs."""
        self._waiting: list[_Batch] = []
        self._names: dict[int, str] = {}

    def ask(self, payloads: Mapping[str, Payload], largest: int) -> Mapping[str, Answer]:
        """Send payloads to nodes by name; return the answers, each of at most ``largest`` bytes, that are in time."""
        request = _Batch(payloads, largest)
        self._waiting.append(request)
        self._send_if_all_wait()
        self.turn.wait_for(lambda: request.done)
        if request.error is not None:
            raise request.error
        return request.answers

    def leave(self) -> None:
        """Leave the batch: this thread sends no more requests, and the others do not wait for it."""
        self._parties -= 1
        self._send_if_all_wait()

    def _present(self, wanted: Sequence[str], seconds: float) -> dict[str, int]:
        """Return the connected nodes by name; wait for all wanted nodes the first time, later for the minimum."""
        ends = time.monotonic() + seconds
        enough = self._minimum * len(wanted) if self._began else len(wanted)
        self._began = True
        while True:
            connected = self._by_name()
            if sum(name in connected for name in wanted) >= enough - 1e-9 or time.monotonic() > ends:
                return connected
            time.sleep(POLL_SECONDS)

    def _by_name(self) -> dict[str, int]:
        listed = sorted(self._grid.get_nodes(), key=lambda node: str(node.last_activated_at))
        nodes = {int(node.node_id): str(node.name) for node in listed}
        unnamed = [node for node, name in nodes.items() if not name and node not in self._names]
        if unnamed:  # registered keys have names; without authentication nodes are asked
            messages = {node: Message(RecordDict(), node, WHO, ttl=NAME_SECONDS) for node in unnamed}
            for node, answer in self._answers(messages, NAME_SECONDS, LITTLE).items():
                self._names[node] = answer[0].word("name") if isinstance(answer, list) and answer else ""
        by_name: dict[str, int] = {}
        for node, name in nodes.items():
            if known := name or self._names.get(node, ""):
                by_name[known] = (
                    node  # without authentication, a node that reconnects has a new id: the last one is used
                )
        return by_name

    def _send_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self._parties:
            return
        requests, self._waiting = self._waiting, []
        try:
            self._send(requests)
        except Exception as error:  # noqa: BLE001  raised in the threads of the requests
            for request in requests:
                request.error = error
        for request in requests:
            request.done = True
        self.turn.notify_all()

    def _send(self, requests: Sequence[_Batch]) -> None:
        wanted = list(dict.fromkeys(name for request in requests for name in request.payloads))
        ends = time.monotonic() + self._deadline
        connected = self._present(wanted, self._deadline / 2)
        messages = {}
        for name in wanted:
            if name in connected:
                content = to_record(request.payloads[name] for request in requests if name in request.payloads)
                ttl = max(1.0, ends - time.monotonic())
                messages[connected[name]] = Message(content, connected[name], self._kind, ttl=ttl)
        answers = self._answers(messages, ends - time.monotonic(), sum(request.largest for request in requests))
        for name in wanted:
            sent = [request for request in requests if name in request.payloads]
            answer = answers.get(connected.get(name, -1), NoUpdate("it did not answer in time.", answered=False))
            if isinstance(answer, list) and len(answer) != len(sent):
                answer = NoUpdate(f"it must answer {len(sent)} requests, but it answered {len(answer)}.")
            for i, request in enumerate(sent):
                request.answers[name] = answer[i] if isinstance(answer, list) else answer

    def _answers(
        self, messages: Mapping[int, Message], seconds: float, largest: int
    ) -> dict[int, list[Payload] | NoUpdate]:
        """Push messages and pull their replies one by one, so that a broken reply affects only its sender."""
        ends = time.monotonic() + seconds
        identities = list(self._grid.push_messages(list(messages.values()))) if messages else []
        waiting = {node: str(identity) for node, identity in zip(messages, identities, strict=True) if identity}
        answers: dict[int, list[Payload] | NoUpdate] = {}
        while waiting and time.monotonic() < ends:
            for node, identity in list(waiting.items()):
                answer = self._reply(identity, largest)
                if answer is not None:
                    answers[node] = answer
                    del waiting[node]
            time.sleep(POLL_SECONDS if waiting else 0)
        return answers

    def _reply(self, identity: str, largest: int) -> list[Payload] | NoUpdate | None:
        try:
            with limited(largest):
                replies = list(self._grid.pull_messages([identity]))
            if not replies:
                return None
            if replies[0].has_error():
                return _failed(int(replies[0].error.code), str(replies[0].error.reason))
            return [spooled(payload) for payload in from_record(replies[0].content)]
        except httpx.HTTPError:
            raise
        except InputError as error:
            return NoUpdate(str(error))
        except Exception as error:  # noqa: BLE001  any error of Flower while it reads a reply is due to that reply
            return NoUpdate(f"it cannot be read ({type(error).__name__}).")


def _failed(code: int, reason: str) -> NoUpdate:
    """Return whether a node failed, or did not answer, by Flower's error code."""
    if code in (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE):
        return NoUpdate(f"it did not answer in time ({reason[:100]}).", answered=False)
    return NoUpdate(f"it failed: {reason[:300]}")
