"""Serve every new client and score it: Last, Best and |Delta| for each way of personalizing and each data size.

The learning rate and the normalization statistics are chosen per way and size by the mean validation accuracy after the
last epoch, the Best epoch by the client's validation accuracy. Predictions on the test images are made for the Last and
the Best epoch, and they meet the test labels only for what was chosen: test data choose nothing.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbasis.engines.base import Result, WorkerContext, Workers
from fedbasis.engines.client_state import ClientStates, state_of
from fedbasis.methods import name_of
from fedbasis.methods.base import Adaptation, Context, Method
from fedbasis.networks.classifier import apply_head, passed
from fedbasis.networks.inputs import examples_of, to_device
from fedbasis.networks.statistics import Statistics, has_statistics
from fedbasis.serving.automatic import AUTO, PRIOR
from fedbasis.serving.peak import PeakMemory
from fedbasis.serving.personalize import (
    CLIENT_STATE,
    UNTRAINED,
    Fitted,
    as_it_is,
    default_statistics,
    label_of,
    personalize,
    split_way,
)
from fedbasis.serving.tables import as_record
from fedbasis.tensors.params import State, Tensors
from pflbed import Client, Images, global_accuracy, weighted_accuracy


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """Which ways, sizes, rates and normalization statistics to try on every new client."""

    ways: Sequence[str]
    sizes: Sequence[str]
    rates: Sequence[float]
    adaptation: Adaptation
    statistics: Mapping[str, Sequence[Statistics]] = field(default_factory=dict)
    """What to choose from, for every way; a way that is not here is tried with the client's own."""
    own_rates: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Ways that have rates of their own."""
    rate_free: Sequence[str] = UNTRAINED

    @classmethod
    def of(
        cls,
        method: Method,
        *,
        ways: Sequence[str] | None,
        sizes: Sequence[str],
        rates: Sequence[float],
        statistics: Sequence[Statistics] | None,
        adaptation: Adaptation,
        own_rates: Mapping[str, Sequence[float]] | None = None,
        own_statistics: Mapping[str, Sequence[Statistics]] | None = None,
    ) -> "EvaluationPlan":
        """Return the plan for a method.

        Args:
            method: The method.
            ways: The ways; None: the method's default.
            sizes: The sizes of a client's data.
            rates: The learning rates to choose from.
            statistics: The statistics to choose from; None: every way's default. A network without running statistics
                has nothing to choose.
            adaptation: Everything else.
            own_rates: The rates of single ways, instead of ``rates``.
            own_statistics: The statistics of single ways, instead of ``statistics``.
        """
        ways = tuple(ways or method.ways.default)
        normalized, apart = has_statistics(method.task.network.build()), own_statistics or {}

        def choices(way: str) -> tuple[Statistics, ...]:
            choose = apart.get(way, statistics) if normalized and way not in (*UNTRAINED, AUTO) else None
            return tuple(choose or (default_statistics(method, way),))

        return cls(
            ways=ways,
            sizes=tuple(sizes),
            rates=tuple(rates),
            adaptation=adaptation,
            statistics={way: choices(way) for way in (split_way(how)[0] for how in ways)},
            own_rates=own_rates or {},
            rate_free=(*UNTRAINED, PRIOR, *method.ways.rate_free),
        )

    def jobs(self, clients: Iterable[str]) -> list["Job"]:
        """List what to do; ways that do not use the rate, or whose statistics are fixed, are tried less often."""
        return [
            Job(how, size, rate, statistics, client)
            for how in self.ways
            for size in self.sizes
            for statistics in self._statistics(how)
            for rate in self._rates(how)
            for client in clients
        ]

    def first(self) -> "EvaluationPlan":
        """Return the plan of the last way alone, at the first size, rate and statistics."""
        return replace(
            self,
            ways=self.ways[-1:],
            sizes=self.sizes[:1],
            rates=self.rates[:1],
            own_rates={how: rates[:1] for how, rates in self.own_rates.items()},
            statistics={way: choices[:1] for way, choices in self.statistics.items()},
        )

    def _rates(self, how: str) -> Sequence[float]:
        rates = self.own_rates.get(how, self.rates)
        return rates if split_way(how)[0] not in self.rate_free else rates[:1]

    def _statistics(self, how: str) -> Sequence[Statistics]:
        way, fixed = split_way(how)
        return self.statistics.get(way, ("own",)) if fixed is None else (fixed,)


class Job(NamedTuple):
    """One client, to be served in one way: a line of the evaluation log."""

    how: str
    size: str
    rate: float
    statistics: Statistics
    client: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Job":
        """Return the job of a record."""
        return cls(record["how"], record["size"], record["rate"], record["statistics"], record["client"])

    @property
    def work(self) -> "Job":
        """The same job by the name that does not fix its statistics: ``lp@own`` is ``lp`` with the client's own."""
        return self._replace(how=split_way(self.how)[0])


