"""What fedbasis-edge reads: bundles and models, whose graphs a runtime opens."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from fedbasis_edge import open_bundle, open_model, personalize, write_model
from fuzz.mutators import bytes_mutant, json_mutant, json_value_mutant
from fuzz.runner import Attempt, target
from helpers.cli_images import write_images
from helpers.edge_bundles import small_bundle

Prepared = Callable[[Random], Attempt]


def changed(data: bytes, name: str, rng: Random) -> bytes:
    """Damage a file by its kind."""
    return json_mutant(json.loads(data), rng) if name.endswith("json") else bytes_mutant(data, rng)


@target("fedbasis-edge bundle")
def bundles(folder: Path) -> Prepared:
    """A changed file; often with a digest that fits it again, so that what comes after the digests is reached."""
    good, mine, place = small_bundle(), write_images(folder / "mine", 4), folder / "bundle"

    def make(rng: Random) -> Attempt:
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(folder / "model", ignore_errors=True)
        shutil.copytree(good, place)
        names = ("edge.json", "card.json", "step.onnx", "apply.onnx", "statistics.onnx", "skeleton.onnx")
        name = rng.choice((*names, "edge.json", "step.onnx", "tensors.safetensors"))
        (place / name).write_bytes(changed((place / name).read_bytes(), name, rng))
        if name != "edge.json" and rng.random() < 0.8:
            about = json.loads((place / "edge.json").read_bytes())
            about["files"][name] = hashlib.sha256((place / name).read_bytes()).hexdigest()
            if rng.random() < 0.1:
                about = json_value_mutant(about, rng)
            (place / "edge.json").write_text(json.dumps(about))

        def attempt() -> None:
            bundle = open_bundle(place)
            write_model(personalize(bundle, mine, epochs=1, threads=1), folder / "model")

        return attempt

    return make


@target("fedbasis-edge model")
def models(folder: Path) -> Prepared:
    """A changed card or graph of a personal model."""
    mine = write_images(folder / "mine", 4)
    good, place = folder / "good", folder / "model"
    write_model(personalize(open_bundle(small_bundle()), mine, epochs=1, threads=1), good)

    def make(rng: Random) -> Attempt:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(good, place)
        name = rng.choice(("card.json", "model.onnx"))
        (place / name).write_bytes(changed((place / name).read_bytes(), name, rng))
        if name == "model.onnx":
            card = json.loads((place / "card.json").read_bytes())
            card["provenance"]["onnx"] = hashlib.sha256((place / name).read_bytes()).hexdigest()
            (place / "card.json").write_text(json.dumps(card))
        return lambda: open_model(place, 1)

    return make
