"""Serve every new client and score it: Last, Best and |Delta| for each way of personalizing and each data size.

The learning rate is chosen per way and size by the mean validation accuracy after the last epoch, the Best epoch by
the client's validation accuracy. Predictions on the test images are made for the Last and the Best epoch, and they
meet the test labels only for the rate that was chosen: test data choose nothing.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedbasis import coefficients
from fedbasis.algorithms.base import Adaptation, Context, Method
from fedbasis.params import State, Tensors
from fedbasis.personalize import KEPT, Fitted, as_it_is, personalize
from fedbasis.train import Examples
from pflbed import Client, global_accuracy, weighted_accuracy


@dataclass(frozen=True)
class Plan:
    """Which ways, sizes and rates to try on every new client."""

    hows: Sequence[str]
    sizes: Sequence[str]
    rates: Sequence[float]
    adaptation: Adaptation
    rateless: Sequence[str] = ("none",)

    def jobs(self, clients: Iterable[str]) -> list[tuple[str, str, float, str]]:
        """List every ``(how, size, rate, client)``; ways that do not use the rate are tried once."""
        return [
            (how, size, rate, client)
            for how in self.hows
            for size in self.sizes
            for rate in (self.rates if how not in self.rateless else self.rates[:1])
            for client in clients
        ]


def to_examples(images: Any) -> Examples:
    """Turn PFLBed's numpy images into tensors that share their memory."""
    return Examples(torch.from_numpy(images.pixels), torch.from_numpy(images.labels))


