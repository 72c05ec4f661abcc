"""Real federations: SuperLink, SuperNodes and apps in processes of this machine, and everything that can go wrong.

Flower starts a process of some seconds for every message. So all methods are trained at once, with whatever goes wrong.
"""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import pflbed
from fedbasis.cli.inspection import describe_folder
from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.flower.deployment import Deployment
from fedbasis.flower.keys import make_node_key
from fedbasis.flower.project import NodeEntry, create, toml
from fedbasis.flower.reaper import marked
from fedbasis.flower.settings import FederatedRun
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation
from fedbasis.report import write_report
from fedbasis.serving import artifact
from fedbasis.serving.new_client import serve_folder
from fedbasis.serving.tables import as_record
from fedbasis.tensors.params import State
from fedbasis.training.rounds import sampled, train
from fedbasis.training.runs import Run, read_lines
from helpers.cli_images import write_images
from helpers.cli_own import write_module
from helpers.flower_methods import VARIANTS, same
from pflbed.dataset import find

HERE = Path(__file__).parent
ONE_EACH = dict(reversed(VARIANTS.values()))
LONG = ("fedavg", "scaffold", "ditto")
"""The experiments with a third round, in which nodes are lost."""
FAULTS = {
    "fedavg": "nan",
    "scaffold": "shape",
    "fedprox": "extra",
    "per-fedavg-fo": "missing",
    "pfedme": "claim",
    "fedamp": "stale",
}
"""What a node sends wrong, by experiment."""


def experiment(method: str, rounds: int = 2, **settings: Any) -> dict[str, Any]:
    return {
        "data": {"resolution": 12},
        "model": {"name": "cnn-small", "options": {"norm": "batch"}},
        "train": {"rounds": rounds, "epochs": 1, "batch": 8, "rate": 0.05},
        "personalize": {"epochs": 2},
        "machine": {"checkpoint_seconds": 0.0},
        "method": {"name": method, **settings},
    }


def own_experiment() -> dict[str, Any]:
    """A network and a method of the user's."""
    return {**experiment("mymodule:Mine"), "model": {"name": "mymodule:network", "options": {"width": 4}}}


def instance_experiment() -> dict[str, Any]:
    """A network that is an ``nn.Module`` instance of the user's file, with its weights."""
    return {**experiment("fedavg"), "model": {"name": "mymodule:instance"}}


def installed_experiment() -> dict[str, Any]:
    """A network and a method of an installed package, for gray images that are not square."""
    return {
        **experiment("my-own"),
        "model": {"name": "my-net"},
        "data": {"resolution": [12, 16], "channels": 1},
    }


OWN = {"own": own_experiment(), "instance": instance_experiment(), "installed": installed_experiment()}


class Federation:
    """A project with three nodes and one that comes later, and the processes that serve it."""

    def __init__(self, root: Path) -> None:
        data = root / "data"
        for domain, name in enumerate(("chalk", "paint")):
            write_images(data / name, 20, domain, seed=domain)
        dataset = find(data)
        self.benchmark = pflbed.build(dataset.table, pflbed.Spec(clients_per_domain=2, new_clients_per_domain=1))
        pflbed.write(self.benchmark, dataset, root / "bench")
        self.names = list(self.benchmark.participating)[:3]
        mine = write_images(root / "mine", 8, 0, seed=9)
        where = {name: str(root / "bench") for name in self.names}
        self.project = create(
            root / "project", experiment("fedavg"), where, {"late": str(mine)}, self.benchmark.table.class_names
        )
        self.root, self.signals = root, root / "signals"
        self.signals.mkdir()

    def experiments(self, wanted: dict[str, dict[str, Any]], **terms: Any) -> list[FederatedRun]:
        folder = self.project.app / "experiments"
        shutil.rmtree(folder)
        folder.mkdir()
        for name, settings in wanted.items():
            (folder / f"{name}.toml").write_text(toml(settings))
        agreed = {"clients": self.names, "classes": list(self.benchmark.table.class_names), **terms}
        (self.project.app / "federation.toml").write_text(toml(agreed))
        return self.project.plans()

    def serial(self, plan: FederatedRun, run: Run) -> State:
        """Train in this process, in every round with the clients whose updates the federation used."""
        method, e = plan.method(), plan.experiment
        clients = pflbed.load(self.root / "bench", resolution=e.data.resolution, channels=e.data.channels)
        data = {name: clients[name].train for name in self.names}
        engine = Simulation(InProcess(method), data, e.seed)
        server = method.init(e.seed)
        for number, line in enumerate(read_lines(run.metrics)):
            lost = {*line["refused"], *line.get("absent", ())}
            used = [name for name in sampled(self.names, 1.0, e.seed, number) if name not in lost]
            server = method.aggregate(server, engine.map(server, used, number), e.seed)
        return method.serving.published(server)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, installed: Path) -> Iterator[Federation]:
    places = [str(HERE.parents[1] / "src"), str(installed), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(installed))
        patch.setenv("PYTHONPATH", os.pathsep.join(places))
        patch.setenv("OMP_NUM_THREADS", "1")
        made = Federation(tmp_path_factory.mktemp("federation"))
        patch.setenv("FEDBASIS_TEST_SIGNALS", str(made.signals))
        yield made


