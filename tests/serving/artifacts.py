"""Published bases and a personal model, as artifacts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedbasis.methods.fedbasis.bases import BasisSet
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.serving import artifact
from fedbasis.serving.artifact import CARD, Card
from fedbasis.tensors.params import State

CLASSES = ["circle", "cross", "square"]


def bases_of(network: Network, count: int = 2) -> State:
    layout = network.layout(network.build())
    return BasisSet.from_models(layout, [network.initial(seed) for seed in range(count + 1)], True).to_state()


def card_of(network: Network, **changes: Any) -> Card:
    fields: dict[str, Any] = {
        "kind": "bases",
        "method": "fedbasis",
        "settings": {"bases": 2},
        "architecture": artifact.describe(network),
        "classes": CLASSES,
        "preprocessing": artifact.describe_pixels(Preprocessing(network.resolution)),
    }
    return Card(**{**fields, **changes})


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a card as with an editor."""
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    change(card)
    (folder / CARD).write_text(json.dumps(card), encoding="utf-8")
