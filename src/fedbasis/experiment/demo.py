"""The demonstration: FedAvg and FedBasis on the embedded Digits-4, with every new client personalized and scored."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from PIL import Image

from fedbasis.experiment.config import Experiment, parse
from pflbed import Client

NEW_CLIENT = "photo/n00"


def experiments(seed: int = 0, fast: bool = False) -> list[Experiment]:
    """Return the two experiments; ``fast`` makes them small enough for half a minute, for tests of the software."""
    common: dict[str, Any] = {
        "seed": seed,
        "data": {"clients": 20, "new_clients": 10},
        "model": {"name": "cnn-small", "options": {"norm": "group"}},
        "train": {"rounds": 15, "epochs": 2, "batch": 16},
        "personalize": {"rates": [0.005, 0.01], "validate_every": 4},
    }
    if fast:
        common["data"] = {"clients": 3, "new_clients": 1, "limit": 60}
        common["train"] = {"rounds": 3, "epochs": 1, "batch": 32, "rate": 0.02}
        common["personalize"] = {"epochs": 3, "rates": [0.01]}
    ways = {"fedavg": ("none", "lp", "ft"), "fedbasis": ("coefficients", "coefficients+classifier")}
    methods: list[dict[str, Any]] = [{"name": "fedavg"}, {"name": "fedbasis", "coefficient_epochs": 1}]
    return [
        parse({**common, "personalize": {**common["personalize"], "ways": ways[method["name"]]}, "method": method})
        for method in methods
    ]


def export_client(clients: Mapping[str, Client], folder: Path) -> Path:
    """Write the training images of one new client as ``<class>/<image>``, to try the commands on."""
    client = clients[NEW_CLIENT]
    for number, (pixels, label) in enumerate(zip(client.train.pixels, client.train.labels, strict=True)):
        place = folder / str(int(label)) / f"{number:03d}.png"
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place)
    return folder


def next_commands(run: Path, client: Path, out: Path, report: Path) -> list[str]:
    """Return commands to go on with, as they can be pasted."""
    called = Path(sys.argv[0])
    on_path = called.name != "fedbasis" or shutil.which("fedbasis") == str(called.absolute())
    program = "fedbasis" if on_path else called
    image = next(iter(sorted(client.rglob("*.png"))))
    model = next(path for i in count(1) if not (path := out / (f"my-model-{i}" if i > 1 else "my-model")).exists())
    browser = "open" if sys.platform == "darwin" else "xdg-open"
    return [
        shlex.join(map(str, words))
        for words in (
            (program, "personalize", run, "--data", client, "--out", model),
            (program, "predict", model, image),
            (program, "inspect", model),
            (browser, report),
        )
    ]
