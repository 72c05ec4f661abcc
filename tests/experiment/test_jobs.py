"""Several experiments at once: stopped, failed or killed, they leave no process behind and no run half-done."""

import multiprocessing
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbasis.experiment import demo
from fedbasis.experiment import jobs as jobs_module
from fedbasis.experiment.config import Experiment, read
from fedbasis.experiment.jobs import RunJob, carry_out, execute_all
from fedbasis.training.events import ignore
from fedbasis.training.runs import Run, read_lines
from helpers.cli_traps import die, stumble
from helpers.cli_trials import CONFIG, METHODS, MINUTES, MOMENTS, SERVER, Trial, living, sentences, wait_until, work
from pflbed.errors import InputError


def write_config(path: Path, dataset: Path, method: str, rounds: int) -> Path:
    text = CONFIG.format(data=dataset, method=METHODS[method], rounds=rounds, engine="auto")
    path.write_text(text, encoding="utf-8")
    return path


def run_demo(folder: Path, configs: list[Path], cache: str) -> None:
    """What a process does: ``fedbasis demo`` of these experiments, in a session of its own."""

    def experiments(seed: int = 0, fast: bool = True) -> list[Experiment]:
        return [read(path) for path in configs]

    os.setsid()
    demo.experiments = experiments
    work(["demo", "--out", str(folder / "runs"), "--report", str(folder / "report.html")], folder, None, cache)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_stopped_experiments_leave_no_process_behind(
    number: signal.Signals, code: int, tmp_path: Path, dataset: Path
) -> None:
    configs = [write_config(tmp_path / f"{name}.toml", dataset, name, 100_000) for name in ("fedavg", "fedbasis")]
    process = SERVER.Process(target=run_demo, args=(tmp_path, configs, os.environ["FEDBASIS_CACHE"]))
    process.start()
    assert process.pid is not None
    session = process.pid
    try:
        wait_until(lambda: len(list(tmp_path.glob("runs/*/metrics.jsonl"))) == 2 or process.exitcode is not None)
        assert process.exitcode is None, (tmp_path / "stderr").read_text()
        others = set(living(session)) - {session}
        assert len(others) >= 3  # two workers, and the process that they come from
        if number == signal.SIGINT:
            for other in others:  # a terminal's Ctrl-C reaches every process, but only the first one acts on it
                os.kill(other, number)
            seen = rounds(tmp_path)
            wait_until(lambda: all(now > before for now, before in zip(rounds(tmp_path), seen, strict=True)))
            assert others <= set(living(session))
            os.killpg(session, number)
        else:
            os.kill(session, number)
        process.join(MINUTES)
        assert process.exitcode == code
        wait_until(lambda: not living(session))
    finally:
        if living(session):
            os.killpg(session, signal.SIGKILL)
    for folder in (tmp_path / "runs").iterdir():
        with Run(folder).locked():  # nobody trains it any more
            assert not Run(folder).done
    text = (tmp_path / "stderr").read_text()
    assert "Traceback" not in text
    if number == signal.SIGINT:
        assert sentences(text) == 1


def rounds(folder: Path) -> list[int]:
    """How many rounds of every run are over."""
    return [len(read_lines(path)) for path in sorted(folder.glob("runs/*/metrics.jsonl"))]


def test_an_experiment_that_fails_ends_the_others_and_says_why(tmp_path: Path, dataset: Path) -> None:
    trial = Trial(tmp_path, dataset, "fedavg")
    assert trial.train(MOMENTS["half a checkpoint, warm-up"]) == -signal.SIGKILL
    config = write_config(tmp_path / "long.toml", dataset, "fedbasis", 100_000)
    plans = [read(config), read(trial.config)]
    with trial.run.locked(), pytest.raises(InputError, match="another is training"):
        execute_all(plans, tmp_path / "runs", [ignore, ignore])
    assert multiprocessing.active_children() == []


UNFORESEEN = r"ZeroDivisionError: nobody foresaw this \(cli_traps.py, line \d+\)"


@pytest.mark.parametrize(("at_once", "traps"), [
    (1, {stumble: UNFORESEEN}), (2, {die: r"this one died \(exit code -9\)", stumble: UNFORESEEN})
])  # fmt: skip
def test_whatever_happens_to_a_job_is_its_own_failure(
    at_once: int, traps: dict[Callable[..., None], str], tmp_path: Path, dataset: Path
) -> None:
    experiment = read(write_config(tmp_path / "short.toml", dataset, "fedavg", 1))
    post_steps = [*(f"helpers.cli_traps:{trap.__name__}" for trap in traps), "", ""]
    jobs = [
        RunJob(experiment.model_copy(update={"seed": seed}), post_step=after) for seed, after in enumerate(post_steps)
    ]
    results = dict(carry_out(jobs, tmp_path / "runs", [ignore] * len(jobs), at_once))
    assert sorted(results) == list(range(len(jobs)))
    for number, sentence in enumerate(traps.values()):
        assert isinstance(results[number], InputError)
        assert re.search(sentence, str(results[number]))
    for number in range(len(traps), len(jobs)):  # also in the process that took a dead one's place
        run = results[number]
        assert isinstance(run, Run)
        assert run.done


def test_jobs_that_train_alike_wait_for_each_other(dataset: Path, tmp_path: Path) -> None:
    experiment = read(write_config(tmp_path / "short.toml", dataset, "fedavg", 1))
    jobs = [RunJob(experiment, training_key) for training_key in ("a", "a", "b", "", "")]
    chosen = vars(jobs_module)["_next"]
    assert chosen(jobs, [0, 1, 2, 3, 4], []) == 0
    assert chosen(jobs, [1, 2, 3, 4], [0]) == 2
    assert chosen(jobs, [1], [0, 2]) is None
    assert chosen(jobs, [4], [3]) == 4  # the empty text is like no other
