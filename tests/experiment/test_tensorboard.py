"""Tracking copies the numbers of every round, whoever stops the run, and says what to install if it cannot."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.experiment.tensorboard import FOLDER, TensorBoardLog, scalars
from fedbasis.training.events import ClientTrained, Event, to_all
from fedbasis.training.runs import read_lines
from helpers.cli_running import CONFIG, succeed
from pflbed.errors import InputError


class Writer:
    """Stands for TensorBoard's: remembers what it is told."""

    logs: dict[str, list[tuple[str, float, int]]]

    def __init__(self, folder: str, purge_step: int) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.log = self.logs.setdefault(folder, [])
        self.log[:] = [line for line in self.log if line[2] < purge_step]

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.log.append((name, value, step))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[str, float, int]]]:
    module: Any = ModuleType("torch.utils.tensorboard")
    Writer.logs = {}
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return Writer.logs


def config(data: Path) -> dict[str, Any]:
    return {
        "data": {"source": str(data), "resolution": 12, "clients": 2, "new_clients": 1},
        "train": {"rounds": 3, "epochs": 1}, "personalize": {"epochs": 1, "rates": [0.01]},
        "machine": {"device": "cpu", "engine": "serial"}, "method": {"name": "fedbasis", "bases": 2, "warm_start": 0.3},
    }  # fmt: skip


class StopError(Exception):
    """Ends a training from outside."""


def stop(event: Event) -> None:
    """Stop in the middle of the third round."""
    if isinstance(event, ClientTrained) and event.round == 3:
        raise StopError


def test_scalars_are_the_rounds_numbers_by_group() -> None:
    record = {"round": 2, "rounds": 3, "refused": ["a"], "loss": 0.5, "entropy": {"fc": 1.0}, "validation": None}
    assert dict(scalars(record)) == {"loss": 0.5, "entropy/fc": 1.0}


def test_a_run_that_was_stopped_is_tracked_whole(
    dataset: Path, tmp_path: Path, logs: dict[str, list[tuple[str, float, int]]]
) -> None:
    prepared = prepare(parse(config(dataset)))
    with pytest.raises(StopError):
        execute(prepared, tmp_path, to_all(TensorBoardLog(), stop))
    run = execute(prepared, tmp_path, TensorBoardLog())
    expected = [(name, value, line["round"]) for line in read_lines(run.metrics) for name, value in scalars(line)]
    assert logs[str(run.folder / FOLDER)] == expected
    assert {step for _, _, step in expected} == {1, 2, 3}


def test_what_was_done_before_tracking_began_is_there(
    dataset: Path, tmp_path: Path, logs: dict[str, list[tuple[str, float, int]]]
) -> None:
    prepared = prepare(parse(config(dataset)))
    with pytest.raises(StopError):
        execute(prepared, tmp_path, stop)
    run = execute(prepared, tmp_path, TensorBoardLog())
    assert {step for _, _, step in logs[str(run.folder / FOLDER)]} == {1, 2, 3}


def test_without_tensorboard_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install .*\[tensorboard\]"):
        TensorBoardLog()


def test_the_command_shows_its_workers_and_tracks(
    dataset: Path, tmp_path: Path, logs: dict[str, list[tuple[str, float, int]]]
) -> None:
    text = CONFIG.format(data=dataset).replace("rounds = 3", "rounds = 2")
    (tmp_path / "my.toml").write_text(text, encoding="utf-8")
    said = succeed("train", tmp_path / "my.toml", "--out", tmp_path / "runs", "--track", "tensorboard")
    assert "works with 1 process" in said
    assert "round   2/2" in said
    (run,) = (tmp_path / "runs").iterdir()
    assert {step for _, _, step in logs[str(run / FOLDER)]} == {1, 2}
