"""``fedbasis federation``: a user's module goes with the app, and progress is shown of private trainings too."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from rich.console import Console

from fedbasis.cli.federation_progress import FederationProgress
from fedbasis.flower.project import Project, create
from fedbasis.training.runs import append_line
from helpers.cli_images import CLASSES, write_images
from helpers.cli_own import MODULE, TOML
from helpers.cli_running import succeed


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for number, name in enumerate(("a", "b", "c")):
        write_images(tmp_path / "images" / name, 3, number % 2, seed=number)
    return tmp_path / "images"


@pytest.mark.parametrize("layout", ["file", "package"])
def test_init_copies_the_users_module_into_the_app(
    layout: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = tmp_path / "user"
    place = user / "mine_too.py" if layout == "file" else user / "my_package_too" / "deep.py"
    place.parent.mkdir(parents=True)
    place.write_text(MODULE, encoding="utf-8")
    if layout == "package":
        (place.parent / "__init__.py").write_text("")
    module = "mine_too" if layout == "file" else "my_package_too.deep"
    monkeypatch.chdir(user)
    monkeypatch.setattr(sys, "path", [str(user), *sys.path])
    config = user / "my.toml"
    config.write_text(TOML.format(data="x", network=f"{module}:network", method=f"{module}:Mine", engine="serial"))
    text = config.read_text().replace("resolution = 12,", "resolution = 12, channels = 1,")
    config.write_text(text, encoding="utf-8")
    succeed("federation", "init", tmp_path / "fed", "--config", config, "--data", images, "--nodes", 2)
    project = Project(tmp_path / "fed")
    copied = project.app / place.relative_to(user)
    assert copied.read_text(encoding="utf-8") == MODULE
    assert not list(project.app.rglob("__pycache__"))
    (plan,) = project.plans()
    assert plan.name == "mine"
    assert plan.experiment.method_name == f"{module}:Mine"
    assert (plan.experiment.data.resolution, plan.experiment.data.channels) == (12, 1)
    for name in ("mine_too", "my_package_too", "my_package_too.deep"):
        sys.modules.pop(name, None)


def test_init_copies_nothing_that_is_installed(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "installed_one.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    config = tmp_path / "user" / "my.toml"
    config.write_text(TOML.format(data="x", network="cnn-small", method="installed_one:Mine", engine="serial"))
    succeed("federation", "init", tmp_path / "fed", "--config", config, "--data", images, "--nodes", 2)
    assert sorted(path.name for path in Project(tmp_path / "fed").app.glob("*.py")) == ["fedbasis_app.py"]
    sys.modules.pop("installed_one", None)


@pytest.mark.parametrize("private", [False, True])
def test_progress_is_shown_of_private_rounds_too(private: bool, images: Path, tmp_path: Path) -> None:
    """With secret noise the log tells neither losses nor a validation accuracy, and the display needs neither."""
    experiment: dict[str, Any] = {
        "data": {"resolution": 12}, "train": {"rounds": 2, "epochs": 1}, "method": {"name": "fedavg"},
        "privacy": {"noise_multiplier": 1.0, "noise_seed": "secret"} if private else {},
    }  # fmt: skip
    where = {name: str(images / name) for name in ("a", "b")}
    project = create(tmp_path / "fed", experiment, where, {}, CLASSES)
    plans, out, shown = project.plans(), tmp_path / "runs", io.StringIO()
    run = plans[0].run(out)
    run.folder.mkdir(parents=True)
    common: dict[str, Any] = {"rounds": 2, "clients": 2, "refused": [], "seconds": 1.0, "validation": None}
    told = {"epsilon": 3.5, "delta": 0.1} if private else {"loss": 0.75}
    with FederationProgress(Console(file=shown), plans, out) as progress:
        progress.update()
        for number in (1, 2):
            append_line(run.metrics, {"round": number, **common, **told})
            progress.update()
    lines = [line for line in shown.getvalue().splitlines() if "round   " in line]
    assert len(lines) == 2
    assert all(("loss" in line) != private and ("ε 3.50" in line) == private for line in lines)
    assert "nan" not in shown.getvalue()
