"""``fedbasis train``: it says what it does, takes images as they are, and refuses what cannot work."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import pflbed
from fedbasis.training.runs import read_lines
from helpers.cli_images import write_images
from helpers.cli_running import CONFIG, Ended, broken_folder


def test_train_says_what_it_does_and_where_its_results_are(
    trained: Path, dataset: Path, fedbasis: Callable[..., Ended], tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG.format(data="nowhere").replace('"fedbasis"\nbases = 2', '"fedavg"'), encoding="utf-8")
    ended = fedbasis("train", config, "--data", dataset, "--seed", 4, "--out", tmp_path / "runs")
    assert ended.code == 0, ended.errors
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("fedavg-")
    for expected in (
        "starts: 3 rounds",
        "round   3/3",
        "new clients",
        "FedAvg + FT",
        f"Bases: {run}/bases",
        f"Run: {run}",
    ):
        assert expected in ended.out
    assert json.loads((run / "config.json").read_text())["seed"] == 4
    assert [line["round"] for line in read_lines(run / "metrics.jsonl")] == [1, 2, 3]
    assert (trained / "done").exists()


def test_train_lists_bad_images_and_goes_on(dataset: Path, tmp_path: Path, fedbasis: Callable[..., Ended]) -> None:
    data = shutil.copytree(dataset, tmp_path / "data")
    (data / "chalk/cross/zz.png").write_text("this is no image")
    (tmp_path / "config.toml").write_text(CONFIG.format(data=data), encoding="utf-8")
    ended = fedbasis("train", tmp_path / "config.toml", "--out", tmp_path / "runs")
    assert ended.code == 0, ended.errors
    assert "1 image cannot be read" in ended.out
    assert "chalk/cross/zz.png" in ended.out


@pytest.mark.parametrize("partition", ["dirichlet", "mixture", "natural"])
def test_a_benchmark_built_before_is_trained_on_as_it_is(
    partition: str, dataset: Path, tmp_path: Path, fedbasis: Callable[..., Ended]
) -> None:
    """Its clients and sizes, not the configuration's, are served; everything that shows a run takes it."""
    found = pflbed.find(dataset)
    table = replace(found.table, users=np.arange(len(found.table)) % 8, user_names=tuple("abcdefgh"))
    given = {"clients_per_domain": 2, "new_clients_per_domain": 2, "partition": partition}
    benchmark = pflbed.build(table, pflbed.Spec().changed(given, 3))
    pflbed.write(benchmark, found, tmp_path / "bench")
    (tmp_path / "c.toml").write_text(CONFIG.format(data="nowhere"), encoding="utf-8")
    argv = ("train", tmp_path / "c.toml", "--data", tmp_path / "bench", "--out", tmp_path / "runs")
    ended = fedbasis(*argv, "--report", tmp_path / "r.html")
    assert ended.code == 0, ended.errors
    (run,) = (tmp_path / "runs").iterdir()
    assert {line["client"] for line in read_lines(run / "evaluation.jsonl")} == set(benchmark.new)
    assert {line["size"] for line in read_lines(run / "evaluation.jsonl")} == set(benchmark.spec.sizes)
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert (config["data"]["partition"], config["data"]["new_clients"]) == (partition, 2)
    for path in (run, tmp_path / "bench"):
        assert fedbasis("inspect", path).code == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("rounds = 3", 'ruonds = 3, batch = "x"'), "'train.ruonds' is not a key (did you mean 'rounds'?)"),
        (("[method]", "[methods]"), "[method] needs a 'name'"),
        (('"fedbasis"', '"fedbases"'), "did you mean 'fedbasis'?"),
        (("bases = 2", 'bases = 2\ninit = "random"'), "needs warm_start = 0"),
        (("participation = 1.0", "participation = 99"), "99 clients a round, but there are only 4"),
        (("rounds = 3", "rounds = 1"), "at least 2 rounds"),
        (("clients = 2,", "clients = 1000,"), "(domain chalk"),
        (('engine = "serial"', "device = 'cuda:77'"), "must be a device of this machine"),
        (("seed = 1", "seed = 1\nmodel = { name = 'resnet77' }"), "did you mean 'resnet18'?"),
        (("seed = 1", "seed = 1\nmodel = { name = 'no.such:network' }"), "must be importable, but it is not"),
        (("seed = 1", "seed = 1\nmodel = { options = { depth = 3 } }"), "does not take these options"),
        (("seed = 1", "seed = 1\nmodel = { weights = 'none.safetensors' }"), "there is no file none.safetensors"),
        (("seed = 1", "seed == 1"), "must be TOML, but it is not"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_before_anything_is_written(
    change: tuple[str, str], expected: str, dataset: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    text = CONFIG.format(data=dataset)
    wrong = text.replace(*change)
    assert wrong != text
    (tmp_path / "config.toml").write_text(wrong, encoding="utf-8")
    assert expected in refused("train", tmp_path / "config.toml", "--out", tmp_path / "runs")


def test_a_configuration_that_is_not_there_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "must exist, but it does not" in refused("train", tmp_path / "none.toml", "--out", tmp_path / "runs")
    assert "needs a configuration, but none was given" in refused("train", "--out", tmp_path / "runs")
    assert "must be a regular file" in refused("train", tmp_path, "--out", tmp_path / "runs")
    (tmp_path / "binary.toml").write_bytes(b"\xff\x00")
    assert "must be text in UTF-8" in refused("train", tmp_path / "binary.toml", "--out", tmp_path / "runs")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("missing", "the data folder must exist"),
        ("file", "got the file"),
        ("empty", "<domain>/<class>/<image>"),
        ("flat", "<domain>/<class>/<image>"),
        ("one domain less", "put them one folder deeper"),
        ("one class", "at least two classes"),
        ("digits4", "are 28 pixels wide, but data.resolution is 12"),
    ],
)
def test_data_that_cannot_be_trained_on_are_refused(
    kind: str, expected: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "config.toml").write_text(CONFIG.format(data="x"), encoding="utf-8")
    data: Path | str = "digits4" if kind == "digits4" else tmp_path / "data"
    if kind == "one domain less":
        write_images(tmp_path / "data", 3)
    elif kind == "one class":
        write_images(tmp_path / "data/chalk", 3, classes=1)
    elif kind != "digits4":
        data = broken_folder(tmp_path, kind)
    sentence = refused("train", tmp_path / "config.toml", "--data", data, "--out", tmp_path / "runs")
    assert expected.casefold() in sentence.casefold()


