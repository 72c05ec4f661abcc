"""A few baselines in several settings on a part of PACS: what a choice of theirs is worth, beside FedAvg + FT.

    python benchmarks/baselines.py --data PACS --weights tiny-imagenet --out runs/baselines [--only per-fedavg-fo]

16 participating and 24 new clients, at most 70 images of a class of a domain, 32 pixels, 8 rounds of 2 epochs. The seed
is one that no table uses. Prints a line for every setting; runs that are done are only read.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import parse

EMBEDDING, CLUSTER = ["embedding", "embedding+ft"], ["cluster", "cluster+ft"]
SETTINGS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("fedavg", {}, ["ft"]),
    ("per-fedavg-fo", {"steps": "epochs"}, ["ft"]),
    *(("per-fedavg-fo", {"steps": "outer", "inner_rate": rate}, ["ft"]) for rate in (0.001, 0.003, 0.01, 0.03)),
    ("pfedhn", {"server_steps": "round", "rate": 0.1}, EMBEDDING),
    ("pfedhn", {"server_steps": "client", "rate": 0.5}, EMBEDDING),
    ("ifca", {"start": "noise"}, CLUSTER),
    ("ifca", {"start": "warm"}, CLUSTER),
]


def experiment(method: str, settings: dict[str, Any], ways: list[str], data: str, weights: str) -> dict[str, Any]:
    """The same for every method."""
    return {
        "seed": 101,
        "data": {"source": data, "resolution": 32, "clients": 4, "new_clients": 6, "limit": 70},
        "model": {"name": "resnet10", "options": {"width": 16}, "weights": weights},
        "train": {"rounds": 8, "epochs": 2, "batch": 16, "rate": 0.01, "augment": "flip+shift"},
        "personalize": {"epochs": 10, "rates": [0.005, 0.02], "ways": ways, "validate_every": 10},
        "method": {"name": method, **settings},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", default="tiny-imagenet")
    parser.add_argument("--out", type=Path, default=Path("runs/baselines"))
    parser.add_argument("--only", help="the name of one method")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for method, settings, ways in SETTINGS:
        if given.only not in (None, method):
            continue
        raw = experiment(method, settings, ways, given.data, given.weights)
        run = execute(prepare(parse(raw)), given.out)
        rows = json.loads(run.results.read_text(encoding="utf-8"))
        scores = "  ".join(f"{row['how']} {row['size']} {100 * row['last']:.1f}" for row in rows)
        print(f"{method} {json.dumps(settings)}: {scores}", flush=True)


if __name__ == "__main__":
    main()
