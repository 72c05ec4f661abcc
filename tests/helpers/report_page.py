"""Run folders written by hand, for the tests of the page."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pflbed
from fedbasis.methods import METHODS
from fedbasis.report.groups import Group, grouped
from fedbasis.report.runs import read_runs
from fedbasis.serving.personalize import all_ways, label, label_of
from fedbasis.training.runs import Run
from pflbed import Spec, Table

Ways = Mapping[str, Sequence[float]]
"""The accuracy of every new client, by way of personalizing."""


def clients_of(count: int) -> pflbed.Benchmark:
    """Build a benchmark with two domains and so many new clients in each."""
    images = 2 * 60 * (count + 2)
    table = Table(
        paths=tuple(f"image {i}" for i in range(images)), labels=np.arange(images) % 2,
        domains=np.arange(images) // (images // 2), class_names=("cat", "dog"), domain_names=("ink", "chalk"),
        digest="d1" * 32,
    )  # fmt: skip
    return pflbed.build(table, Spec(clients_per_domain=2, new_clients_per_domain=count, sizes={"S": 0.5}, seed=0))


def write_run(
    folder: Path, method: str, ways: Ways, *, rounds: int = 3, of: int = 3, losses: Sequence[float] = (3.0, 2.0, 1.0),
    validation: Sequence[float] = (0.5, 0.6), every: int = 1, more: Mapping[str, Any] | None = None,
    line: Mapping[str, Any] | None = None,
) -> Run:  # fmt: skip
    """Write a run; ``more`` is added to every evaluation record, ``line`` to every round of the log."""
    folder.mkdir(parents=True)
    data = {"sizes": {"S": 0.5}, "source": "images/d1"}
    (folder / "config.json").write_text(
        json.dumps({"seed": 0, "data": data, "train": {"rounds": of}, "method": {"name": method}})
    )
    log = [
        {"round": i + 1, "rounds": of, "seconds": 1.0, "bytes_up": 1000, "bytes_down": 1000, "loss": losses[i],
         "validation": 0.1 * i, **(line or {})}
        for i in range(rounds)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in log))
    if method in METHODS:
        labels = {way: label_of(METHODS[method], way) for way in all_ways(METHODS[method])}
        about = {"title": METHODS[method].about.title, "labels": labels, "charts": {}}
        (folder / "method.json").write_text(json.dumps(about))
    if not ways:
        return Run(folder)
    benchmark = clients_of(len(next(iter(ways.values()))) // 2)
    rows, records = [], []
    for how, scores in ways.items():
        mean = float(np.mean(scores))
        rows.append({
            "method": method, "label": label(method, how), "how": how, "size": "S", "rate": 0.01, "last": mean,
            "best": mean, "last_global": 0.5, "seconds": 1.0,
            "per_client": dict(zip(benchmark.new, map(float, scores), strict=True)),
        })  # fmt: skip
        for client in benchmark.new:
            curve = [0.3] if how == "none" else list(validation)
            records.append({
                "client": client, "domain": client.rpartition("/")[0], "how": how, "size": "S", "rate": 0.01,
                "validate_every": every, "validation": curve, **({} if how == "none" else more or {}),
            })  # fmt: skip
    (folder / "evaluation.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "results.json").write_text(json.dumps(rows))
    benchmark.save(folder / "benchmark")
    (folder / "done").write_text("{}")
    return Run(folder)


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """Read and group runs as the page does."""
    return grouped(read_runs(runs))
