"""Whom a run serves and what it may look at: test labels choose nothing, participants have what is in their state."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbasis.engines.base import Result, WorkerContext, WorkFunction
from fedbasis.engines.in_process import InProcess
from fedbasis.experiment import Prepared, execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.methods import METHODS
from fedbasis.methods.base import Context
from fedbasis.networks.inputs import examples_of
from fedbasis.networks.train import predict
from fedbasis.serving.evaluation import ServeTask, chosen_settings, evaluate, serve, summarize
from fedbasis.tensors.params import State
from fedbasis.training.runs import read_lines
from helpers.accelerator import DEVICE, Accelerator
from pflbed import Client, InputError, weighted_accuracy
from small_experiments import CHOICES, raw, small


def test_rate_and_statistics_are_chosen_by_the_mean_last_validation_score() -> None:
    def record(client: str, rate: float, statistics: str, scores: list[float]) -> dict[str, Any]:
        return {
            "client": client, "how": "ft", "size": "S", "rate": rate, "statistics": statistics, "validation": scores
        }  # fmt: skip

    records = [
        record("a", 0.1, "own", [0.9, 0.1]),
        record("b", 0.1, "own", [0.9, 0.9]),
        record("a", 0.2, "own", [0.1, 0.6]),
        record("b", 0.2, "own", [0.1, 0.6]),
    ]
    assert chosen_settings(records) == {("ft", "S"): (0.2, "own")}
    better = [record(client, 0.1, "frozen", [0.1, 0.7]) for client in "ab"]
    assert chosen_settings([*records, *better]) == {("ft", "S"): (0.1, "frozen")}


def test_ways_can_have_rates_and_statistics_of_their_own(dataset: Path) -> None:
    settings = raw(dataset)
    settings["personalize"] = {
        **settings["personalize"], "ways": ["none", "lp", "ft", "ft@frozen"], "rates": [0.1, 0.2],
        "statistics": ["frozen", "own"],
        "by_way": {"ft": {"rates": [0.3], "statistics": ["shrunk"]}, "ft@frozen": {"rates": [0.4, 0.5]}},
    }  # fmt: skip
    plan = prepare(parse(settings)).plan
    tried: dict[str, set[tuple[float, str]]] = {}
    for job in plan.jobs(["a"]):
        tried.setdefault(job.how, set()).add((job.rate, job.statistics))
    assert tried == {
        "none": {(0.1, "frozen")},
        "lp": {(rate, statistics) for rate in (0.1, 0.2) for statistics in ("frozen", "own")},
        "ft": {(0.3, "shrunk")},
        "ft@frozen": {(0.4, "frozen"), (0.5, "frozen")},
    }
    (first,) = {(job.how, job.rate, job.statistics) for job in plan.first().jobs(["a"])}
    assert first == ("ft@frozen", 0.4, "frozen")
    settings["personalize"]["by_way"] = {"bn": {"rates": [0.3]}}
    with pytest.raises(InputError, match=r"personalize.by_way has 'bn'"):
        parse(settings)


class Counting(InProcess):
    """A worker that counts its tasks."""

    done = 0

    def run(
        self, function: WorkFunction, shared: State, items: Sequence[Any], names: Sequence[str]
    ) -> Iterator[Result]:
        self.done += len(items)
        return super().run(function, shared, items, names)


def test_jobs_that_differ_in_name_alone_are_done_once(dataset: Path) -> None:
    settings = raw(dataset)
    settings["model"] = {"name": "cnn-small", "options": {"width": 4, "norm": "batch"}}
    settings["personalize"] = {
        **settings["personalize"], "ways": ["lp", "lp@own", "lp@frozen"], "rates": [0.1],
        "statistics": ["frozen", "own"],
    }  # fmt: skip
    prepared = prepare(parse(settings))
    server, worker = prepared.method.init(0), Counting(prepared.method)
    clients = dict(list(prepared.new.items())[:1])

    def served(ways: tuple[str, ...], done: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
        return evaluate(worker, server, clients, replace(prepared.plan, ways=ways), 0, done)

    def known(records: Sequence[Mapping[str, Any]]) -> set[str]:
        timed = ("seconds", "peak_memory")
        return {json.dumps({k: v for k, v in record.items() if k not in timed}, sort_keys=True) for record in records}

    together = served(("lp", "lp@own", "lp@frozen"))
    sizes = len(prepared.plan.sizes)
    assert worker.done == 2 * sizes
    assert len(together) == 4 * sizes
    apart = [record for way in ("lp", "lp@own", "lp@frozen") for record in served((way,))]
    assert worker.done == 6 * sizes
    assert known(together) == known(apart)
    resumed = served(("lp", "lp@own", "lp@frozen"), together[:1])  # killed after its first record
    assert worker.done == 8 * sizes - 1
    assert known(resumed) == known(together)


def test_summary_equals_the_formula_by_hand(dataset: Path, tmp_path: Path) -> None:
    prepared = prepare(small(dataset))
    run = execute(prepared, tmp_path)
    records = read_lines(run.evaluation)
    for row in summarize(type(prepared.method), records, prepared.new):
        scores = []
        for record in records:
            if any(record[key] != getattr(row, key) for key in ("how", "size", "rate", "statistics")):
                continue
            client = prepared.new[record["client"]]
            total = right = 0.0
            for guess, label in zip(record["last_predicted"], client.test.labels.tolist(), strict=True):
                share = client.label_distribution[label]
                total += share
                right += share * (guess == label)
            scores.append(right / total)
        assert row.last == pytest.approx(np.mean(scores))
        assert row.delta == pytest.approx(abs(row.last - row.best))


@pytest.mark.parametrize("how", ["none", "lp", "ft"])
def test_a_device_gets_the_images_of_an_evaluation_once(dataset: Path, how: str) -> None:
    """More epochs, each with a validation, and a second client of the same domain send no more images to it."""
    prepared = prepare(small(dataset))
    server, sent = prepared.method.init(0), []
    client = next(iter(prepared.new.values()))
    worker = WorkerContext(prepared.method, DEVICE)
    for epochs in (1, 3, 3):
        plan = replace(prepared.plan.adaptation, epochs=epochs, validate_every=1)
        with Accelerator() as device:
            serve(worker, server, ServeTask(client, how, "S", plan, 0))
        sent.append(device.pixels_sent)
    own = client.sized("S").pixels.size
    assert sent == [own + client.val.pixels.size + client.test.pixels.size, own, own]


def poisoned(prepared: Prepared) -> Prepared:
    """The same experiment in which every test label of every client is another class."""

    def wrong(client: Client) -> Client:
        return replace(client, test=replace(client.test, labels=(client.test.labels + 1) % 3))

    clients = {name: wrong(client) for name, client in prepared.clients.items()}
    return replace(prepared, clients=clients)


@pytest.mark.parametrize("method", ["fedavg", "fedbasis", "knn-per"])
def test_poisoned_test_labels_change_scores_and_nothing_else(dataset: Path, tmp_path: Path, method: str) -> None:
    settings = {"fedbasis": {"bases": 2, "warm_start": 0.5}, "knn-per": {"lam": "tuned"}}.get(method, {})
    prepared = prepare(parse(raw(dataset, method, method=settings, train={"serve_every": 1})))
    clean, bad = (execute(p, tmp_path / name) for name, p in (("a", prepared), ("b", poisoned(prepared))))
    for name in CHOICES:
        assert [r[name] for r in read_lines(clean.evaluation)] == [r[name] for r in read_lines(bad.evaluation)]
    tensors = [(run.bases / "tensors.safetensors").read_bytes() for run in (clean, bad)]
    assert tensors[0] == tensors[1]
    rows = [json.loads(run.results.read_text()) for run in (clean, bad)]
    assert [(r["how"], r["size"], r["rate"]) for r in rows[0]] == [(r["how"], r["size"], r["rate"]) for r in rows[1]]
    assert all(a["last"] != b["last"] for a, b in zip(*rows, strict=True))
    skipped = ("seconds", "served", "peak_memory")
    lines = [
        [{key: value for key, value in line.items() if key not in skipped} for line in read_lines(run.metrics)]
        for run in (clean, bad)
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("method", ["ditto", "apfl", "l2gd", "lg-fedavg", "fedper", "fedrep", "fed-mtl", "local"])
def test_a_client_that_took_part_is_scored_with_what_it_kept(dataset: Path, tmp_path: Path, method: str) -> None:
    serve = {"whom": "participating", "ways": ["client-state"]}
    prepared = prepare(parse(raw(dataset, method, personalize=serve, data={"new_clients": 0, "split": [80, 0, 5, 15]})))
    run = execute(prepared, tmp_path)
    (row,) = json.loads(run.results.read_text())
    assert (row["how"], row["size"]) == ("client-state", "M")
    # The same by hand: two rounds, one more whose updates are discarded, and every client's last own model.
    algorithm, seed = prepared.method, prepared.experiment.seed
    server, kept = algorithm.init(seed), dict[str, Any]()
    model = algorithm.task.network.workspace()
    for number in range(3):
        updates = []
        for name, client in prepared.served.items():
            received = algorithm.broadcast(server, name)
            sent, kept[name] = algorithm.client_update(
                received, kept.get(name), examples_of(client.train), Context(seed, name, model, number)
            )
            updates.append((name, sent))
        server = algorithm.aggregate(server, updates, seed) if number < 2 else server
    for name, client in prepared.served.items():
        mine, shared = kept[name][algorithm.state_group], algorithm.model(server)
        own = {**shared, **mine}
        if method == "apfl":
            own = {n: (shared[n] + mine[n]) / 2 if n in algorithm.task.parameters else mine[n] for n in mine}
        model.load(own)
        pixels = torch.from_numpy(client.test.pixels)
        guesses = predict(model.module, pixels, algorithm.task.recipe.preprocessing).argmax(1).numpy()
        assert row["per_client"][name] == weighted_accuracy(guesses, client.test.labels, client.test_weights)
    assert len({round(score, 6) for score in row["per_client"].values()}) > 1


def test_kept_is_refused_where_there_is_nothing_of_its_own(dataset: Path) -> None:
    for method, whom in (("fedavg", "participating"), ("ditto", "new")):
        with pytest.raises(InputError, match=r"personalize\.ways has 'client-state'"):
            parse(raw(dataset, method, personalize={"whom": whom, "ways": ["client-state"]}))
    with pytest.raises(InputError, match=r"data\.new_clients is 0, so there are no clients to serve"):
        parse(raw(dataset, data={"new_clients": 0, "split": [80, 0, 5, 15]}))


def test_methods_that_say_what_they_keep_can_be_served_with_it() -> None:
    named = {name for name, method in METHODS.items() if method.state_group}
    assert named == {
        "local", "pfedme", "ditto", "apfl", "l2gd", "lg-fedavg", "fedper", "fedrep", "fedbn", "fed-mtl", "fedfomo",
        "fedamp",
    }  # fmt: skip


def test_a_curve_of_clients_that_took_part_ends_where_their_results_are(dataset: Path, tmp_path: Path) -> None:
    """Without the final round, which comes after the last point of a curve."""
    serve = {"whom": "participating", "ways": ["client-state"], "final_round": False}
    run = execute(prepare(parse(raw(dataset, "ditto", personalize=serve, train={"serve_every": 2}))), tmp_path)
    (row,) = json.loads(run.results.read_text())
    assert read_lines(run.metrics)[-1]["served"] == row["last"]


def test_clients_that_took_part_need_a_size_of_all_their_images(dataset: Path) -> None:
    with pytest.raises(InputError, match=r"data\.sizes has no size of 1\.0"):
        parse(raw(dataset, "ditto", personalize={"whom": "participating"}, data={"sizes": {"S": 0.5}}))


def test_test_labels_choose_nothing(dataset: Path, tmp_path: Path) -> None:
    prepared = prepare(small(dataset))
    honest = execute(prepared, tmp_path / "honest")
    other = execute(poisoned(prepared), tmp_path / "poisoned")
    lines = [
        [{k: v for k, v in line.items() if k not in ("seconds", "peak_memory")} for line in read_lines(run.evaluation)]
        for run in (honest, other)
    ]
    assert lines[0] == lines[1]  # epochs, validation scores and predictions are the same
    rows = [json.loads(run.results.read_text()) for run in (honest, other)]
    assert [row["rate"] for row in rows[0]] == [row["rate"] for row in rows[1]]
    assert [row["last"] for row in rows[0]] != [row["last"] for row in rows[1]]  # only the scores differ
