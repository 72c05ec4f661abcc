"""Bytes on the wire of a real federation, counted by a proxy before the SuperLink; accuracy by download; latency.

    python benchmarks/wire.py            # all tables; needs pip install 'fedbasis[flower]'

Every node has a proxy of its own to the SuperLink of a loopback deployment, so what it sends and gets is counted as it
is on the wire: TLS, HTTP, Flower's own messages and the tensors. A first round carries the app to the nodes; it is left
out. The accuracy of downloads in bfloat16 and of compact ones is that of simulations on the embedded data. The latency
is that of rounds with next to no work, with app processes that are forked from one that has imported torch, and with
Flower's own, which import it for every message.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pflbed
from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.flower.deployment import Deployment
from fedbasis.flower.example import nodes_of
from fedbasis.flower.prefork import programs_of
from fedbasis.flower.project import LOOPBACK, NodeEntry, Project, create, toml
from fedbasis.training.runs import read_lines
from pflbed.dataset import find

ROUNDS = 3
SKIPPED = 1
"""Rounds that are not counted: in the first the app travels, and FedBasis warms up."""


class Proxy:
    """Pass connections on to a port and count the bytes of both directions."""

    def __init__(self, port: int) -> None:
        self._port, self.up, self.down = port, 0, 0
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection((LOOPBACK, self._port))
            except OSError:  # the SuperLink is gone
                near.close()
                continue
            threading.Thread(target=self._pass, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
                if up:
                    self.up += len(data)
                else:
                    self.down += len(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:  # either end is gone
            return


class Counted(Deployment):
    """A deployment whose nodes each talk through a proxy."""

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        self.project = project
        self.proxies: list[Proxy] = []

    def superlink_port(self) -> int:
        """Give every node a way of its own."""
        self.proxies.append(Proxy(self.port))
        return self.proxies[-1].port

    def total(self) -> tuple[int, int]:
        """Add up what all nodes have sent and got."""
        return sum(proxy.up for proxy in self.proxies), sum(proxy.down for proxy in self.proxies)

    def count(self, out: Path, nodes: int) -> tuple[float, float, dict[str, Any]]:
        """Run the app; return the bytes up and down of a node in a round, and the last line of the log."""
        (plan,) = self.project.plans()
        run, marks = plan.run(out), {0: self.total()}

        def look() -> None:
            marks.setdefault(len(read_lines(run.metrics)), self.total())

        self.run(out, look)
        (up, down), (before_up, before_down) = self.total(), marks[SKIPPED]
        shares = nodes * (ROUNDS - SKIPPED)
        return (up - before_up) / shares, (down - before_down) / shares, read_lines(run.metrics)[-1]


def experiment(method: str, model: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    return {
        "data": {"resolution": 28},
        "model": dict(model),
        "train": {"rounds": ROUNDS, "epochs": 1, "batch": 16},
        "method": {"name": method, **settings},
    }


def wire(model: Mapping[str, Any], wanted: Sequence[tuple[str, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Measure every method in turn: bytes of a node in a round, the mean over nodes and rounds."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder, bench = Path(place) / "federation", Path(place) / "bench"
        dataset = find("digits4")
        spec = pflbed.Spec(clients_per_domain=20, new_clients_per_domain=1)
        pflbed.write(pflbed.build(dataset.table, spec), dataset, bench)
        found = nodes_of(str(bench), 2, folder)
        project = create(folder, experiment("fedavg", model), found.clients, {}, found.classes)
        with Counted(project) as deployment:
            deployment.register(project.nodes())
            for node in project.nodes():
                deployment.start_node(node)
            for method, download, settings in wanted:
                for old in (project.app / "experiments").iterdir():
                    old.unlink()
                text = toml(experiment(method, model, **settings))
                (project.app / "experiments" / f"{method}.toml").write_text(text)
                terms = {"clients": list(found.clients), "classes": list(found.classes), "download": download}
                (project.app / "federation.toml").write_text(toml(terms))
                up, down, last = deployment.count(folder / "runs", len(found.clients))
                rows.append({"method": method, "download": download, "up": up, "down": down,
                             "tensors_up": last["bytes_up"], "tensors_down": last["bytes_down"]})  # fmt: skip
                print(json.dumps(rows[-1]), flush=True)
    return rows


class Timed(Deployment):
    """A deployment that notes when rounds end; its app processes are forked, or start by themselves."""

    def __init__(self, project: Project, fork: bool) -> None:
        super().__init__(project)
        self._fork = fork

    def start_node(self, node: NodeEntry) -> "subprocess.Popen[bytes]":
        """Start a node; without forks, Flower finds its own programs on the PATH."""
        if not self._fork:
            shutil.rmtree(programs_of(self._prefork))
        return super().start_node(node)

    def rounds(self, out: Path) -> list[float]:
        """Run the app; return the seconds of every round but the first."""
        (plan,) = self._project.plans()
        run, ends = plan.run(out), dict[int, float]()

        def look() -> None:
            ends.setdefault(len(read_lines(run.metrics)), time.monotonic())

        self.run(out, look)
        return [ends[i + 1] - ends[i] for i in range(1, max(ends)) if i + 1 in ends]


def latency(rounds: int = 8) -> None:
    """Time rounds of two nodes with a tiny model and eight images each, with and without forks."""
    for fork in (True, False):
        with tempfile.TemporaryDirectory() as place:
            folder, bench = Path(place) / "federation", Path(place) / "bench"
            dataset = find("digits4")
            spec = pflbed.Spec(clients_per_domain=40, new_clients_per_domain=1)
            pflbed.write(pflbed.build(dataset.table, spec), dataset, bench)
            found = nodes_of(str(bench), 2, folder)
            tiny = experiment("fedavg", {"name": "cnn-small"})
            tiny["train"]["rounds"] = rounds
            project = create(folder, tiny, found.clients, {}, found.classes)
            with Timed(project, fork) as deployment:
                deployment.register(project.nodes())
                for node in project.nodes()[:1]:
                    deployment.start_node(node)
                for node in project.nodes()[1:]:
                    Deployment.start_node(deployment, node)
                seconds = deployment.rounds(folder / "runs")
        shown = {"forked": fork, "rounds": len(seconds), "median_seconds": round(statistics.median(seconds), 2)}
        print(json.dumps(shown), flush=True)


def accuracy(seeds: Sequence[int], out: Path) -> list[dict[str, Any]]:
    """Train FedAvg and FedBasis on a small Digits-4 with every download and score new clients."""
    rows = []
    for name, how in (("fedavg", "ft"), ("fedbasis", "coefficients+classifier")):
        for download in ("float32", "bfloat16", *(("compact",) if name == "fedbasis" else ())):
            scores = []
            for seed in seeds:
                plan = parse({
                    "seed": seed, "data": {"clients": 3, "new_clients": 5, "limit": 60},
                    "model": {"name": "cnn-small", "options": {"norm": "group"}},
                    "train": {"rounds": 8, "epochs": 2, "batch": 16, "rate": 0.02, "download": download},
                    "personalize": {"epochs": 10, "rates": [0.01], "validate_every": 10, "ways": [how]},
                    "machine": {"engine": "serial"},
                    "method": {"name": name, **({"coefficient_epochs": 1} if name == "fedbasis" else {})},
                })  # fmt: skip
                run = execute(prepare(plan), out)
                scores.append(next(row["last"] for row in json.loads(run.results.read_text()) if row["size"] == "M"))
            rows.append({"method": name, "download": download, "last": [round(100 * s, 2) for s in scores]})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("bytes", "accuracy", "latency"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="keep the runs that score accuracy here")
    chosen = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if chosen.only in (None, "latency"):
        latency()
    if chosen.only in (None, "bytes"):
        model = {"name": "resnet10", "options": {"width": 32, "norm": "group"}}
        wire(model, [("fedavg", "float32", {}), ("fedbasis", "float32", {"bases": 2}),
                     ("fedbasis", "bfloat16", {"bases": 2}), ("fedbasis", "compact", {"bases": 2})])  # fmt: skip
    if chosen.only in (None, "accuracy"):
        with tempfile.TemporaryDirectory() as place:
            accuracy(range(chosen.seeds), chosen.out or Path(place))


if __name__ == "__main__":
    main()
