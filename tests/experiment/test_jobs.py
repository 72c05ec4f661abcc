"""Several experiments at once: stopped, failed or killed, they leave no process behind and no run half-done."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbasis.experiment import jobs as jobs_module
from fedbasis.experiment.config import read
from fedbasis.experiment.jobs import RunJob, carry_out, execute_all
from fedbasis.studies import studies
from fedbasis.studies.base import Setup
from fedbasis.studies.plan import plan
from fedbasis.studies.scales import SCALES
from fedbasis.training.events import ignore
from fedbasis.training.runs import Run, read_lines
from helpers.cli_traps import die, stumble
from helpers.cli_trials import CONFIG, METHODS, MINUTES, MOMENTS, Trial, living, sentences, wait_until
from pflbed.errors import InputError

DEMO = """
import sys
from pathlib import Path
from fedbasis import cli
from fedbasis.experiment import config, demo
plans = [config.read(Path(path)) for path in sys.argv[2:]]
demo.experiments = lambda seed, fast: plans
sys.argv = ["fedbasis", "demo", "--out", sys.argv[1] + "/runs", "--report", sys.argv[1] + "/report.html"]
cli.main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_stopped_experiments_leave_no_process_behind(
    number: signal.Signals, code: int, tmp_path: Path, dataset: Path
) -> None:
    configs = [tmp_path / f"{name}.toml" for name in ("fedavg", "fedbasis")]
    for path in configs:
        path.write_text(
            CONFIG.format(data=dataset, method=METHODS[path.stem], rounds=100_000, engine="auto"), encoding="utf-8"
        )
    with (tmp_path / "stderr").open("w") as errors:
        demo = subprocess.Popen(
            [sys.executable, "-c", DEMO, str(tmp_path), *map(str, configs)], start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip
    try:
        wait_until(lambda: len(list(tmp_path.glob("runs/*/metrics.jsonl"))) == 2 or demo.poll() is not None)
        assert demo.poll() is None, (tmp_path / "stderr").read_text()
        others = set(living(demo.pid)) - {demo.pid}
        assert len(others) >= 2
        if number == signal.SIGINT:
            for other in others:  # a terminal's Ctrl-C reaches every process, but only the first one acts on it
                os.kill(other, number)
            seen = rounds(tmp_path)
            wait_until(lambda: all(now > before for now, before in zip(rounds(tmp_path), seen, strict=True)))
            assert others <= set(living(demo.pid))
            os.killpg(demo.pid, number)
        else:
            os.kill(demo.pid, number)
        assert demo.wait(MINUTES) == code
        wait_until(lambda: not living(demo.pid))
    finally:
        if living(demo.pid):
            os.killpg(demo.pid, signal.SIGKILL)
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
    config = tmp_path / "long.toml"
    config.write_text(
        CONFIG.format(data=dataset, method=METHODS["fedbasis"], rounds=100_000, engine="auto"), encoding="utf-8"
    )
    plans = [read(config), read(trial.config)]
    with trial.run.locked(), pytest.raises(InputError, match="another is training"):
        execute_all(plans, tmp_path / "runs", [ignore, ignore])
    assert multiprocessing.active_children() == []


UNFORESEEN = r"ZeroDivisionError: nobody foresaw this \(cli_traps.py, line \d+\)"


@pytest.mark.parametrize(("at_once", "traps"), [
    (1, {stumble: UNFORESEEN}), (2, {die: r"this one died \(exit code -9\)", stumble: UNFORESEEN})
])  # fmt: skip
def test_whatever_happens_to_a_job_is_its_own_failure(
    at_once: int, traps: dict[Callable[..., None], str], tmp_path: Path
) -> None:
    experiment = next(iter(plan(studies(["cifar-new"]), Setup(SCALES["smoke"])))).experiment
    post_steps = [*(f"helpers.cli_traps:{trap.__name__}" for trap in traps), "", ""]
    jobs = [
        RunJob(experiment.model_copy(update={"seed": seed}), post_step=after) for seed, after in enumerate(post_steps)
    ]
    results = dict(carry_out(jobs, tmp_path, [ignore] * len(jobs), at_once))
    assert sorted(results) == list(range(len(jobs)))
    for number, sentence in enumerate(traps.values()):
        assert isinstance(results[number], InputError)
        assert re.search(sentence, str(results[number]))
    for number in range(len(traps), len(jobs)):  # also in the process that took a dead one's place
        run = results[number]
        assert isinstance(run, Run)
        assert run.done


def test_jobs_that_train_alike_wait_for_each_other() -> None:
    experiment = next(iter(plan(studies(["cifar-new"]), Setup(SCALES["smoke"])))).experiment
    jobs = [RunJob(experiment, training_key) for training_key in ("a", "a", "b", "", "")]
    chosen = vars(jobs_module)["_next"]
    assert chosen(jobs, [0, 1, 2, 3, 4], []) == 0
    assert chosen(jobs, [1, 2, 3, 4], [0]) == 2
    assert chosen(jobs, [1], [0, 2]) is None
    assert chosen(jobs, [4], [3]) == 4  # the empty text is like no other
