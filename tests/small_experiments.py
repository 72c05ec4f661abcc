"""Small experiments on the drawn images."""

from pathlib import Path
from typing import Any

from fedbasis.experiment.config import Experiment, parse


def small(dataset: Path, **method: Any) -> Experiment:
    return parse(
        {
            "data": {"source": str(dataset), "resolution": 12, "clients": 3, "new_clients": 2},
            "train": {"rounds": 3, "epochs": 1, "batch": 8, "rate": 0.05},
            "personalize": {"epochs": 4, "rates": [0.01, 0.1], "ways": ["none", "lp", "ft"], "validate_every": 2},
            "machine": {"engine": "serial"},  # some tests replace functions, which other processes do not see
            "method": {"name": "fedavg", **method},
        }
    )


CHOICES = ("client", "how", "size", "rate", "losses", "validation", "best_epoch", "last_predicted", "best_predicted")


def raw(folder: Path, name: str = "fedavg", /, **sections: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "data": {"source": str(folder), "resolution": 12, "clients": 3, "new_clients": 1},
        "model": {"options": {"norm": "batch"}},
        "train": {"rounds": 2, "epochs": 1, "rate": 0.05, "batch": 8},
        "personalize": {"epochs": 3, "rates": [0.01, 0.05]},
        "machine": {"device": "cpu", "engine": "serial"}, "method": {"name": name},
    }  # fmt: skip
    return {**base, **{key: {**base[key], **section} for key, section in sections.items()}}