def serve(
    method: Method, server: State, client: Client, how: str, size: str, rate: float, plan: Adaptation, context: Context,
    kept: State | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Personalize one client in one way; return its curves and its predictions as a record for the log.

    ``kept`` is what the client keeps since training if it took part; only the way ``kept`` looks at it.
    """
    started = time.perf_counter()
    val_pixels = torch.from_numpy(client.val.pixels)

    def validate(now: Context, learned: Tensors) -> float:
        guesses = method.probabilities(now.model, learned, val_pixels).argmax(1).numpy()
        return weighted_accuracy(guesses, client.val.labels, client.val_weights)

    settings = Adaptation(**{**plan.__dict__, "rate": rate})
    data = to_examples(client.sized(size))
    at = context.at(client.id)
    if how == KEPT:
        outcome = as_it_is(method.participant(server, kept), at, validate)
    else:
        outcome = personalize(method, server, how, data, at, settings, validate)
    adapted = time.perf_counter() - started
    test_pixels = torch.from_numpy(client.test.pixels)

    def guesses_of(fitted: Fitted) -> list[int]:
        context.model.load(fitted.tensors)
        guesses: list[int] = method.probabilities(context.model, fitted.learned, test_pixels).argmax(1).tolist()
        return guesses

    last = guesses_of(outcome.last)
    record: dict[str, Any] = {
        "client": client.id,
        "domain": client.domain,
        "how": how,
        "size": size,
        "rate": rate,
        "images": len(data),
        "seconds": round(adapted, 3),
        "losses": [round(loss, 5) for loss in outcome.losses if np.isfinite(loss)],
        "validation": [round(score, 5) for score in outcome.validation],
        "validate_every": plan.validate_every if how not in ("none", KEPT) else 1,
        "best_epoch": outcome.best.epoch,
        "last_predicted": last,
        "best_predicted": last if outcome.best.epoch == outcome.last.epoch else guesses_of(outcome.best),
    }
    if "psi" in outcome.last.learned:
        alpha = coefficients.alpha(outcome.last.learned["psi"]).tolist()
        record["alpha"] = {
            block: [round(share, 4) for share in row]
            for block, row in zip(method.task.layout.blocks, alpha, strict=True)
        }
    return record


def chosen_rates(records: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """Choose the rate of every ``(how, size)``: the best mean validation accuracy after the last epoch."""
    scores: dict[tuple[str, str], dict[float, list[float]]] = {}
    for record in records:
        by_rate = scores.setdefault((record["how"], record["size"]), {})
        by_rate.setdefault(record["rate"], []).append(record["validation"][-1])
    return {key: max(sorted(rates), key=lambda rate: float(np.mean(rates[rate]))) for key, rates in scores.items()}


@dataclass(frozen=True)
class Row:
    """One line of the result: a method and a way of personalizing, at one size."""

    method: str
    how: str
    size: str
    rate: float
    last: float
    best: float
    last_global: float
    seconds: float
    per_client: Mapping[str, float]

    @property
    def delta(self) -> float:
        """|Last - Best|: how much choosing the epoch matters."""
        return abs(self.last - self.best)


def summarize(method: str, records: Sequence[Mapping[str, Any]], clients: Mapping[str, Client]) -> list[Row]:
    """Score the chosen rates' predictions and average over clients."""
    rows = []
    for (how, size), rate in chosen_rates(records).items():
        mine = [r for r in records if (r["how"], r["size"], r["rate"]) == (how, size, rate)]
        last = {r["client"]: _accuracy(clients[r["client"]], r["last_predicted"]) for r in mine}
        best = {r["client"]: _accuracy(clients[r["client"]], r["best_predicted"]) for r in mine}
        rows.append(
            Row(
                method, how, size, rate,
                last=float(np.mean([score for score, _ in last.values()])),
                best=float(np.mean([score for score, _ in best.values()])),
                last_global=float(np.mean([score for _, score in last.values()])),
                seconds=float(np.mean([r["seconds"] for r in mine])),
                per_client={client: score for client, (score, _) in last.items()},
            )
        )  # fmt: skip
    return rows


def _accuracy(client: Client, predicted: Sequence[int]) -> tuple[float, float]:
    guesses = np.asarray(predicted, dtype=np.int64)
    labels: NDArray[np.int64] = client.test.labels
    return weighted_accuracy(guesses, labels, client.test_weights), global_accuracy(guesses, labels)


def evaluate(
    method: Method,
    server: State,
    clients: Mapping[str, Client],
    plan: Plan,
    seed: int,
    done: Sequence[Mapping[str, Any]] = (),
    write: Callable[[dict[str, Any]], None] | None = None,
    device: torch.device | str = "cpu",
    kept: Mapping[str, State] | None = None,
) -> list[dict[str, Any]]:
    """Serve all clients in all ways; jobs whose record is in ``done`` are not repeated.

    ``kept`` holds what clients keep since training, for those that took part.
    """
    records = [dict(record) for record in done]
    finished = {(r["how"], r["size"], r["rate"], r["client"]) for r in records}
    context = Context(seed, "", method.task.network.workspace(device))
    for how, size, rate, client in plan.jobs(clients):
        if (how, size, rate, client) in finished:
            continue
        mine = (kept or {}).get(client)
        record = serve(method, server, clients[client], how, size, rate, plan.adaptation, context, mine)
        records.append(record)
        if write is not None:
            write(record)
    return records


@dataclass(frozen=True)
class Curve:
    """Serve all clients every so many rounds, by the last way, at the first rate and size; nothing is chosen by it."""

    method: Method
    clients: Mapping[str, Client]
    plan: Plan
    seed: int
    every: int
    device: torch.device | str = "cpu"

    def __call__(self, round: int, server: State) -> dict[str, Any]:
        """Return the mean personalized accuracy after this round, if it is one to look at."""
        if not self.every or (round % self.every and round != self.method.task.rounds):
            return {}
        if self.method.diagnostics(server).get("phase") == "warm-up":  # there are no bases yet
            return {}
        plan = replace(self.plan, hows=self.plan.hows[-1:], sizes=self.plan.sizes[:1], rates=self.plan.rates[:1])
        records = evaluate(self.method, server, self.clients, plan, self.seed, device=self.device)
        (row,) = summarize(self.method.name, records, self.clients)
        return {"served": row.last}
