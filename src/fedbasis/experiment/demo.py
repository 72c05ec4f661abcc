"""The demonstration: FedAvg and FedBasis on the embedded Digits-4, with every new client personalized and scored."""

from typing import Any

from fedbasis.experiment.config import Experiment, parse


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
