"""``fedbasis reproduce``: a plan without a run, and a sentence for what is not there, before anything is done."""

import re
from pathlib import Path

from typer.testing import CliRunner

from fedbasis.cli import app
from helpers.cli_reproduce import reproduce
from pflbed.errors import InputError


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "none"
    said = reproduce("table-2", "table-c", "--scale", "paper", "--seeds", "1", "--dry-run", "--jobs", "4",
                     "--methods", "fedavg,fedbasis", "--out", str(out))  # fmt: skip
    assert "9 runs: the paper's own settings" in said  # FedAvg and two FedBases on three datasets, for both tables
    assert re.search(r"fedavg +│ pacs +│ +0 │ new-clients, all-methods +│ to do │", said), said
    assert "9 runs: 0 done, 9 to do." in said
    assert not out.exists()


def test_when_no_run_ends_well_no_report_is_touched(tmp_path: Path) -> None:
    for name in ("images", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "out" / "report.html").write_text("of yesterday")
    arguments = ["table-6", "--scale", "cpu", "--methods", "fedavg", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["reproduce", *arguments, "--cifar", str(tmp_path / "images")])
    assert isinstance(result.exception, InputError)
    assert "At least one of 2 runs must succeed" in str(result.exception)
    assert "fedavg on cifar10, seed 0:" in result.output
    assert (tmp_path / "out" / "report.html").read_text() == "of yesterday"
    assert not (tmp_path / "out" / "tables").exists()


def test_data_and_weights_are_asked_for_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    images, text = str(tmp_path / "images"), tmp_path / "text"
    text.write_text("no tensors")
    for arguments, sentence in (
        (["table-e", "--data", "x", "--weights", str(text)], "--data FOLDER must be a folder of images, but there is"),
        (["table-6", "--cifar", str(text)], "--data cifar10=FOLDER must be a folder of images"),
        (["table-e", "--data", images, "--weights", "x"], "or one of tiny-imagenet, but there is no file x"),
        (["table-e", "--data", images, "--weights", str(text)], "must be whole safetensors, but its header"),
        (["table-3", "--data", images, "--methods", "fedbn"], "these are per-fedavg-fo, pfedme, fedavg, fedbasis."),
        (["table-2"], "needs PACS at 32 pixels, but its folder was not given; add --data pacs=FOLDER"),
        (["table-2", "--data", "x"], "starts from pretrained weights, but none were given; add --weights FILE"),
        (["table-2", "--data", "pcas=x"], "must name one of pacs,"),
        (["table-2", "--methods", "fedavgg"], "'fedavgg' is not"),
    ):
        out = tmp_path / "none"
        result = CliRunner().invoke(app, ["reproduce", "--scale", "cpu", "--out", str(out), *arguments])
        assert isinstance(result.exception, InputError)
        assert sentence in str(result.exception)
        assert not out.exists()
