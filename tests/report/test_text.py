"""The page of text says how long runs took, which shared a training, and what they were made with."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fedbasis.experiment.setup import versions
from fedbasis.report.runs import RunData
from fedbasis.report.text import write_text
from fedbasis.training.runs import Run


def a_run(folder: Path, **done: Any) -> RunData:
    folder.mkdir(parents=True)
    (folder / "done").write_text(json.dumps(done))
    return RunData(Run(folder))


def test_runs_share_a_training_if_settings_and_what_was_published_agree(tmp_path: Path) -> None:
    first = a_run(tmp_path / "a", training="t", bases="b")
    assert a_run(tmp_path / "b", training="t", bases="b").training == first.training
    assert a_run(tmp_path / "c", training="t", bases="c").training != first.training  # on another processor
    assert a_run(tmp_path / "d", training="s", bases="b").training != first.training
    assert a_run(tmp_path / "e").training != a_run(tmp_path / "f").training


def test_the_page_counts_a_shared_training_once_and_names_the_versions_of_the_runs(tmp_path: Path) -> None:
    def run(folder: str, training: str, made_with: str) -> RunData:
        lines, records = [{"seconds": 60.0}, {"seconds": 120.0}], [{"seconds": 30.0}]
        return cast(
            RunData,
            SimpleNamespace(
                folder=folder, training=training, versions=made_with, lines=lines, records=records, title="M", seed=0
            ),
        )

    path = tmp_path / "results.md"
    runs = [run("a", "t", "torch 1"), run("b", "t", "torch 1"), run("c", "u", ""), run("d", "v", "torch 2")]
    write_text([], runs, "the command", path)
    text = path.read_text()
    assert "the 4 runs took 11 minutes" in text  # three trainings of three minutes, four times half a minute
    assert "| b | M | 0 | as a | 0.5 |" in text
    assert "| c | M | 0 | 3.0 | 0.5 |" in text
    assert "2 runs were made with torch 1. 1 run does not say with which versions. 1 run was made with torch 2." in text


def test_a_run_says_what_it_was_made_with(tmp_path: Path) -> None:
    assert a_run(tmp_path / "a").versions == ""
    assert a_run(tmp_path / "b", versions={"torch": "9", "python": "3"}).versions == "torch 9, python 3"
    assert a_run(tmp_path / "c", versions="9").versions == ""
    assert set(versions()) == {"fedbasis", "torch", "python", "instructions"}