@dataclass(frozen=True)
class ServeTask:
    """One new client, to be served in one way."""

    client: Client
    how: str
    size: str
    plan: Adaptation
    seed: int
    state: Path | State | None = None
    """The folder of client states, or this client's own if a worker may run on another machine."""


def serve(worker: WorkerContext, server: State, item: ServeTask) -> Result:
    """Personalize one client in one way; return its curves and its predictions as a record for the log.

    The state that a client that took part has from training is read by the way ``client-state`` alone.
    """
    method, client = worker.method, item.client
    before = None if item.how in UNTRAINED else _before(worker, server, client)
    peak = PeakMemory(worker.device)
    started = time.perf_counter()
    statistics = item.plan.statistics or default_statistics(method, item.how)
    predictions = SharedPredictions(worker, item.how, statistics)
    data = examples_of(client.sized(item.size)).to(worker.device)

    def validate(_: Context, learned: Tensors) -> float:
        peak.stop()  # validation images are many, and no part of serving a client
        return weighted_accuracy(predictions(client.val, learned), client.val.labels, client.val_weights)

    context = Context(item.seed, client.id, worker.model)
    if item.how == CLIENT_STATE:
        own = method.serving.participant(server, state_of(client.id, item.state))
        outcome = as_it_is(own, context, validate)
    else:
        with context.random_layers():
            outcome = personalize(method, server, item.how, data, context, item.plan, validate)
    adapted = time.perf_counter() - started

    def guesses_of(fitted: Fitted) -> list[int]:
        worker.model.load(fitted.tensors)
        guesses: list[int] = predictions(client.test, fitted.learned).tolist()
        return guesses

    last = guesses_of(outcome.last)
    record: dict[str, Any] = {
        "client": client.id,
        "domain": client.domain,
        "how": item.how,
        "size": item.size,
        "rate": item.plan.rate,
        "statistics": statistics,
        "images": len(data),
        "seconds": round(adapted, 3),
        "peak_memory": peak.bytes,
        "losses": [round(loss, 5) for loss in outcome.losses if np.isfinite(loss)],
        **({} if before is None else {"before": round(before, 5)}),
        "validation": [round(score, 5) for score in outcome.validation],
        "validate_every": item.plan.validate_every if item.how not in UNTRAINED else 1,
        "best_epoch": outcome.best.epoch,
        "last_predicted": last,
        "best_predicted": last if outcome.best.epoch == outcome.last.epoch else guesses_of(outcome.best),
    }
    if outcome.choice is not None:
        record["choice"] = {"way": outcome.choice.way, **{one.way: one.accuracy for one in outcome.choice.judged}}
    tables = method.insight.learned(outcome.last.learned)
    if tables:
        record["learned"] = {name: as_record(table) for name, table in tables.items()}
    return {}, record


