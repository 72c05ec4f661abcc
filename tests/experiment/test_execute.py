"""Killed at any moment and started again, a run ends with the bits of one that nobody stopped."""

import functools
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedbasis.experiment
import fedbasis.serving.artifact
import fedbasis.training.rounds
from fedbasis.training.runs import read_lines
from helpers.cli_trials import (
    FILES,
    METHODS,
    MOMENTS,
    Trial,
    descendants,
    hold_after,
    kill_at,
    kill_at_change,
    limit_files,
    running,
    sentences,
    wait_until,
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Callable[[str], dict[str, Any]]:
    """The outcome of every method's run that nobody stopped."""

    @functools.cache
    def outcome(method: str) -> dict[str, Any]:
        trial = Trial(tmp_path_factory.mktemp("uninterrupted"), dataset, method)
        assert trial.train() == 0, trial.errors
        assert trial.files == FILES
        return trial.outcome()

    return outcome


@pytest.mark.parametrize(
    ("method", "moment"),
    [
        *(("fedbasis", moment) for moment in list(MOMENTS)[::2]),  # the moments take turns
        *(("fedavg", moment) for moment in list(MOMENTS)[1::2]),
        ("by step", "between metrics and checkpoint"),
    ],
)
def test_killed_and_started_again_ends_with_the_same_bits(
    method: str, moment: str, tmp_path: Path, dataset: Path, uninterrupted: Callable[[str], dict[str, Any]]
) -> None:
    trial = Trial(tmp_path, dataset, method)
    assert trial.train(MOMENTS[moment]) == -signal.SIGKILL, trial.errors
    assert trial.train() == 0, trial.errors
    assert trial.outcome() == uninterrupted(method)
    assert trial.files == FILES  # neither a checkpoint nor anything half-written is left


@pytest.mark.parametrize("method", list(METHODS))
def test_killed_again_and_again_a_run_still_ends_with_the_same_bits(
    method: str, tmp_path: Path, dataset: Path, uninterrupted: Callable[[str], dict[str, Any]]
) -> None:
    trial, kills = Trial(tmp_path, dataset, method), 0
    for number in itertools.count(5, 9):  # every attempt is killed a little later than the one before
        ended = trial.train(functools.partial(kill_at_change, number))
        if ended == 0:
            break
        assert ended == -signal.SIGKILL, trial.errors
        kills += 1
    assert kills >= 4
    assert trial.outcome() == uninterrupted(method)
    assert trial.files == FILES


def test_killed_while_it_replaces_its_bases_a_run_has_them_whole_or_not_at_all(
    tmp_path: Path, dataset: Path, uninterrupted: Callable[[str], dict[str, Any]]
) -> None:
    trial = Trial(tmp_path, dataset, "fedbasis")
    assert trial.train(MOMENTS["evaluation begins"]) == -signal.SIGKILL
    published = (trial.run.bases / "card.json").read_bytes()
    for there, moment in (
        (True, functools.partial(kill_at, "os.rename", "/bases", 1)),
        (False, functools.partial(kill_at, "os.rename", ".bases", 3)),
        (False, functools.partial(kill_at, "shutil.rmtree", ".old.tmp", 1)),  # while it clears up after the last one
    ):
        assert trial.train(moment) == -signal.SIGKILL, trial.errors
        assert trial.run.bases.exists() == there
        if there:
            fedbasis.serving.artifact.load(trial.run.bases, "bases")
            assert (trial.run.bases / "card.json").read_bytes() == published
    assert trial.train() == 0, trial.errors
    assert trial.outcome() == uninterrupted("fedbasis")
    assert trial.files == FILES


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_stopped_from_outside_a_run_goes_on_after_its_last_round(
    number: signal.Signals, code: int, tmp_path: Path, dataset: Path
) -> None:
    trial = Trial(tmp_path, dataset, "fedavg", rounds=8)
    child = trial.start(functools.partial(hold_after, 3))
    wait_until(trial.has_trained)
    assert child.pid is not None
    os.kill(child.pid, number)
    child.join()
    assert child.exitcode == code, trial.errors
    assert not trial.run.done
    assert sentences(trial.errors) == (1 if number == signal.SIGINT else 0)
    finished = read_lines(trial.run.metrics)[-1]["round"]
    assert trial.train() == 0, trial.errors
    text = (trial.folder / "stdout").read_text()
    assert f"resumes after round {finished}/8" in text
    assert f"round {max(1, finished - 1):>3}/8" not in text  # at most the round whose checkpoint was not written yet
    assert [line["round"] for line in read_lines(trial.run.metrics)] == list(range(1, 9))


@pytest.mark.parametrize(("method", "number"), [("by step", signal.SIGKILL), ("fedbasis", signal.SIGINT)])
def test_a_pool_that_is_stopped_leaves_no_process_and_goes_on_with_the_same_bits(
    method: str,
    number: signal.Signals,
    tmp_path: Path,
    dataset: Path,
    uninterrupted: Callable[[str], dict[str, Any]],
) -> None:
    trial = Trial(tmp_path, dataset, method, engine="pool")
    child = trial.start(functools.partial(hold_after, 3))
    wait_until(trial.has_trained)
    assert child.pid is not None
    family = descendants(child.pid)
    assert len(family) >= 3  # two workers, and the process that they come from
    os.kill(child.pid, number)
    child.join()
    assert child.exitcode == (130 if number == signal.SIGINT else -number), trial.errors
    wait_until(lambda: not family & running().keys())
    assert trial.train() == 0, trial.errors
    assert "works with 2 processes (2 on cpu)" in (trial.folder / "stdout").read_text()
    expected = uninterrupted(method)
    assert {**trial.outcome(), "config.json": None} == {**expected, "config.json": None}
    assert trial.files == FILES


def test_a_run_that_is_done_is_only_read(tmp_path: Path, dataset: Path) -> None:
    trial = Trial(tmp_path, dataset, "fedavg", rounds=2)
    assert trial.train() == 0, trial.errors
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in trial.contents}
    assert trial.train() == 0, trial.errors
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in trial.contents} == before
    text = (trial.folder / "stdout").read_text()
    assert "is already done" in text
    assert "FedAvg" in text
    assert "Personalized accuracy" in text
    assert "round   1/2" not in text  # no round was trained