@pytest.fixture(scope="module")
def deployment(federation: Federation) -> Iterator[Deployment]:
    nodes = federation.project.nodes()
    with Deployment(federation.project) as made:
        made.register(nodes)
        for node in nodes:
            if not node.new:
                made.start_node(node)
        yield made
    assert not marked(made.mark)


def test_compact_downloads_give_the_bits_of_a_simulation(
    federation: Federation, deployment: Deployment, tmp_path: Path
) -> None:
    """One round of the warm start, then bases, which are coded.

    It comes before the test that hangs and kills nodes.
    """
    (plan,) = federation.experiments({"fedbasis": experiment("fedbasis", 2, bases=2)}, download="compact")
    deployment.run(tmp_path)
    run, method, seed = plan.run(tmp_path), plan.method(), plan.experiment.seed
    clients = pflbed.load(federation.root / "bench", resolution=plan.experiment.data.resolution)
    data = {name: clients[name].train for name in federation.names}
    engine = Simulation(InProcess(method), data, seed, download="compact")
    server = train(method, engine, federation.names, seed, download="compact")
    assert same(artifact.load(run.bases, "bases")[1], server)
    warm_start, bases = (line["bytes_down"] for line in read_lines(run.metrics))
    assert bases < 3 * warm_start  # three models at a good half of the bytes of bfloat16, in which the first round is


def test_every_method_gives_the_bits_of_serial_whatever_goes_wrong(
    federation: Federation, deployment: Deployment
) -> None:
    """Round 1: one node sends what it must not, another a flood. Round 2: all are back. Round 3: a hang and a kill.

    The server's app is killed after the first round, and a SuperNode is started again. All this time a node whose key
    is not registered wants to join, and nobody talks to another machine.
    """
    _, second, third = federation.names
    project, out = federation.project, federation.root / "runs"
    stranger = NodeEntry(name=federation.names[0], data=str(federation.root / "mine"), key="keys/stranger.key")
    make_node_key(project.keys / "stranger.key")
    unknown = deployment.start_node(stranger)
    app = project.app / "fedbasis_app.py"
    ordinary = app.read_text()
    shutil.copy(HERE.parent / "helpers" / "flower_faults.py", app)
    write_module(project.app)  # a network and a method of the user's, which Flower carries to the nodes
    wanted = {name: experiment(name, 3 if name in LONG else 2, **config) for name, config in ONE_EACH.items()}
    plans = federation.experiments({**wanted, **OWN}, minimum=0.3)
    assert {plan.experiment.method_name for plan in plans} == {*METHODS, "mymodule:Mine", "my-own"}
    wrong = {second: {"0": FAULTS, "2": {"*": "hang"}}, third: {"0": {"*": "flood"}, "2": {"*": "hang"}}}
    nodes = {node.name: node for node in project.nodes()}
    at_work = {name: project.state(nodes[name]) / "at-work" for name in federation.names}
    for name, path in at_work.items():
        path.with_name("faults.json").write_text(json.dumps(wrong.get(name, {})))
    runs = [plan.run(out) for plan in plans]
    done: list[str] = []
    seen = Sockets(deployment)

    def interfere() -> None:
        seen.look()
        if not done and all(len(read_lines(run.metrics)) == 1 and run.checkpoint.exists() for run in runs):
            done.append("server")
            servers = [p for p in marked(deployment.mark) if name_of(p) == "flwr-serverapp"]
            assert len(servers) == 1
            os.kill(servers[0], signal.SIGKILL)
            raise KilledError
        if done == ["server"] and at_work[second].read_text() == at_work[third].read_text() == "2":
            done.append("node")
            deployment.nodes[third].kill()
            deployment.nodes[third].wait()
            (federation.signals / "killed").touch()

    with pytest.raises(KilledError):
        deployment.run(out, interfere)
    assert not any(run.done for run in runs)
    deployment.nodes[second].terminate()
    deployment.nodes[second].wait()
    deployment.start_node(nodes[second])  # what it kept is on its disk
    (federation.signals / "resumed").touch()
    deployment.run(out, interfere)
    assert done == ["server", "node"]
    app.write_text(ordinary)
    assert unknown.poll() not in (None, 0)  # its key is not registered, whatever it calls itself
    assert not project.state(stranger).joinpath("runs").exists()
    assert not seen.elsewhere
    assert seen.looks > 3
    for plan, run in zip(plans, runs, strict=True):
        lines = read_lines(run.metrics)
        assert [line["round"] for line in lines] == ([1, 2, 3] if plan.name in LONG else [1, 2]), plan.name
        assert lines[0]["refused"] == ([second, third] if plan.name in FAULTS else [third]), plan.name
        assert "10737418240" in lines[0]["reasons"][third]
        assert (lines[1]["refused"], lines[1].get("absent")) == ([], None), plan.name
        if plan.name in LONG:
            assert (lines[2]["refused"], lines[2]["absent"]) == ([], [second, third])
        if plan.name in FAULTS:
            assert REASONS[FAULTS[plan.name]] in lines[0]["reasons"][second]
        assert same(artifact.load(run.bases, "bases", trust=True)[1], federation.serial(plan, run)), plan.name
    reported = {plan.name: run for plan, run in zip(plans, runs, strict=True) if plan.name in (*OWN, "fedavg")}
    write_report(list(reported.values()), federation.root / "report.html")
    page = (federation.root / "report.html").read_text()
    assert "its server has no images to score" in page
    assert "My Own" in page
    assert f"2 updates were refused ({second} 1, {third} 1)" in page
    assert f"2 updates did not come in time ({second} 1, {third} 1)" in page
    own = [reported[name].folder for name in OWN]
    assert all("3 classes" in "\n".join(map(str, describe_folder(folder, trust=True))) for folder in own)


