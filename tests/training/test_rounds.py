"""Rounds: sampling, refused updates, and what is measured."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.networks.inputs import Examples
from fedbasis.training.rounds import sampled
from fedbasis.training.runs import read_lines
from pflbed import InputError
from small_experiments import small


class TestSampling:
    def test_by_count_and_share_and_seed(self) -> None:
        names = [f"c{i}" for i in range(20)]
        assert sampled(names, 1.0, 0, 3) == names
        assert len(sampled(names, 0.1, 0, 3)) == 2
        assert len(sampled(names, 5, 0, 3)) == 5
        assert sampled(names, 5, 0, 3) == sampled(names, 5, 0, 3)
        draws = [tuple(sampled(names, 5, 0, number)) for number in range(40)]
        assert len(set(draws)) > 30
        assert set().union(*map(set, draws)) == set(names)

    def test_too_many(self) -> None:
        with pytest.raises(InputError, match="only 3"):
            sampled(["a", "b", "c"], 4, 0, 0)


def test_a_client_that_sends_nan_is_refused_by_name_and_the_round_goes_on(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedbasis.methods.fedavg import FedAvg

    honest = FedAvg.client_update

    def broken(self: FedAvg, received: Any, kept: Any, data: Examples, context: Any) -> Any:
        sent, kept = honest(self, received, kept, data, context)
        if context.client == "chalk/p01":
            sent.tensors["model"]["fc.bias"][0] = float("nan")
        return sent, kept

    monkeypatch.setattr(FedAvg, "client_update", broken)
    run = execute(prepare(small(dataset)), tmp_path)
    assert [line["refused"] for line in read_lines(run.metrics)] == [["chalk/p01"]] * 3


def test_finished_run_says_what_it_measured(dataset: Path, tmp_path: Path) -> None:
    experiment = small(dataset, name="fedbasis", bases=2)
    experiment = parse({**experiment.as_dict(), "personalize": {"epochs": 2, "rates": [0.05]}})
    run = execute(prepare(experiment), tmp_path)
    lines = read_lines(run.metrics)
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert {"loss", "seconds", "bytes_up", "bytes_down", "validation", "entropy", "usage", "cosine"} <= set(lines[-1])
    blocks = ["conv1", "conv2", "conv3", "fc"]
    assert list(lines[-1]["entropy"]) == blocks
    assert list(lines[-1]["cosine"]) == ["network", *blocks]
    for block in blocks:
        assert sum(lines[-1]["usage"][block].values()) == pytest.approx(1, abs=1e-5)
    assert lines[-1]["bytes_down"] > 2.9 * lines[-1]["bytes_up"]  # three models down, one up
    assert run.done
    assert torch.get_num_threads() == 1


def test_a_compact_download_is_logged_and_the_same_under_every_engine(dataset: Path, tmp_path: Path) -> None:
    plain = small(dataset, name="fedbasis", bases=2).as_dict()
    plain["personalize"].update(epochs=2, rates=[0.05], ways=["none"])
    coded = {**plain, "train": {**plain["train"], "download": "compact"}}
    lines = {}
    for name, raw in {"float32": plain, "compact": coded}.items():
        lines[name] = read_lines(execute(prepare(parse(raw)), tmp_path / "serial").metrics)
    assert lines["compact"][0]["bytes_down"] == pytest.approx(lines["float32"][0]["bytes_down"] / 2, abs=8)  # one model
    assert lines["compact"][-1]["bytes_down"] < 0.3 * lines["float32"][-1]["bytes_down"]
    pool = parse({**coded, "machine": {"engine": "pool", "workers": 2}})
    twin = execute(prepare(pool), tmp_path / "pool")
    run = execute(prepare(parse(coded)), tmp_path / "serial")
    assert run.folder.name == twin.folder.name
    assert (run.bases / "tensors.safetensors").read_bytes() == (twin.bases / "tensors.safetensors").read_bytes()


def test_a_compact_download_needs_models_that_are_alike(dataset: Path, tmp_path: Path) -> None:
    raw = small(dataset).as_dict()
    raw["train"]["download"] = "compact"
    with pytest.raises(InputError, match="several models that are alike, but FedAvg has none"):
        execute(prepare(parse(raw)), tmp_path)
    private = {"method": {"name": "fedavg"}, "train": {"download": "bfloat16"}, "privacy": {"noise_multiplier": 1.0}}
    with pytest.raises(InputError, match=r"set train.download = 'float32'"):
        parse(private)
