"""What a user brings (a network, a method, images of any shape) works wherever a built-in one does.

Every row goes through a pool of two workers, personalization, inspection and a report. The rows of Ray use the one
cluster of all tests, or stand in tests/engines/ray (a user's script); those of a federation stand in
tests/flower/test_federation.py, beside its one deployment, and what no node can import in tests/flower/test_project.py.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedbasis as fb
import pflbed
from fedbasis.cli.inspection import describe_folder
from fedbasis.methods import find_method
from fedbasis.report import write_report
from fedbasis.training.runs import Run
from helpers.cli_images import write_images
from helpers.cli_own import TOML, own_clients, write_module
from helpers.cli_running import run_command, succeed
from helpers.cli_trials import MINUTES
from pflbed import InputError

TRAIN: dict[str, Any] = {"rounds": 2, "epochs": 1, "rate": 0.05, "device": "cpu"}
WORKERS = {"pool": 2, "ray": 1}
"""A worker of Ray is a process that imports torch; one shows what two would."""


@pytest.fixture(params=["pool", "ray"])
def engine(request: pytest.FixtureRequest) -> str:
    """The engines that send a user's objects elsewhere; Ray if it is installed and the tests have a cluster."""
    name: str = request.param
    if name == "ray":
        if find_spec("ray") is None:  # which is not imported here: the cluster sets its environment before that
            pytest.skip("ray is not installed")
        request.getfixturevalue("ray_connection")
    return name


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder with mymodule.py, on the path of this process and of those that it starts."""
    folder = write_module(tmp_path / "user")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))
    yield folder
    sys.modules.pop("mymodule", None)


def small(channels: int = 3, classes: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(3),
        nn.Flatten(), nn.Linear(54, classes),
    )  # fmt: skip


class Own(nn.Module):
    """A network whose class stands in this file, which no worker can import."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.layers = small(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def whole_way(method: fb.Method, clients: pflbed.Clients, folder: Path, engine: str, network: Any = None) -> fb.Trained:
    """Train with workers, personalize, save, load, predict, evaluate, inspect and report."""
    place: Any = {"engine": engine, "workers": WORKERS[engine], "device": "cpu"}
    options: Any = {**TRAIN, **place}
    trained = fb.train(method, clients, out=folder / "runs", **options)
    serial = fb.train(method, clients, **{**options, "engine": "serial"})
    assert trained.run is not None
    for group, tensors in serial.state.items():
        assert all(torch.equal(tensor, trained.state[group][name]) for name, tensor in tensors.items())
    images = next(iter(clients.new.values())).train
    mine = fb.personalize(trained, images, epochs=2)
    mine.save(folder / "model")
    again = fb.load(folder / "model", trust=True, network=network)
    assert isinstance(again, fb.Personal)
    assert torch.equal(again.predict(images), mine.predict(images))
    assert mine.predict(images).shape == (len(images), 3)
    scores = fb.evaluate(trained, clients.new, ways=["none"], sizes=["M"], **place)
    assert 0 <= scores["none", "M"].last <= 1
    with pytest.raises(InputError, match="--trust"):
        list(describe_folder(folder / "model"))
    told = "\n".join(map(str, describe_folder(trained.run.folder, True, network)))
    assert "3 classes" in told
    write_report([trained.run], folder / "page.html")
    assert method.about.title in (folder / "page.html").read_text(encoding="utf-8")
    return trained


@pytest.mark.parametrize(
    ("given", "engine"),
    [("of torch's classes", "pool"), ("of a class of the user's", "pool"), ("of a class of the user's", "ray")],
    indirect=["engine"],
)
def test_a_module_instance(given: str, engine: str, tmp_path: Path) -> None:
    """One of them for images of five channels that are not square."""
    torch.manual_seed(0)
    shape = (12, 12, 3) if given == "of torch's classes" else (12, 20, 5)
    network = small() if given == "of torch's classes" else Own(shape[2])
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    method = fb.FedBasis(network=network, bases=2, warm_start=0.5)
    trained = whole_way(method, own_clients(*shape), tmp_path, engine, network)
    assert all(torch.equal(tensor, network.state_dict()[name]) for name, tensor in before.items())  # it is only read
    assert isinstance(trained.module, type(network))


SCRIPT = '''
"""A user's script, without a guard around what it does."""

import sys
from pathlib import Path

from torch import nn

import fedbasis as fb
from fedbasis.cli.inspection import describe_folder
from helpers.cli_own import own_clients


def factory(classes, channels):
    layers = [nn.Conv2d(channels, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(54, classes)]
    return nn.Sequential(*layers)


class Quiet(fb.FedAvg):
    """A method of the script."""


clients, folder = own_clients(), Path(sys.argv[1])
method = Quiet(network=factory)
place = {"engine": sys.argv[2], "workers": 2, "device": "cpu"}
trained = fb.train(method, clients, rounds=2, epochs=1, out=folder / "runs", **place)
mine = fb.personalize(trained, clients["chalk/n00"].train, epochs=1)
mine.save(folder / "model")
assert fb.load(folder / "model", trust=True).predict(clients["chalk/n00"].test).shape[1] == 3
fb.evaluate(trained, clients.new, ways=["none"], sizes=["S"], **place)
assert "my_script:factory" in " ".join(map(str, describe_folder(trained.run.folder, True)))
print("started once", len(trained.metrics))
'''


def test_a_factory_and_a_method_of_the_users_script(tmp_path: Path) -> None:
    script = tmp_path / "my_script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "pool"], capture_output=True, text=True, check=False, cwd=tmp_path,
        timeout=MINUTES, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["started once 2"]
    (run,) = (tmp_path / "runs").iterdir()
    card = json.loads((run / "bases/card.json").read_text(encoding="utf-8"))
    assert (card["method"], card["architecture"]["name"]) == ("my_script:Quiet", "my_script:factory")
    write_report([Run(run)], tmp_path / "page.html")


