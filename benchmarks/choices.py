"""Why FedBasis' defaults are what they are on photographs: one choice at a time, judged by validation clients.

    python benchmarks/choices.py --data PACS --weights tiny-imagenet --out runs/choices \
        [--only "as it is,FedAvg"] [--seed 0]        (about 6 minutes a line on one core; finished runs are only read)

The images of the clients that take part in the scale ``cpu`` become a PFLBed benchmark of their own: 60 clients train,
24 others, the validation clients, are served and scored. So no image of a new client and no test image of the tables
plays a part in any choice. Prints Last and Best (%) for S and M.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import pflbed
from fedbasis.experiment import Prepared, execute, prepare
from fedbasis.experiment.config import Experiment, parse
from fedbasis.serving.personalize import label
from fedbasis.studies.scales import SCALES
from pflbed.benchmark import PARTICIPATING

BED = SCALES["cpu"].testbeds["pacs"]
PAPER = {
    "rate": "per-basis", "aggregation": "mean", "cluster": "network", "coefficient_optimizer": "sgd",
    "coefficient_rate": 0.01,
}  # fmt: skip
CHOICES: Mapping[str, Mapping[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "Per-FedAvg": {"name": "per-fedavg-fo"},
    "as it is": {},
    "no major basis": {"major": False},
    "warm start 0.5": {"warm_start": 0.5},
    "warm start 0.15": {"warm_start": 0.15},
    "psi by frozen statistics": {"coefficient_statistics": "frozen"},
    "clusters of networks": {"cluster": "network"},
    "psi at 0.03": {"coefficient_rate": 0.03},
    "psi at 0.3": {"coefficient_rate": 0.3},
    "psi by SGD at 1": {"coefficient_optimizer": "sgd", "coefficient_rate": 1.0},
    "one epoch on psi": {"coefficient_epochs": 1},
    "tau 0.3": {"tau": 0.3},
    "tau 1": {"tau": 1.0},
    "plain mean": {"aggregation": "mean"},
    "rate per basis": {"rate": "per-basis"},
    "8 bases": {"bases": 8},
    "as the paper": PAPER,
}


def experiment(choice: str, data: str, weights: str, seed: int) -> Experiment:
    method = {"name": "fedbasis", **CHOICES[choice]}
    if method["name"] == "fedbasis":
        method = {**BED.fedbasis, **method}
    return parse(
        {
            "seed": seed,
            "data": {**BED.data, "source": data, "clients": 15, "new_clients": 6},
            "model": {**BED.model, "weights": weights},
            "train": dict(BED.train),
            "personalize": {**BED.personalize, "validate_every": 5},
            "machine": {"threads": 1},
            "method": method,
        }
    )


def inner(prepared: Prepared) -> Prepared:
    """Split the participating clients' images anew: some of them train, others are the validation clients."""
    tables = replace(
        prepared.benchmark.spec,
        clients_per_domain=BED.data["clients"],
        new_clients_per_domain=BED.data["new_clients"],
    )
    outer = pflbed.build(prepared.benchmark.table, tables)
    rows = outer.split == PARTICIPATING
    pixels = next(iter(prepared.clients.values())).train.source
    table = outer.table.take(rows.nonzero()[0].tolist())
    benchmark = pflbed.build(table, prepared.benchmark.spec)
    clients = pflbed.clients(benchmark, pixels[rows])
    return Prepared(prepared.experiment, benchmark, clients, table.digest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/choices"))
    parser.add_argument("--only", default=",".join(CHOICES), help="names of choices, with commas")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| choice | way | S Last | S Best | M Last | M Best | rates |\n| --- | --- | ---: | ---: | ---: | ---: | --- |"
    )
    for choice in given.only.split(","):
        prepared = inner(prepare(experiment(choice, given.data, given.weights, given.seed)))
        rows = json.loads(execute(prepared, given.out).results.read_text(encoding="utf-8"))
        for how in dict.fromkeys(row["how"] for row in rows):
            by_size = {row["size"]: row for row in rows if row["how"] == how}
            scores = [f"{100 * by_size[size][which]:.1f}" for size in ("S", "M") for which in ("last", "best")]
            rates = " / ".join(f"{by_size[size]['rate']:g}" for size in ("S", "M"))
            way = label(prepared.experiment.method_name, how)
            print(f"| {choice} | {way} | {' | '.join(scores)} | {rates} |", flush=True)


if __name__ == "__main__":
    main()
