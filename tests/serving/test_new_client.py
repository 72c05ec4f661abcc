"""A new client on its own machine."""

import shutil
from pathlib import Path
from typing import Literal

import pytest
import torch

from fedbasis.methods.base import Adaptation
from fedbasis.networks.train import predict
from fedbasis.serving import artifact
from fedbasis.serving.new_client import (
    ENOUGH,
    Predictor,
    held_out,
    method_of,
    read_folder,
    serve_folder,
    write_model,
)
from helpers.accelerator import DEVICE, Accelerator
from pflbed.errors import InputError
from serving.artifacts import edit
from shapes import shapes_examples, write_images


def test_the_method_of_a_card_is_checked(bases: Path) -> None:
    for change, expected in (
        ({"method": "fedcat"}, "must be one of local, .* but it is 'fedcat'"),
        ({"settings": {"bases": 2, "colour": "red", "tau": -1}}, "'settings.(colour|tau)'"),
        ({"settings": {"bases": "many"}}, "'settings.bases'"),
    ):
        edit(bases, lambda card, change=change: card.update(change))  # type: ignore[misc]
        with pytest.raises(InputError, match=expected):
            method_of(artifact.read_card(bases))
        edit(bases, lambda card: card.update(method="fedbasis", settings={"bases": 2}))
    assert method_of(artifact.read_card(bases)).about.name == "fedbasis"


@pytest.mark.parametrize(("every", "keep"), [(1, "last"), (2, "last"), (3, "best"), (1, "best")])
def test_the_accuracy_after_is_that_of_the_model_that_is_kept(
    bases: Path, tmp_path: Path, every: int, keep: Literal["last", "best"]
) -> None:
    """Measured again by hand on the images that were held out, whatever epochs were looked at."""
    folder = write_images(tmp_path / "client", 9)
    plan = Adaptation(epochs=4, rate=0.02, validate_every=every)
    served = serve_folder(bases, folder, "ft", plan, 3, keep=keep)
    data, _ = read_folder(folder, served.card)
    held = held_out(data.labels, 3)
    assert (served.held_out, served.images) == (int(held.sum()), int((~held).sum())) == (6, 21)
    start = served.method.model(artifact.load(bases, "bases")[1])
    for tensors, accuracy in ((start, served.before), (served.fitted.tensors, served.after)):
        model = served.method.task.network.workspace()
        model.load(tensors)
        guesses = predict(model.module, data.pixels[held], served.card.pixels).argmax(1)
        assert accuracy == pytest.approx(float((guesses == data.labels[held]).double().mean()))


@pytest.mark.parametrize("way", [None, "lp", "prior+ft"])
def test_a_new_client_may_have_a_gpu(bases: Path, tmp_path: Path, way: str | None) -> None:
    folder = write_images(tmp_path / "client", 9)
    with Accelerator():
        served = serve_folder(bases, folder, way, Adaptation(epochs=2, rate=0.02), 3, device=DEVICE)
    assert {tensor.device.type for tensor in served.fitted.tensors.values()} == {"cpu"}
    write_model(served, tmp_path / "model")


def test_few_images_are_all_trained_on() -> None:
    assert not held_out(torch.arange(ENOUGH - 1) % 3, 0).any()
    labels = torch.tensor([0] * 15 + [1] * 4 + [2])
    for seed in range(4):
        held = held_out(labels, seed)
        assert [int(held[labels == label].sum()) for label in range(3)] == [3, 1, 0]  # a fifth, and never the only one


def test_a_written_model_needs_nothing_of_the_bases(bases: Path, tmp_path: Path) -> None:
    served = serve_folder(bases, write_images(tmp_path / "client", 4), None, Adaptation(epochs=2), 0)
    write_model(served, tmp_path / "model")
    shutil.rmtree(bases)
    pixels = shapes_examples(9, seed=4).pixels
    predictor = Predictor.load(tmp_path / "model")
    card, chances = predictor.card, predictor(pixels)
    model = served.method.task.network.workspace()
    model.load(served.fitted.tensors)
    assert torch.equal(chances, predict(model.module, pixels, card.pixels))
    assert card.provenance["personalized_by"] == served.way == "coefficients+classifier"


def test_what_a_client_cannot_bring_is_refused_with_a_sentence(bases: Path, tmp_path: Path) -> None:
    one = write_images(tmp_path / "one", 3, classes=1)
    with pytest.raises(InputError, match=r"images of at least 2 classes, but .*one holds 1"):
        serve_folder(bases, one, None, Adaptation(epochs=1), 0)
    few = write_images(tmp_path / "few", 2)
    with pytest.raises(InputError, match=f"needs images to hold out, {ENOUGH} in all, but .*few has 6"):
        serve_folder(bases, few, None, Adaptation(epochs=1), 0, keep="best")
    (few / "circle").rename(few / "circel")
    with pytest.raises(InputError, match=r"'circel' is not.*circle"):
        serve_folder(bases, few, None, Adaptation(epochs=1), 0)