def test_a_second_training_of_the_same_run_is_refused(tmp_path: Path, dataset: Path) -> None:
    trial = Trial(tmp_path, dataset, "fedavg")
    assert trial.train(MOMENTS["half a checkpoint, warm-up"]) == -signal.SIGKILL
    with trial.run.locked():
        before = trial.files
        assert trial.train() == 2
        assert sentences(trial.errors) == 1
        assert f"another is training {trial.run.folder}" in trial.errors
        assert trial.files == before
    assert trial.train() == 0, trial.errors


def test_checkpoints_that_something_else_cut_short_get_a_sentence(tmp_path: Path, dataset: Path) -> None:
    trial = Trial(tmp_path, dataset, "fedavg")
    assert trial.train(MOMENTS["half a checkpoint, bases"]) == -signal.SIGKILL
    both = (trial.run.checkpoint, trial.run.previous_checkpoint)
    whole = next(path.read_bytes() for path in both if path.exists())
    for keep in (0, 5, 1000, -8):
        for path in both:
            path.write_bytes(whole[:keep])
        assert trial.train() == 2
        assert sentences(trial.errors) == 1
        assert f"The checkpoint {both[0]} must be as this version wrote it" in trial.errors
    for path in both:  # as the sentence says
        path.unlink()
    assert trial.train() == 0, trial.errors


@pytest.mark.parametrize("room", [1_000, 20_000])
def test_a_full_disk_gets_a_sentence_and_the_run_goes_on_when_there_is_room(
    room: int, tmp_path: Path, dataset: Path, uninterrupted: Callable[[str], dict[str, Any]]
) -> None:
    uninterrupted("fedavg")
    trial = Trial(tmp_path, dataset, "fedavg")
    assert trial.train(functools.partial(limit_files, room)) == 2
    assert sentences(trial.errors) == 1, trial.errors
    assert "File too large" in trial.errors
    assert not [name for name in trial.files if name.endswith(".tmp")]
    assert not trial.run.done
    assert trial.train() == 0, trial.errors
    assert trial.outcome() == uninterrupted("fedavg")
