"""A new client without torch gets the model of ``fedbasis personalize``: same images held out, same batches."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbasis.methods.base import Adaptation
from fedbasis.serving import artifact
from fedbasis.serving.new_client import Predictor, method_of, serve_folder
from fedbasis.serving.new_client import held_out as held_out_by_torch
from fedbasis.serving.tables import as_record
from fedbasis_edge import EdgeModel, Personal, open_bundle, open_model, personalize, write_model
from fedbasis_edge.cli import main
from fedbasis_edge.fit import Learner, alpha, held_out
from helpers.cli_images import CLASSES, write_images
from helpers.edge_bundles import small_bundle
from pflbed.errors import InputError
from pflbed.images import read_image

EPOCHS = 4


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("edge") / "mine", 11, 1, seed=3)


@pytest.fixture(scope="module")
def personal(mine: Path) -> Personal:
    return personalize(open_bundle(small_bundle()), mine, epochs=EPOCHS, threads=1)


@pytest.fixture(scope="module")
def model(personal: Personal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edge-model") / "model"
    write_model(personal, folder)
    return folder


def test_the_model_is_that_of_torch(personal: Personal, mine: Path) -> None:
    served = serve_folder(small_bundle(), mine, None, Adaptation(epochs=EPOCHS, rate=0.005), 0)
    assert (personal.way, personal.images, personal.held_out) == (served.way, served.images, served.held_out)
    assert (personal.before, personal.after) == (served.before, served.after)
    assert personal.losses == pytest.approx(served.losses, rel=1e-4)
    for name, tensor in served.fitted.tensors.items():
        np.testing.assert_allclose(personal.tensors[name], tensor.numpy(), rtol=2e-3, atol=2e-4, err_msg=name)
    learned = as_record(served.tables["alpha"])
    assert alpha(np.log(personal.alpha)) == pytest.approx(personal.alpha, abs=1e-6)
    np.testing.assert_allclose([row for _, row in learned["rows"]], personal.alpha, atol=2e-3)


def test_the_same_images_are_held_out() -> None:
    labels = np.repeat([0, 2, 5], [9, 14, 2])
    for seed in range(5):
        assert held_out(labels, seed).tolist() == held_out_by_torch(torch.from_numpy(labels), seed).tolist()
    assert not held_out(labels[:19], 0).any()


def test_fedbasis_reads_what_is_written(personal: Personal, model: Path, mine: Path) -> None:
    paths = sorted(mine.rglob("*.png"))
    pixels = np.stack([read_image(path, 8) for path in paths])
    by_torch = Predictor.load(model)
    by_onnx = open_model(model, 1)
    assert isinstance(by_onnx, EdgeModel)
    np.testing.assert_allclose(by_onnx(pixels), by_torch(torch.from_numpy(pixels)).numpy(), atol=1e-5)
    card = artifact.read_card(model)
    assert card.provenance["personalized_by"] == personal.way
    assert card.provenance["bases"] == artifact.read_card(small_bundle()).sha256
    assert set(card.learned) == {"alpha"}
    assert sorted(path.name for path in model.iterdir()) == ["card.json", "model.onnx", "tensors.safetensors"]


def test_a_worse_model_is_not_returned(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.8, 0.6])  # before, after
    monkeypatch.setattr(Learner, "accuracy", lambda *_: next(scores))
    made = personalize(open_bundle(small_bundle()), mine, epochs=1, threads=1)
    assert (made.way, made.before, made.after) == ("none", 0.8, 0.8)
    assert np.allclose(made.alpha, 1 / made.alpha.shape[1])
    card, state = artifact.load(small_bundle(), "bases")
    for name, tensor in method_of(card).model(state).items():
        np.testing.assert_allclose(made.tensors[name], tensor.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


class TestCommands:
    def test_personalize_predict_and_inspect(
        self, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "model"
        argv = ["personalize", str(small_bundle()), "--data", str(mine), "--out", str(out), "--epochs", "2"]
        assert main([*argv, "--threads", "1"]) == 0
        said = capsys.readouterr().out
        assert "Coefficients: how much of each basis, block by block" in said
        assert "held-out images" in said
        assert said.endswith(f"Model: {out}\n")
        assert main(argv) == 2
        assert "must not exist yet" in capsys.readouterr().err
        assert main(["predict", str(out), str(mine), "--labelled", "--threads", "1"]) == 0
        assert f"of {11 * len(CLASSES)} right" in capsys.readouterr().out
        assert main(["predict", str(out), str(mine / CLASSES[0]), "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(lines) == 11
        assert sum(lines[0]["all"].values()) == pytest.approx(1, abs=1e-5)
        assert main(["inspect", str(small_bundle())]) == 0
        assert "Bundle of 3 models in 4 blocks" in capsys.readouterr().out
        assert main(["inspect", str(out)]) == 0
        assert "personalized by: " in capsys.readouterr().out

    def test_json_is_that_of_fedbasis(self, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        argv = ["personalize", str(small_bundle()), "--data", str(mine), "--out", str(tmp_path / "m"), "--json"]
        assert main([*argv, "--epochs", "1"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert set(said) == {"model", "how", "epoch", "images", "held_out", "before", "after", "learned", "skipped"}

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (["--batch", "1"], "at least 2 images"),
            (["--rate", "-1"], "--rate must be a positive number"),
            (["--data", "nowhere"], "nowhere"),
        ],
    )
    def test_wrong_options(
        self, change: list[str], message: str, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        argv = ["personalize", str(small_bundle()), "--data", str(mine), "--out", str(tmp_path / "m"), *change]
        assert main(argv) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "m").exists()

    def test_an_unknown_class_gets_a_hint(self, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_images(tmp_path / "mine", 2)
        (tmp_path / "mine" / CLASSES[0]).rename(tmp_path / "mine" / f"{CLASSES[0]}s")
        argv = ["personalize", str(small_bundle()), "--data", str(tmp_path / "mine"), "--out", str(tmp_path / "m")]
        assert main(argv) == 2
        assert f"did you mean '{CLASSES[0]}'" in capsys.readouterr().err


def test_a_client_of_one_class_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "mine", 3)
    for name in CLASSES[1:]:
        for path in (tmp_path / "mine" / name).iterdir():
            path.unlink()
        (tmp_path / "mine" / name).rmdir()
    with pytest.raises(InputError, match="at least 2 classes"):
        personalize(open_bundle(small_bundle()), tmp_path / "mine")
