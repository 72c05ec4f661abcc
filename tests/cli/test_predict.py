"""``fedbasis predict``: plain inference, and a sentence for what is no model or no image."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fedbasis.serving import artifact
from helpers.cli_artifacts import DAMAGES
from helpers.cli_images import CLASSES
from helpers.cli_running import Ended


def test_predict_is_plain_inference(personal: Path, mine: Path, fedbasis: Callable[..., Ended]) -> None:
    card = artifact.read_card(personal)
    module = card.network.build()
    module.load_state_dict(load_file(personal / "tensors.safetensors"))
    module.eval()
    paths = sorted(mine.rglob("*.png"))
    ended = fedbasis("predict", personal, mine, "--json", "--labelled")
    assert ended.code == 0, ended.errors
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [line["image"] for line in lines] == [str(path) for path in paths]
    right = 0
    for path, line in zip(paths, lines, strict=True):
        pixels = torch.tensor(np.asarray(Image.open(path).convert("RGB"))) / 255
        normal = (pixels - torch.tensor(card.preprocessing.mean)) / torch.tensor(card.preprocessing.std)
        with torch.no_grad():
            expected = torch.softmax(module(normal.permute(2, 0, 1)[None]), 1)[0]
        assert list(line["all"]) == list(CLASSES)
        assert list(line["all"].values()) == pytest.approx(expected.tolist(), abs=1e-5)
        assert line["class"] == CLASSES[int(expected.argmax())]
        assert line["probability"] == pytest.approx(float(expected.max()), abs=1e-5)
        assert line["true"] == path.parent.name
        right += line["class"] == path.parent.name
    text = fedbasis("predict", personal, mine, "--labelled").out.splitlines()
    assert text[-2] == f"{right} of 30 right ({100 * right / 30:.1f} %)"
    assert text[-1].startswith(f"Personalized accuracy: {100 * right / 30:.1f} %")  # every class is there as often
    assert text[0] == f"{paths[0]}  {lines[0]['class']}  {lines[0]['probability']:.3f}"
    assert right > 15  # it has learned something


def test_predict_takes_files_by_any_path(
    personal: Path, mine: Path, fedbasis: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mine / "cross")
    here = fedbasis("predict", personal, "000.png", "../square/001.png", "--labelled")
    there = fedbasis("predict", personal, mine / "cross/000.png", mine / "square/001.png", "--labelled")
    assert here.code == 0, here.errors
    assert here.out.splitlines()[-1] == there.out.splitlines()[-1]
    assert here.out.splitlines()[0].split()[1:] == there.out.splitlines()[0].split()[1:]
    alone = fedbasis("predict", personal, "000.png")
    assert alone.out == here.out.splitlines(keepends=True)[0]


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_model_is_refused(
    damage: str, personal: Path, mine: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    model = shutil.copytree(personal, tmp_path / "model")
    harm, expected = DAMAGES[damage]
    harm(model)
    assert expected in refused("predict", model, mine)
    if damage != "no card":  # a folder without one is nothing that could be inspected
        assert expected in refused("inspect", model)


def test_images_that_cannot_be_predicted_are_refused(
    personal: Path, mine: Path, tmp_path: Path, refused: Callable[..., str], fedbasis: Callable[..., Ended]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.png").write_text("no image")
    renamed = shutil.copytree(mine, tmp_path / "mine")
    (renamed / "square").rename(renamed / "squares")
    assert "must exist" in refused("predict", personal, tmp_path / "none.png")
    assert "must hold images" in refused("predict", personal, tmp_path / "empty")
    ended = fedbasis("predict", personal, tmp_path / "a.png")
    assert (ended.code, ended.out) == (2, "")
    assert "1 image cannot be read" in ended.errors
    assert "none of 1" in ended.errors.splitlines()[-1]
    assert ended.errors.splitlines()[-1].startswith("fedbasis: ")
    assert "'squares' of" in (sentence := refused("predict", personal, renamed, "--labelled"))
    assert "did you mean 'square'?" in sentence
    assert "no folder" in refused("predict", tmp_path / "nothing", mine)


def test_csv_holds_no_control_sequences(
    personal: Path, mine: Path, tmp_path: Path, fedbasis: Callable[..., Ended]
) -> None:
    shutil.copytree(personal, tmp_path / "m")
    card = json.loads((tmp_path / "m/card.json").read_text(encoding="utf-8"))
    card["classes"] = [f"\x1b[2J{name}" for name in card["classes"]]
    (tmp_path / "m/card.json").write_text(json.dumps(card), encoding="utf-8")
    ended = fedbasis("predict", tmp_path / "m", mine, "--csv")
    assert ended.code == 0, ended.errors
    assert "\x1b" not in ended.out
    assert "\\x1b[2J" in ended.out
    assert ended.out.splitlines()[0] == "image,class,probability"


def test_what_is_no_image_is_said_in_words(personal: Path, tmp_path: Path, fedbasis: Callable[..., Ended]) -> None:
    (tmp_path / "x.png").write_bytes(b"%!PS-Adobe-3.0")
    ended = fedbasis("predict", personal, tmp_path / "x.png")
    assert ended.code == 2
    assert "it is no PNG, JPEG, WEBP, GIF, BMP, TIFF or PPM image" in ended.errors
    assert "Error" not in ended.errors
