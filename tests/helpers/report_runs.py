"""Run folders written by hand, and what reads a page about them."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

import pflbed
from fedbasis.methods import METHODS
from fedbasis.methods.base import Method, ValueTable
from fedbasis.report import write_report
from fedbasis.report.groups import Group, grouped
from fedbasis.report.runs import read_runs
from fedbasis.serving.personalize import all_ways, label, label_of
from fedbasis.serving.tables import as_record
from fedbasis.training.runs import Run
from pflbed import Spec, Table

HOSTILE = "<script>alert('$x\\frac$')</script>&\"\x01"


SHARES = {"S": 0.5, "M": 1.0}


CONFIG: dict[str, Any] = {"seed": 0, "data": {"sizes": {"M": 1.0, "S": 0.5}}, "train": {"rounds": 3}}


LEARNED = {
    "alpha": as_record(
        ValueTable(
            title="Coefficients",
            columns=["basis 1", "basis 2"],
            rows={"one": [0.25, 0.75], "two": [1.0, 0.0]},
            shares=True,
        )
    )
}
Scores = dict[str, dict[str, list[float]]]  # way -> size -> accuracy of every new client


def benchmark_of(
    domains: tuple[str, ...], classes: tuple[str, ...], seed: int = 0, data: str = "d1"
) -> pflbed.Benchmark:
    count = len(domains) * 80
    table = Table(
        paths=tuple(f"image {i}" for i in range(count)), labels=np.arange(count) % len(classes),
        domains=np.arange(count) // 80, class_names=classes, domain_names=domains, digest=data * 32,
    )  # fmt: skip
    return pflbed.build(table, Spec(clients_per_domain=2, new_clients_per_domain=2, sizes=SHARES, seed=seed))


def describe(folder: Path, method: type[Method]) -> None:
    """Write what a method tells about itself, as a training does."""
    labels = {way: label_of(method, way) for way in all_ways(method)}
    about = {"title": method.about.title, "labels": labels, "charts": dict(method.about.charts)}
    (folder / "method.json").write_text(json.dumps(about))


def make_run(
    folder: Path, method: str, scores: Scores, *, domains: tuple[str, ...] = ("ink", "chalk"),
    classes: tuple[str, ...] = ("cat", "dog"), seed: int = 0, rounds: int = 3,
    split: int | None = None, settings: dict[str, Any] | None = None, data: str = "d1",
) -> Run:  # fmt: skip
    """Write a run folder by hand; without scores it is unfinished, and ``split`` is its benchmark's seed if another."""
    folder.mkdir(parents=True)
    config = {**CONFIG, "seed": seed, "method": {"name": method, **(settings or {})}}
    config["data"] = {**config["data"], "source": f"images/{data}"}
    (folder / "config.json").write_text(json.dumps(config))
    if method in METHODS:
        describe(folder, METHODS[method])
    lines: list[dict[str, Any]] = []
    for number in range(1, rounds + 1):
        line: dict[str, Any] = {"round": number, "rounds": 3, "clients": 4, "refused": [], "seconds": 2.0, "loss": 1.0}
        line |= {"bytes_up": 1000, "bytes_down": 1000 * number, "validation": None if number == 1 else 0.5}
        if method == "fedbasis":
            line |= {"phase": "bases" if number > 1 else "warm start"}
            line |= {"cosine": {"network": 0.9, "one": 0.8, "two": 1.0}} if number > 1 else {}
            line |= {"entropy": {"one": 0.2, "two": 0.4}} if number > 2 else {}
        lines.append(line)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if not scores:
        return Run(folder)
    benchmark = benchmark_of(domains, classes, seed if split is None else split, data)
    rows, records = [], []
    for how, by_size in scores.items():
        for size, values in by_size.items():
            per_client = dict(zip(benchmark.new, values, strict=True))
            mean = float(np.mean(values))
            rows.append({
                "method": method, "label": label(method, how), "how": how, "size": size, "rate": 0.01, "last": mean,
                "best": mean + 0.02, "delta": 0.02, "last_global": 0.5, "seconds": 1.5, "per_client": per_client,
            })  # fmt: skip
            for client in benchmark.new:
                for rate in (0.01, 0.05):
                    record: dict[str, Any] = {
                        "client": client,
                        "domain": client.rpartition("/")[0],
                        "how": how,
                        "size": size,
                    }
                    record |= {
                        "rate": rate,
                        "validate_every": 1,
                        "validation": [0.5, 0.6],
                        "losses": [1.5, 1.0],
                    }
                    records.append(record | ({"learned": LEARNED} if "coefficients" in how else {}))
    (folder / "evaluation.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "results.json").write_text(json.dumps(rows))
    benchmark.save(folder / "benchmark")
    (folder / "done").write_text("{}")
    return Run(folder)


FEDAVG: Scores = {
    "none": {"S": [0.4, 0.4, 0.6, 0.6], "M": [0.4, 0.4, 0.6, 0.6]},
    "ft": {"S": [0.7, 0.7, 0.8, 0.9], "M": [0.9, 0.9, 0.9, 0.9]},
}


FEDBASIS: Scores = {"coefficients+classifier": {"S": [0.8, 0.8, 0.7, 0.95], "M": [0.8, 0.8, 0.85, 0.85]}}


def groups_of(runs: list[Run]) -> list[Group]:
    return grouped(read_runs(runs))


def two_in(folder: Path) -> list[Run]:
    return [make_run(folder / "fedavg-a", "fedavg", FEDAVG), make_run(folder / "fedbasis-b", "fedbasis", FEDBASIS)]


def page(runs: list[Run], folder: Path) -> str:
    path = folder / "out" / "report.html"
    write_report(runs, path)
    assert [child.name for child in path.parent.iterdir()] == ["report.html"]
    return path.read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Collects the tables, every tag with its attributes, and the ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[tuple[str, str]]]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append(("", dict(attrs).get("title") or ""))
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("th", "td")

    def handle_data(self, data: str) -> None:
        if self._cell:
            text, title = self.tables[-1][-1][-1]
            self.tables[-1][-1][-1] = (text + data, title)


def texts(row: list[tuple[str, str]]) -> list[str]:
    return [text for text, _ in row]
