"""Do nearest neighbours help after FedBasis and fine-tuning? New clients of the tuning part of CIFAR.

    python benchmarks/neighbours.py --data DATA --testbed cifar100 --out runs/neighbours

FedAvg and FedBasis are trained with the settings of ``reproduce cifar-new --scale cpu``. Every new client personalizes
for 10 epochs at rate 0.01; then the model's probabilities are mixed half and half with those of its ten nearest
training images, by the features of the personal model (kNN-Per's rule). Prints Last in percent, without and with
neighbours, and what they add over pairs of the same client and seed, with its standard error.
"""

import argparse
import statistics
from pathlib import Path
from typing import cast

import numpy as np
import torch

import fedbasis as fb
from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.methods.knn_per import KNNPer
from fedbasis.networks.classifier import probabilities_and_features
from fedbasis.studies.base import Setup
from fedbasis.studies.scales import SCALES
from fedbasis.studies.tuning import FIRST_SEED
from measure import table
from pflbed.client_data import Client

WAYS = {
    "fedavg": ("none", "lp", "ft", "prior+ft"),
    "fedbasis": ("coefficients+classifier", "coefficients+classifier+ft", "prior+coefficients+classifier+ft"),
}


def scored(knn: KNNPer, mine: fb.Personal, client: Client) -> tuple[float, float]:
    """Return the accuracy on a client's test images, weighted as in the tables, without and with its neighbours."""
    name, recipe = knn.task.classifier, knn.task.recipe.preprocessing
    stored, labels = torch.from_numpy(np.asarray(client.train.pixels)), torch.as_tensor(client.train.labels).long()
    asked, truth = torch.from_numpy(np.asarray(client.test.pixels)), torch.as_tensor(client.test.labels).long()
    _, features = probabilities_and_features(mine.module, name, stored, recipe)
    probabilities, queries = probabilities_and_features(mine.module, name, asked, recipe)
    mixed = 0.5 * knn.vote(queries, features, labels) + 0.5 * probabilities
    weights = torch.from_numpy(client.test_weights)
    right = (weights * (one.argmax(1) == truth) for one in (probabilities, mixed))
    before, after = (float(one.sum() / weights.sum()) for one in right)
    return before, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--testbed", choices=("cifar10", "cifar100"), default="cifar100")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/neighbours"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    setup = Setup(SCALES["cpu"], {given.testbed: given.data}, None)
    part = setup.testbed(given.testbed).tuning or {}
    scores: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for seed in range(FIRST_SEED, FIRST_SEED + given.seeds):
        knn = cast(KNNPer, prepare(parse(setup.raw(given.testbed, "knn-per", seed, data=part))).method)
        for name, ways in WAYS.items():
            changes = {"data": part, "personalize": {"ways": ["none"]}}
            prepared = prepare(parse(setup.raw(given.testbed, name, seed, **changes)))
            trained = fb.load(execute(prepared, given.out).folder)
            assert isinstance(trained, fb.Trained)
            for way in ways:
                for client in prepared.new.values():
                    mine = fb.personalize(trained, client.train, way=way, epochs=10, rate=0.01, batch=10)
                    pair = scored(knn, mine, client)
                    scores.setdefault((name, way), []).append(pair)
    rows = []
    for (name, way), pairs in scores.items():
        gains = [after - before for before, after in pairs]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        without, with_ = (f"{100 * statistics.fmean(side):.1f}" for side in zip(*pairs, strict=True))
        rows.append([name, way, without, with_, f"{100 * statistics.fmean(gains):+.1f} ± {100 * error:.1f}"])
    print(table(["method", "way", "Last", "with neighbours", "they add"], rows, 2))


if __name__ == "__main__":
    main()