def write_toml(folder: Path, data: Path, engine: str, network: str, method: str) -> Path:
    path, workers = folder / "my.toml", WORKERS.get(engine, 1)
    text = TOML.format(data=data, engine=engine, network=network, method=method)
    path.write_text(text.replace("workers = 2", f"workers = {workers}"), encoding="utf-8")
    return path


def commands(config: Path, folder: Path, title: str) -> None:
    """Train, inspect, personalize, predict and report by the command line; code is run only where it is trusted."""
    said = succeed("train", config, "--out", folder / "runs")
    assert title in said
    (run,) = (folder / "runs").iterdir()
    mine = write_images(folder / "mine", 8, 1, seed=3)
    personalize = ("personalize", run, "--data", mine, "--epochs", 2, "--out", folder / "model")
    for argv in (("inspect", run), personalize):
        ended = run_command(*argv)
        assert ended.code == 2
        assert "--trust" in ended.errors
    assert "Bases" in succeed("inspect", run, "--trust")
    assert "after 2 epochs" in succeed(*personalize, "--trust")
    assert "--trust" in run_command("predict", folder / "model", mine).errors
    assert "24" in succeed("predict", folder / "model", mine, "--labelled", "--trust")
    succeed("report", folder / "runs", "--out", folder / "page.html")
    assert title in (folder / "page.html").read_text(encoding="utf-8")


@pytest.fixture
def name(module: Path, engine: str) -> str:
    """The name of the user's module; a cluster that runs already has another of the same content on its path."""
    return "mymodule" if engine == "pool" else "helpers.cli_mymodule"


def test_a_network_and_a_method_named_in_toml(name: str, dataset: Path, tmp_path: Path, engine: str) -> None:
    config = write_toml(tmp_path, dataset, engine, f"{name}:network", f"{name}:Mine")
    commands(config, tmp_path, "My Own")
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("mine-")
    assert all(json.loads(line)["length"] > 0 for line in (run / "metrics.jsonl").read_text().splitlines())
    said = succeed("inspect", run, "--trust")
    for expected in ("What mine is", "0.9900", "My Own + FT", f"{name}:network"):
        assert expected in said


def test_naming_the_network_oneself_is_trust_enough(module: Path, dataset: Path, tmp_path: Path) -> None:
    config = write_toml(tmp_path, dataset, "serial", "mymodule:network", "fedavg")
    succeed("train", config, "--out", tmp_path / "runs")
    (run,) = (tmp_path / "runs").iterdir()
    assert "--trust" in run_command("inspect", run).errors
    assert "mymodule:network" in succeed("inspect", run, "--network", "mymodule:network")


@pytest.mark.parametrize("what", ["network", "method"])
def test_a_cluster_that_cannot_import_the_users_module_says_so(
    what: str, module: Path, dataset: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    request.getfixturevalue("ray_connection")
    names = ("mymodule:network", "fedavg") if what == "network" else ("cnn-small", "mymodule:Mine")
    config = write_toml(tmp_path, dataset, "ray", *names)
    ended = run_command("train", config, "--out", tmp_path / "runs")
    assert ended.code == 2
    assert "mymodule" in ended.errors
    assert "PYTHONPATH" in ended.errors


def test_what_an_installed_package_brings_on_gray_images_that_are_not_square(
    installed: Path, engine: str, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), *sys.path]))
    assert find_method("my-own").about.title == "My Own"
    config = write_toml(tmp_path, dataset, engine, "my-net", "my-own")
    config.write_text(config.read_text().replace("resolution = 12,", "resolution = [12, 16], channels = 1,"))
    commands(config, tmp_path, "My Own")
    card = json.loads((tmp_path / "model/card.json").read_text(encoding="utf-8"))
    assert (card["architecture"]["name"], card["architecture"]["channels"]) == ("my-net", 1)
    assert card["architecture"]["resolution"] == [12, 16]
    with pytest.raises(InputError, match="my-own"):
        find_method("my-ow")
    sys.modules.pop("my_package", None)


@pytest.mark.parametrize(
    ("shape", "workers"),
    [((12, 12, 0), 0), ((12, 12, 1), 0), ((16, 12, 3), 0), ((12, 20, 1), 2), ((12, 12, 5), 2)],
    ids=["gray", "one", "tall", "wide", "5"],
)
def test_images_of_any_shape(shape: tuple[int, int, int], workers: int, tmp_path: Path) -> None:
    """The two strangest go through a pool, and into a report."""
    clients = own_clients(*shape)
    height, width, channels = shape[0], shape[1], shape[2] or 1
    assert clients.image_shape == (height, width, channels)
    method = fb.FedBasis(network="cnn-small", bases=2, warm_start=0.5)
    place: Any = {"engine": "pool", "workers": workers} if workers else {"engine": "serial"}
    trained = fb.train(method, clients, out=tmp_path, **TRAIN, **place)
    mine = fb.personalize(trained, clients["paint/n00"].train, epochs=1)
    mine.save(tmp_path / "model")
    again = fb.load(tmp_path / "model")
    assert isinstance(again, fb.Personal)
    images = clients["paint/n00"].test
    assert torch.equal(again.predict(images), mine.predict(images))
    assert mine.module(torch.zeros(2, channels, height, width)).shape == (2, 3)
    assert trained.run is not None
    assert "for 3 classes at" in "\n".join(map(str, describe_folder(trained.run.folder)))
    config = json.loads(trained.run.config.read_text())["data"]
    assert config["resolution"] == (height if height == width else [height, width])
    if workers:
        write_report([trained.run], tmp_path / "page.html")