def test_a_node_that_comes_later_keeps_its_own_model(federation: Federation, deployment: Deployment) -> None:
    wanted = {"fedbasis": experiment("fedbasis", **ONE_EACH["fedbasis"]), **OWN}
    plan, *own = federation.experiments(wanted)
    (late,) = [node for node in federation.project.nodes() if node.new]
    deployment.start_node(late)
    found = deployment.run(federation.root / "runs", task="personalize", nodes=late.name)
    told = found["personalized"]["fedbasis"]["late"]
    models = federation.project.state(late).glob("runs/*/model")
    cards = {artifact.read_card(path).method: path for path in models}
    assert cards.keys() == {"fedbasis", "fedavg", "mymodule:Mine", "my_package:Mine"}
    assert all(run.run(federation.root / "runs").done for run in own)
    assert all(found["personalized"][name]["late"]["images"] == told["images"] for name in OWN)
    assert artifact.read_card(cards["my_package:Mine"]).architecture.channels == 1
    model = cards["fedbasis"]
    served = serve_folder(
        plan.run(federation.root / "runs").folder, federation.root / "mine", None, Adaptation(epochs=2, rate=0.005), 0
    )
    card, state = artifact.load(model, "model")
    assert (told["before"], told["after"], told["images"]) == (served.before, served.after, served.images)
    assert card.learned == {name: as_record(table) for name, table in served.tables.items()}
    assert "alpha" in card.learned
    assert same({"": served.fitted.tensors}, {"": {n: state[""][n] for n in served.fitted.tensors}})


class Sockets:
    """Watch who the deployment's processes talk to."""

    def __init__(self, deployment: Deployment) -> None:
        self._mark, self.calls, self.looks = deployment.mark, 0, 0
        self.elsewhere: set[tuple[str, str]] = set()

    def look(self) -> None:
        self.calls += 1
        if self.calls % 10:  # it is called often, and reads about every process of this machine
            return
        self.looks += 1
        owned = set()
        for process in marked(self._mark):
            for link in Path(f"/proc/{process}/fd").glob("*"):
                with contextlib.suppress(OSError):
                    owned.add(str(link.readlink()))
        for kind in ("tcp", "tcp6", "udp", "udp6"):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
                    local, remote, number = line.split()[1], line.split()[2], line.split()[9]
                    if f"socket:[{number}]" in owned and not (loopback(local) and loopback(remote)):
                        self.elsewhere.add((local, remote))


def loopback(address: str) -> bool:
    """Whether an address as /proc tells it is this machine's own, or that of nobody yet."""
    host, _, port = address.partition(":")
    return host.endswith("7F") or host == "0" * 24 + "01000000" or (set(host) == {"0"} and port == "0000")


REASONS = {
    "nan": "values that are not finite numbers (first in 'model/fc.bias')",
    "shape": "'model/fc.bias' is float32 (7,) instead of float32 (3,)",
    "extra": "'images/mine' is not expected",
    "missing": "'model/fc.bias' is missing",
    "claim": "it was cut short or changed ('model/fc.bias' does not fit into it)",
    "stale": "it must answer to round 0, but it answers to -1",
}


class KilledError(Exception):
    pass


def name_of(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text().strip()
    return ""