def _before(worker: WorkerContext, server: State, client: Client) -> float:
    """Return the validation accuracy of the server's model as it is; clients that share images share the pass."""
    predictions = SharedPredictions(worker, "none")
    if not predictions.knows(client.val):
        worker.model.load(worker.method.model(server), "The server's model")
    return weighted_accuracy(predictions(client.val, {}), client.val.labels, client.val_weights)


class SharedPredictions:
    """Predict classes of images. Where clients' models agree, they share a forward pass.

    ``none`` gives all clients the same model, so images that several clients are scored on are predicted once. Where
    only the classifier is trained, the features of images are computed once, for all epochs, rates and clients. What is
    shared is in the worker's cache: for as long as the server's state is the same, and for so many sets of images.
    """

    LIMIT = 64

    def __init__(self, worker: WorkerContext, how: str, statistics: Statistics = "frozen") -> None:
        self._worker, self._how = worker, split_way(how)[0]
        self._same = statistics == "frozen" or not has_statistics(worker.model.module)
        """Whether all clients have the same statistics."""

    def __call__(self, images: Images, learned: Tensors) -> NDArray[np.int64]:
        """Return the classes that the worker's model predicts."""
        method, model = self._worker.method, self._worker.model

        def probabilities() -> Tensor:
            return method.serving.probabilities(model, learned, self._pixels(images))

        def features() -> Tensor:
            pixels, task = self._pixels(images), method.task
            return passed(model.module, task.classifier, pixels, task.recipe.preprocessing).features

        if self._how == "none" and self._same:
            chances = self._shared(images, probabilities)
        elif self._how in ("lp", *method.ways.head_only) and self._same:
            chances = apply_head(model.module, method.task.classifier, self._shared(images, features))
        else:
            chances = probabilities()
        guesses: NDArray[np.int64] = chances.argmax(1).numpy()
        return guesses

    def knows(self, images: Images) -> bool:
        """Return whether no forward pass is needed for these images."""
        return (self._how, images.key) in self._worker.cache

    def _pixels(self, images: Images) -> Tensor:
        """Return the images where the model is; a GPU keeps them for the next epochs and clients."""
        pixels, device = torch.from_numpy(images.pixels), self._worker.device
        if torch.device(device).type == "cpu":
            return pixels
        return self._shared(images, lambda: to_device(pixels, device), "pixels")

    def _shared(self, images: Images, make: Callable[[], Tensor], what: str = "") -> Tensor:
        key, cache = (what or self._how, images.key), self._worker.cache
        if key not in cache:
            while len(cache) >= self.LIMIT:
                cache.pop(next(iter(cache)))
            cache[key] = make()
        made: Tensor = cache[key]
        return made


def chosen_settings(records: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[float, Statistics]]:
    """Choose the rate and the statistics of every ``(how, size)``.

    They have the best mean validation accuracy after the last epoch. Ties go to the lowest rate.
    """
    scores: dict[tuple[str, str], dict[tuple[float, Statistics], list[float]]] = {}
    for record in records:
        by_setting = scores.setdefault((record["how"], record["size"]), {})
        by_setting.setdefault((record["rate"], record["statistics"]), []).append(record["validation"][-1])
    return {key: max(sorted(tried), key=lambda one: float(np.mean(tried[one]))) for key, tried in scores.items()}


@dataclass(frozen=True)
class ResultRow:
    """One line of the result: a method and a way of personalizing, at one size."""

    method: str
    label: str
    """Method and way as tables print them."""
    how: str
    size: str
    rate: float
    last: float
    best: float
    last_global: float
    seconds: float
    per_client: Mapping[str, float]
    statistics: str = ""
    """The normalization statistics that were chosen, or to which the way is fixed."""

    @property
    def delta(self) -> float:
        """|Last - Best|: how much choosing the epoch matters."""
        return abs(self.last - self.best)


