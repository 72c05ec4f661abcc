"""Images of 16 pixels, inputs of 12: every path crops alike, from training to a personal model's predictions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedbasis as fb
import pflbed
from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.experiment.setup import method_for
from fedbasis.methods import METHODS
from fedbasis.networks.inputs import Preprocessing
from fedbasis.serving import artifact
from fedbasis.serving.new_client import Predictor, read_batches
from fedbasis.training.runs import read_lines
from pflbed.errors import InputError
from small_experiments import raw

CROPPED: dict[str, Any] = {"resolution": 16, "crop": 12}
AUGMENTED: dict[str, Any] = {"augment": "resized-crop+flip"}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_on_random_crops_and_serves_centres(name: str, dataset: Path, tmp_path: Path) -> None:
    personal = {"epochs": 1, "rates": [0.05], "validate_every": 1}
    raw_settings = raw(dataset, name, data=CROPPED, train={**AUGMENTED, "rounds": 2}, personalize=personal)
    prepared = prepare(parse(raw_settings))
    assert prepared.method.task.network.resolution == 12
    assert prepared.clients[prepared.benchmark.new[0]].train.pixels.shape[1:] == (16, 16, 3)
    run = execute(prepared, tmp_path)
    assert read_lines(run.evaluation)
    card = artifact.read_card(run.bases)
    assert (card.architecture.resolution, card.preprocessing.resolution, card.preprocessing.crop) == (12, 16, 12)


def test_the_library_crops_alike_from_training_to_a_personal_model(dataset: Path, tmp_path: Path) -> None:
    clients = _clients(dataset)
    trained = fb.train(
        fb.FedAvg(network="cnn-small"), clients, rounds=1, epochs=1, rate=0.05, augment="resized-crop+flip", crop=12,
        engine="serial",
    )  # fmt: skip
    new = clients[next(iter(clients.new))]
    mine = fb.personalize(trained, new.train, way="ft", epochs=1)
    pixels = new.test.pixels
    centres = np.ascontiguousarray(pixels[:, 2:14, 2:14])
    with torch.no_grad():
        expected = torch.softmax(mine.module(Preprocessing(12)(torch.from_numpy(centres))), dim=1)
    assert torch.equal(mine.predict(pixels), expected)
    mine.save(tmp_path / "model")
    loaded = fb.load(tmp_path / "model")
    assert isinstance(loaded, fb.Personal)
    assert torch.equal(loaded.predict(pixels), expected)


def test_a_folder_is_read_at_the_decoded_size(dataset: Path, tmp_path: Path) -> None:
    clients = _clients(dataset)
    trained = fb.train(
        fb.FedBasis(network="cnn-small", bases=2, warm_start=0.5), clients, rounds=2, epochs=1, crop=12, engine="serial"
    )
    trained.save(tmp_path / "bases")
    bases = fb.load(tmp_path / "bases")
    assert isinstance(bases, fb.Trained)
    mine = fb.personalize(bases, dataset / "chalk", epochs=1)
    mine.save(tmp_path / "model")
    predictor = Predictor.load(tmp_path / "model")
    batch = next(read_batches(predictor.card, sorted((dataset / "paint" / "cross").iterdir())[:3], 8))
    assert batch.pixels.shape == (3, 16, 16, 3)
    assert torch.equal(predictor(torch.from_numpy(batch.pixels)), mine.predict(batch.pixels))
    with pytest.raises(InputError, match="must have the shape"):
        fb.personalize(bases, np.zeros((4, 12, 12, 3), dtype=np.uint8), [0, 1, 0, 1])


def test_a_federation_rehearses_with_images_of_the_decoded_size() -> None:
    pytest.importorskip("flwr")
    from fedbasis.flower.expected import rehearsed

    e = parse({"data": {"resolution": [20, 16], "crop": 12}, "train": AUGMENTED, "method": {"name": "fedavg"}})
    method = method_for(e, ("a", "b"))
    assert method.task.recipe.preprocessing == Preprocessing((20, 16), crop=12)
    assert rehearsed(method, method.init(0), 2, 0).numbers == {"loss", "examples"}


def test_a_crop_larger_than_the_image_is_refused() -> None:
    with pytest.raises(InputError, match="crop must be at most the resolution, 28, but it is 32"):
        parse({"data": {"crop": 32}, "method": {"name": "fedavg"}})
    with pytest.raises(InputError, match="crop must be at most"):
        parse({"data": {"resolution": [24, 32], "crop": [32, 24]}, "method": {"name": "fedavg"}})


def test_a_card_whose_crop_does_not_fit_is_refused(dataset: Path, tmp_path: Path) -> None:
    trained = fb.train(fb.FedAvg(network="cnn-small"), _clients(dataset), rounds=1, epochs=1, crop=12, engine="serial")
    trained.save(tmp_path / "bases")
    card = tmp_path / "bases" / "card.json"
    text = card.read_text()
    for wrong, reason in (('"crop": 14', "differ"), ('"crop": null', "differ"), ('"crop": -1', "crop")):
        card.write_text(text.replace('"crop": 12', wrong))
        with pytest.raises(InputError, match=reason):
            artifact.read_card(tmp_path / "bases")


def _clients(dataset: Path) -> pflbed.Clients:
    return prepare(parse(raw(dataset, data={"resolution": 16}))).clients  # type: ignore[return-value]
