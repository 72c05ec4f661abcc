"""The rounds of a federation: sample clients, update them, aggregate, measure, checkpoint; and go on after a stop."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedbasis.algorithms.base import Method, Sent
from fedbasis.engines.base import Engine
from fedbasis.flat import FlatModel
from fedbasis.params import State, nbytes, require_finite
from fedbasis.runs import Run, append_line, read_lines, rewrite_lines
from fedbasis.seeding import numpy_generator
from fedbasis.train import predict
from pflbed import Client, Images, weighted_accuracy
from pflbed.errors import InputError

ClientSeen = Callable[[int, int, int, float], None]  # round, client number, clients of the round, loss
RoundSeen = Callable[[dict[str, Any]], None]
Measure = Callable[[int, State], dict[str, Any]]  # round, the server's state after it -> more numbers for the log


def sampled(clients: Sequence[str], participation: float | int, seed: int, round: int) -> list[str]:
    """Draw a round's clients, by count (a whole number) or by share; the same draw for every method."""
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


class _Stream:
    """Pass updates through to the aggregation while measuring them; refuse broken ones by the client's name."""

    def __init__(self, updates: Iterator[tuple[str, Sent]], expected: int, round: int, seen: ClientSeen | None) -> None:
        self._updates, self._expected, self._round, self._seen = updates, expected, round, seen
        self.refused: list[str] = []
        self.numbers: dict[str, list[float]] = {}
        self.bytes_up = 0
        self.count = 0

    def __iter__(self) -> Iterator[tuple[str, Sent]]:
        for client, sent in self._updates:
            self.count += 1
            try:
                require_finite(sent.tensors, f"The update of {client}")
            except InputError:
                self.refused.append(client)
                continue
            self.bytes_up += nbytes(sent.tensors)
            for key, value in sent.numbers.items():
                if np.isfinite(value):
                    self.numbers.setdefault(key, []).append(value)
            if self._seen is not None:
                self._seen(self._round, self.count, self._expected, sent.numbers.get("loss", float("nan")))
            yield client, sent
        if self.refused and len(self.refused) == self.count:
            raise InputError(
                f"In round {self._round} all {self.count} clients sent values that are not finite: training diverged; "
                "lower train.rate."
            )

    def means(self) -> dict[str, Any]:
        """Average the clients' numbers; keys with slashes become nested groups."""
        nested: dict[str, Any] = {}
        for key, values in self.numbers.items():
            *groups, last = key.split("/")
            place = nested
            for group in groups:
                place = place.setdefault(group, {})
            place[last] = float(np.mean(values))
        return nested


def train(
    method: Method,
    engine: Engine,
    clients: Mapping[str, Client],
    seed: int,
    run: Run,
    *,
    participation: float | int = 1.0,
    on_client: ClientSeen | None = None,
    on_round: RoundSeen | None = None,
    measure: Measure | None = None,
) -> State:
    """Train to the end and return the server's state; a checkpoint in the run is taken up."""
    checkpoint = run.load_checkpoint()
    if checkpoint is None:
        server, start = method.init(seed), 0
    else:
        server, engine.kept, start = checkpoint
    rewrite_lines(run.metrics, [line for line in read_lines(run.metrics) if line["round"] <= start])
    names, scorer = list(clients), _Validation(method, clients)
    for number in range(start, method.task.rounds):
        began = time.perf_counter()
        chosen = sampled(names, participation, seed, number)
        down = nbytes(method.broadcast(server, chosen[0]))
        stream = _Stream(engine.map(server, chosen, number), len(chosen), number + 1, on_client)
        server = method.aggregate(server, stream, seed)
        means = stream.means()
        record = {
            "round": number + 1,
            "rounds": method.task.rounds,
            "clients": len(chosen),
            "refused": stream.refused,
            "seconds": round(time.perf_counter() - began, 3),
            "bytes_up": stream.bytes_up // max(1, len(chosen) - len(stream.refused)),
            "bytes_down": down,
            "validation": scorer(server),
            **means,
            **method.diagnostics(server),
            **(measure(number + 1, server) if measure is not None else {}),
        }
        append_line(run.metrics, record)
        run.save_checkpoint(server, engine.kept, number + 1)
        if on_round is not None:
            on_round(record)
    return server


class _Validation:
    """Score the model that a new client would start from, on every domain's validation images, weighted by client."""

    def __init__(self, method: Method, clients: Mapping[str, Client]) -> None:
        self._method, self._clients = method, clients
        self._model: FlatModel = method.task.network.workspace()

    def __call__(self, server: State) -> float | None:
        self._model.load(self._method.model(server))
        guesses: dict[Images, Any] = {}  # clients that share their validation images share the forward pass
        scores = []
        for client in self._clients.values():
            if len(client.val) == 0:
                continue
            if client.val not in guesses:
                pixels = torch.from_numpy(client.val.pixels)
                probabilities = predict(self._model.module, pixels, self._method.task.recipe.preprocessing)
                guesses[client.val] = probabilities.argmax(1).numpy()
            scores.append(weighted_accuracy(guesses[client.val], client.val.labels, client.val_weights))
        return float(np.mean(scores)) if scores else None
