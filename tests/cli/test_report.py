"""``fedbasis report`` and ``compare``: a page, a table or json, and a sentence for a mistake."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbasis.report.compare import compare
from fedbasis.training.runs import Run
from helpers.cli_running import Ended
from helpers.report_runs import FEDAVG, FEDBASIS, make_run


@pytest.fixture
def two(tmp_path: Path) -> list[Run]:
    return [
        make_run(tmp_path / "fedavg-a", "fedavg", FEDAVG),
        make_run(tmp_path / "fedbasis-b", "fedbasis", FEDBASIS, settings={"tau": 0.1}),
    ]


def test_the_command_prints_a_table_or_json(two: list[Run], fedbasis: Callable[..., Ended]) -> None:
    ended = fedbasis("compare", two[0].folder, two[1].folder)
    assert (ended.code, ended.errors) == (0, "")
    rows = [line.split() for line in ended.out.splitlines()]
    assert ["method.tau", "-", "0.1"] in rows
    assert ["M", "FedAvg", "FedBasis", "50.0", "82.5", "+32.5"] in [row[:6] for row in rows]
    ended = fedbasis("compare", two[0].folder, two[1].folder, "--json")
    said = json.loads(ended.out)
    assert said == json.loads(json.dumps(compare(*two).as_dict()))
    assert said["differences"][1]["paired"]["losses"] == 1


def test_the_report_command(two: list[Run], tmp_path: Path, fedbasis: Callable[..., Ended]) -> None:
    ended = fedbasis("report", tmp_path, "--out", tmp_path / "out" / "page.html", "--files", tmp_path / "files")
    assert (ended.code, ended.errors) == (0, "")
    assert f"Report: {tmp_path / 'out' / 'page.html'}" in ended.out
    assert "FedAvg + FT" in (tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    assert "| FedBasis | **81.2** |" in (tmp_path / "files" / "tables" / "results.md").read_text(encoding="utf-8")


def test_mistakes_of_both_commands(two: list[Run], tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "there is no folder" in refused("report", tmp_path / "nowhere", "--out", tmp_path / "page.html")
    (tmp_path / "empty").mkdir()
    assert "must be a run, or hold runs" in refused("report", tmp_path / "empty", "--out", tmp_path / "page.html")
    assert "is a folder" in refused("report", two[0].folder, "--out", tmp_path)
    other = make_run(tmp_path / "other", "fedbasis", FEDBASIS, seed=5)
    assert "same clients only" in refused("compare", two[0].folder, other.folder)
