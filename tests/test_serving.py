"""Whom a run serves and what it may look at: test labels choose nothing, participants have what they kept."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pflbed
from fedbasis.experiment import Prepared, execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.experiment.reuse import reuse_training
from fedbasis.methods import METHODS
from fedbasis.methods.base import Context
from fedbasis.networks.train import examples_of, predict
from fedbasis.training.runs import read_lines
from pflbed import Client, weighted_accuracy
from pflbed.errors import InputError

CHOICES = ("client", "how", "size", "rate", "losses", "validation", "best_epoch", "last_predicted", "best_predicted")


def raw(folder: Path, name: str = "fedavg", /, **sections: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "data": {"source": str(folder), "resolution": 12, "clients": 3, "new_clients": 1},
        "model": {"options": {"norm": "batch"}},
        "train": {"rounds": 2, "epochs": 1, "rate": 0.05, "batch": 8},
        "personalize": {"epochs": 3, "rates": [0.01, 0.05]},
        "machine": {"device": "cpu"}, "method": {"name": name},
    }  # fmt: skip
    return {**base, **{key: {**base[key], **section} for key, section in sections.items()}}


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
    # The same by hand: two rounds, and every client's last own model.
    algorithm, seed = prepared.method, prepared.experiment.seed
    server, kept = algorithm.init(seed), dict[str, Any]()
    model = algorithm.task.network.workspace()
    for number in range(2):
        updates = []
        for name, client in prepared.served.items():
            received = algorithm.broadcast(server, name)
            sent, kept[name] = algorithm.client_update(
                received, kept.get(name), examples_of(client.train), Context(seed, name, model, number)
            )
            updates.append((name, sent))
        server = algorithm.aggregate(server, updates, seed)
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
        with pytest.raises(InputError, match=r"personalize\.ways holds 'client-state'"):
            parse(raw(dataset, method, personalize={"whom": whom, "ways": ["client-state"]}))
    with pytest.raises(InputError, match=r"data\.new_clients is 0, so there is nobody to serve"):
        parse(raw(dataset, data={"new_clients": 0, "split": [80, 0, 5, 15]}))


def test_methods_that_say_what_they_keep_can_be_served_with_it() -> None:
    named = {name for name, method in METHODS.items() if method.state_group}
    assert named == {
        "local", "pfedme", "ditto", "apfl", "l2gd", "lg-fedavg", "fedper", "fedrep", "fedbn", "fed-mtl", "fedfomo",
        "fedamp",
    }  # fmt: skip


def test_a_limit_takes_as_many_of_every_class_and_changes_the_run(dataset: Path, tmp_path: Path) -> None:
    whole, part = (prepare(parse(raw(dataset, data=d))) for d in ({}, {"limit": 20}))
    table = part.benchmark.table
    counts = np.bincount(table.labels + 3 * table.domains)
    assert counts.tolist() == [20] * 6
    assert set(table.paths) < set(whole.benchmark.table.paths)
    assert part.run(tmp_path) != whole.run(tmp_path)
    row = int(part.benchmark.rows(part.benchmark.new[0])[0])
    place = whole.benchmark.table.paths.index(table.paths[row])
    clients = pflbed.clients(whole.benchmark, next(iter(whole.clients.values())).train.source)
    assert np.array_equal(part.clients[part.benchmark.new[0]].train.pixels[0], clients.pixels[place])


@pytest.mark.parametrize("method", ["fedavg", "fedbasis", "fedbn"])
def test_a_lent_training_ends_with_the_bits_of_ones_own(dataset: Path, tmp_path: Path, method: str) -> None:
    settings = {"fedbasis": {"bases": 2, "warm_start": 0.5}}.get(method, {})
    donor, other = (
        prepare(parse(raw(dataset, method, method=settings, personalize=p))) for p in ({"epochs": 1}, {"rates": [0.02]})
    )
    assert donor.training_digest == other.training_digest
    assert donor.run(tmp_path) != other.run(tmp_path)
    execute(donor, tmp_path / "lent")
    found = reuse_training(other, tmp_path / "lent")
    assert found is not None
    assert found.folder == donor.run(tmp_path / "lent").folder
    lent, own = execute(other, tmp_path / "lent"), execute(other, tmp_path / "own")
    for name in CHOICES:
        assert [r[name] for r in read_lines(lent.evaluation)] == [r[name] for r in read_lines(own.evaluation)]
    assert (lent.bases / "card.json").read_bytes() == (own.bases / "card.json").read_bytes()
    another = prepare(parse(raw(dataset, method, method=settings, train={"rounds": 3})))
    assert reuse_training(another, tmp_path / "lent") is None


def test_what_clients_keep_is_not_lent(dataset: Path, tmp_path: Path) -> None:
    plain = prepare(parse(raw(dataset, "ditto", personalize={"whom": "participating", "ways": ["ditto"]})))
    execute(plain, tmp_path)
    kept = prepare(parse(raw(dataset, "ditto", personalize={"whom": "participating", "ways": ["client-state"]})))
    assert kept.training_digest == plain.training_digest
    assert reuse_training(kept, tmp_path) is None


def test_a_curve_of_clients_that_took_part_ends_where_their_results_are(dataset: Path, tmp_path: Path) -> None:
    serve = {"whom": "participating", "ways": ["client-state"]}
    run = execute(prepare(parse(raw(dataset, "ditto", personalize=serve, train={"serve_every": 2}))), tmp_path)
    (row,) = json.loads(run.results.read_text())
    assert read_lines(run.metrics)[-1]["served"] == row["last"]


def test_clients_that_took_part_need_a_size_of_all_their_images(dataset: Path) -> None:
    with pytest.raises(InputError, match=r"data\.sizes has no size of 1\.0"):
        parse(raw(dataset, "ditto", personalize={"whom": "participating"}, data={"sizes": {"S": 0.5}}))
