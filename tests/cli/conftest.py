"""A run, a new client's images and a personal model, made once by the command line for all of its tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.cli_images import write_images
from helpers.cli_running import CONFIG, Ended, run_command, succeed


@pytest.fixture
def fedbasis() -> Callable[..., Ended]:
    """Run a command in this process."""
    return run_command


@pytest.fixture
def refused(fedbasis: Callable[..., Ended], tmp_path: Path) -> Callable[..., str]:
    """Run a command that must end with an error and exit code 2, and write nothing; return the message."""

    def run(*argv: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        ended = fedbasis(*argv)
        assert ended.code == 2, ended
        assert ended.errors.startswith("fedbasis: ")
        _, *others = ended.errors.splitlines()
        assert all(line.startswith("  ") for line in others)  # one line a problem
        assert "Traceback" not in ended.out + ended.errors
        assert sorted(tmp_path.rglob("*")) == before
        return ended.errors.rstrip("\n")

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    """A run of FedBasis on the dataset, made by the command line."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "config.toml").write_text(CONFIG.format(data=dataset), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBASIS_CACHE", str(folder / "cache"))
        succeed("train", folder / "config.toml", "--out", folder / "runs")
    (run,) = (folder / "runs").iterdir()
    return run


@pytest.fixture(scope="session")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new client's folder of 30 images."""
    return write_images(tmp_path_factory.mktemp("mine"), 10, domain=1, seed=7)


@pytest.fixture(scope="session")
def personal(trained: Path, mine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A personal model, made by the command line."""
    out = tmp_path_factory.mktemp("personal") / "model"
    succeed("personalize", trained, "--data", mine, "--out", out)
    return out