def summarize(
    method: type[Method], records: Sequence[Mapping[str, Any]], clients: Mapping[str, Client]
) -> list[ResultRow]:
    """Score the predictions with the chosen rates and statistics, and average over clients."""
    rows = []
    for (how, size), (rate, statistics) in chosen_settings(records).items():
        mine = [r for r in records if Job.of(r)[:4] == (how, size, rate, statistics)]
        last = {r["client"]: _accuracy(clients[r["client"]], r["last_predicted"]) for r in mine}
        best = {r["client"]: _accuracy(clients[r["client"]], r["best_predicted"]) for r in mine}
        rows.append(
            ResultRow(
                name_of(method), label_of(method, how), how, size, rate,
                last=float(np.mean([score for score, _ in last.values()])),
                best=float(np.mean([score for score, _ in best.values()])),
                last_global=float(np.mean([score for _, score in last.values()])),
                seconds=float(np.mean([r["seconds"] for r in mine])),
                per_client={client: score for client, (score, _) in last.items()},
                statistics=statistics,
            )
        )  # fmt: skip
    return rows


def _accuracy(client: Client, predicted: Sequence[int]) -> tuple[float, float]:
    guesses = np.asarray(predicted, dtype=np.int64)
    labels: NDArray[np.int64] = client.test.labels
    return weighted_accuracy(guesses, labels, client.test_weights), global_accuracy(guesses, labels)


def evaluate(
    workers: Workers,
    server: State,
    clients: Mapping[str, Client],
    plan: EvaluationPlan,
    seed: int,
    done: Sequence[Mapping[str, Any]] = (),
    write: Callable[[dict[str, Any]], None] | None = None,
    states: ClientStates | None = None,
) -> list[dict[str, Any]]:
    """Serve all clients in all ways; jobs whose record is in ``done`` are not repeated.

    Jobs that differ in name alone, such as ``lp`` with the client's own statistics and ``lp@own``, are done once.
    ``states`` holds the client states of those that took part.
    """
    records: list[dict[str, Any]] = []
    finished = {Job.of(record): dict(record) for record in done}
    same: dict[Job, list[Job]] = {}
    for job in plan.jobs(clients):
        if job not in finished:
            same.setdefault(job.work, []).append(job)

    def keep(record: dict[str, Any]) -> None:
        records.append(record)
        if write is not None:
            write(record)

    for job, record in finished.items():
        records.append(record)
        for twin in same.pop(job.work, ()):
            keep({**record, "how": twin.how})
    jobs, items = [twins[0] for twins in same.values()], []
    for job in jobs:
        own_state = states is not None and job.how == CLIENT_STATE
        theirs = states.reference(job.client, states.LAST, workers.same_disk) if states and own_state else None
        adaptation = replace(plan.adaptation, rate=job.rate, statistics=job.statistics)
        items.append(ServeTask(clients[job.client], job.how, job.size, adaptation, seed, theirs))
    for _, record in workers.run(serve, server, items, [f"the client {job.client}" for job in jobs]):
        for twin in same[Job.of(record).work]:
            keep({**record, "how": twin.how})
    return records


@dataclass(frozen=True)
class ServingCurve:
    """Serve all clients every so many rounds, by the last way, at the first rate, statistics and size.

    Nothing is chosen by it.
    """

    method: Method
    workers: Workers
    clients: Mapping[str, Client]
    plan: EvaluationPlan
    seed: int
    every: int
    states: ClientStates | None = None

    def __call__(self, round: int, server: State) -> dict[str, Any]:
        """Return the mean personalized accuracy after this round, if it is one to look at."""
        if not self.every or (round % self.every and round != self.method.task.rounds):
            return {}
        if not self.method.insight.ready(server):
            return {}
        plan, published = self.plan.first(), self.method.serving.published(server)
        records = evaluate(self.workers, published, self.clients, plan, self.seed, states=self.states)
        (row,) = summarize(type(self.method), records, self.clients)
        return {"served": row.last}
