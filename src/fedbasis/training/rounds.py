"""The training rounds: sample clients, update them, aggregate, evaluate, write checkpoints, and resume from them."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedbasis.engines.base import Engine, NoUpdate
from fedbasis.engines.download import Download, as_received, to_send
from fedbasis.engines.processes import reset_peak_memory
from fedbasis.methods.base import Method, Sent, Update
from fedbasis.networks.train import predict
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, nbytes, require_finite
from fedbasis.tensors.seeding import numpy_generator
from fedbasis.training.clipping import clip_updates
from fedbasis.training.events import ClientTrained, Emit, RoundEnded, ignore
from fedbasis.training.privacy import Mechanism
from fedbasis.training.runs import Run, append_line, read_lines, rewrite_lines, sync
from pflbed import Client, Images
from pflbed.errors import InputError

ValidateServer = Callable[[State], float | None]
Measure = Callable[[int, State], dict[str, Any]]  # round, the server's state after it -> additional numbers for the log


def sampled(clients: Sequence[str], participation: float | int, seed: int, round: int) -> list[str]:
    """Sample a round's clients; the sample does not depend on the method.

    Args:
        clients: The names of all clients.
        participation: How many to sample: an integer is a count, a float a share.
        seed: The seed of the run.
        round: The number of the round, from 0.
    """
    count = participation if isinstance(participation, int) else max(1, round_half_up(participation * len(clients)))
    if count > len(clients):
        raise InputError(f"'participation' asks for {count} clients a round, but there are only {len(clients)}.")
    if count == len(clients):
        return list(clients)
    chosen = numpy_generator(seed, "sample clients", round).choice(len(clients), count, replace=False)
    return [clients[i] for i in sorted(chosen)]


def round_half_up(value: float) -> int:
    """Round to the nearest whole number, a half upwards."""
    return int(np.floor(value + 0.5))


class DivergedError(InputError):
    """Training ended with values that are not finite numbers."""


NOT_FINITE = "values that are not finite numbers"


class UpdateStream:
    """Iterate over the updates for the aggregation; collect numbers for the log, and leave unusable updates out."""

    def __init__(
        self, updates: Iterator[tuple[str, Sent | NoUpdate]], expected: int, round: int, emit: Emit = ignore
    ) -> None:
        self._updates, self._expected, self._round, self._emit = updates, expected, round, emit
        self.refused: list[str] = []
        self.absent: list[str] = []
        self.reasons: dict[str, str] = {}
        self.numbers: dict[str, list[float]] = {}
        self.bytes_up = 0
        self.count = 0

    def __iter__(self) -> Iterator[Update]:
        for client, received in self._updates:
            self.count += 1
            sent = received if isinstance(received, NoUpdate) else _finite(client, received)
            if isinstance(sent, NoUpdate):
                (self.refused if sent.answered else self.absent).append(client)
                self.reasons[client] = sent.reason
                continue
            self.bytes_up += nbytes(sent.tensors)
            for key, value in sent.numbers.items():
                if np.isfinite(value):
                    self.numbers.setdefault(key, []).append(value)
            loss = sent.numbers.get("loss", float("nan"))
            self._emit(ClientTrained(self._round, self.count, self._expected, loss))
            yield client, sent
        if self.reasons and len(self.reasons) == self.count:
            if all(NOT_FINITE in reason for reason in self.reasons.values()):
                raise DivergedError(
                    f"In round {self._round} all {self.count} clients sent values that are not finite: training "
                    "diverged; lower train.rate."
                )
            client, reason = next(iter(self.reasons.items()))
            raise InputError(
                f"Round {self._round} needs a usable update, but there is none; the update of {client}: {reason}"
            )

    def left_out(self) -> dict[str, Any]:
        """Return, for the log, the clients whose updates were not used, and the reasons."""
        more = {"absent": self.absent} if self.absent else {}
        return {"refused": self.refused, **more, **({"reasons": self.reasons} if self.reasons else {})}

    def means(self) -> dict[str, Any]:
        """Average the clients' numbers; keys with slashes become nested groups."""
        nested: dict[str, Any] = {}
        for key, values in self.numbers.items():
            *groups, last = key.split("/")
            inner = nested
            for group in groups:
                inner = inner.setdefault(group, {})
            inner[last] = float(np.mean(values))
        return nested


def _finite(client: str, sent: Sent) -> Sent | NoUpdate:
    try:
        require_finite(sent.tensors, f"The update of {client}")
    except InputError as error:
        return NoUpdate(str(error))
    return sent