def test_weights_that_do_not_fit_are_refused(dataset: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "config.toml").write_text(CONFIG.format(data=dataset), encoding="utf-8")
    save_file({"fc.weight": torch.ones(3, 7)}, tmp_path / "weights.safetensors")
    train = ("train", tmp_path / "config.toml", "--out", tmp_path / "runs", "--weights")
    assert "must fit the network" in refused(*train, tmp_path / "weights.safetensors")
    assert "there is no file" in refused(*train, tmp_path / "none.safetensors")


def test_a_place_that_cannot_be_written_to_is_refused_before_the_work(
    trained: Path, mine: Path, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text(CONFIG.format(data=tmp_path), encoding="utf-8")
    (tmp_path / "file").write_text("mine")
    train = ("train", tmp_path / "config.toml", "--out")
    assert "is not a folder that can be written to" in refused(*train, tmp_path / "file")
    assert "is not a folder that can be written to" in refused(*train, tmp_path / "r", "--report", tmp_path / "file/r")
    assert "The report must be a file" in refused(*train, tmp_path / "r", "--report", tmp_path)
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode & os.W_OK == 0 and allowed(path, mode))
    assert "is not a folder that can be written to" in refused(*train, tmp_path / "r")
    assert "is not a folder that can be written to" in refused(
        "personalize", trained, "--data", mine, "--out", tmp_path / "model"
    )
    assert "is not a folder that can be written to" in refused("demo", "--fast", "--out", tmp_path / "r")