def train(
    method: Method,
    engine: Engine,
    clients: Sequence[str],
    seed: int,
    run: Run | None = None,
    *,
    participation: float | int = 1.0,
    validate: ValidateServer | None = None,
    checkpoint_seconds: float = 1.0,
    emit: Emit = ignore,
    measure: Measure | None = None,
    privacy: Mechanism | None = None,
    download: Download = "float32",
) -> State:
    """Train for all rounds and return the server's state.

    A checkpoint is written after a round if the last one is ``checkpoint_seconds`` old, after the last round, and after
    Ctrl-C or an error. So short rounds are not slowed down, and a killed run loses no more than that time.

    Args:
        method: A method that is bound to a task.
        engine: Updates the clients.
        clients: The names of the participating clients.
        seed: The seed of the run.
        run: The run folder: rounds are logged there, and training resumes from its checkpoint; None: write nothing.
        participation: Clients a round: an integer is a count, a float a share.
        validate: Scores the server's state after every round.
        checkpoint_seconds: The least time between two checkpoints.
        emit: Called with every event.
        measure: Returns additional numbers for the log after every round.
        privacy: The mechanism of differential privacy; None: none.
        download: The precision in which the engine's clients receive the server's tensors.
    """
    checkpoint = None if run is None else run.load_checkpoint()
    server, start = (method.init(seed), 0) if checkpoint is None else checkpoint
    engine.states.rewind(start)
    if run is not None:
        rewrite_lines(run.metrics, [line for line in read_lines(run.metrics) if line["round"] <= start])
    saved, last = start, time.monotonic()
    done = start
    held = reset_peak_memory()  # a process may train several runs, one after another

    def save() -> None:
        nonlocal saved, last
        if run is not None:
            sync(run.metrics)
            engine.states.sync(done)
            run.save_checkpoint(server, done)
        engine.states.prune(saved if run is not None else done)  # a damaged checkpoint falls back to the one before
        saved, last = done, time.monotonic()

    try:
        for number in range(start, method.task.rounds):
            began = time.perf_counter()
            chosen = sampled(clients, participation, seed if privacy is None else privacy.drawing_seed(seed), number)
            message = to_send(method, method.broadcast(server, chosen[0]), download)
            down, received = nbytes(message), server
            if download != "float32":
                received = {**server, **as_received(message, method.task.layout.shapes)}
            del message
            silent = privacy is not None and privacy.secret  # numbers of single clients have no noise
            updates = engine.map(server, chosen, number)
            stream = UpdateStream(updates, len(chosen), number + 1, ignore if silent else emit)
            if privacy is not None:
                after = privacy.aggregate(method, server, stream, seed, number)
            elif received is server:
                after = method.aggregate(server, clip_updates(method, server, stream), seed)
            else:
                clipped = clip_updates(method, received, stream)
                after = method.updates.aggregate_rounded(server, received, clipped, seed)
            del received
            phase = method.insight.phase(server)
            record = {
                "round": number + 1,
                "rounds": method.task.rounds,
                "clients": len(chosen),
                **({"refused": []} if silent else stream.left_out()),
                "seconds": round(time.perf_counter() - began, 3),
                "bytes_up": stream.bytes_up // max(1, len(chosen) - len(stream.reasons)),
                "bytes_down": down,
                "peak_memory": peak if (peak := engine.peak_memory()) > held else None,
                "validation": None if validate is None or silent else validate(after),
                **({} if silent else stream.means()),
                **({} if privacy is None else privacy.spent(number + 1)),
                **({"phase": phase} if phase else {}),
                **method.insight.diagnostics(after),
                **(measure(number + 1, after) if measure is not None else {}),
            }
            if run is not None:
                append_line(run.metrics, record)
            server, done = after, number + 1
            if time.monotonic() - last >= checkpoint_seconds:
                save()
            emit(RoundEnded(record))
    finally:
        if saved < done:
            save()
    return server


def final_round(method: Method, engine: Engine, server: State, clients: Sequence[str]) -> None:
    """Let every client train once more from the final state, keep its client state, and discard its update.

    With partial participation a client state is as old as the client's last round, and a client that was never sampled
    has none. The new states are one version newer than the last checkpoint. So a run that is killed here or later drops
    them when it resumes, and makes the same again.

    Args:
        method: The method.
        engine: Updates the clients.
        server: The final state, which is not changed.
        clients: The names of all participating clients.
    """
    for _ in UpdateStream(engine.map(server, clients, method.task.rounds), len(clients), method.task.rounds + 1):
        pass


class Validation:
    """The mean accuracy over the clients of the model that a new client starts from, on their validation images.

    Clients with the same validation images share one forward pass.
    """

    def __init__(self, method: Method, clients: Iterable[Client], device: torch.device | str = "cpu") -> None:
        self._method = method
        self._model: FlatModel = method.task.network.workspace(device)
        self._sets: dict[Images, NDArray[np.float64]] = {}
        self._count = 0
        for client in clients:
            if len(client.val):
                share = client.val_weights / client.val_weights.sum()
                self._sets[client.val] = self._sets.get(client.val, 0.0) + share
                self._count += 1

    def __call__(self, server: State) -> float | None:
        """Return the mean accuracy over the clients, or None if no client has validation images."""
        self._model.load(self._method.model(server))
        total = 0.0
        for images, weights in self._sets.items():
            pixels = torch.from_numpy(images.pixels)
            guesses = predict(self._model.module, pixels, self._method.task.recipe.preprocessing).argmax(1).numpy()
            total += float(weights @ (guesses == images.labels))
        return total / self._count if self._count else None
