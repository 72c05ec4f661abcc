"""Do more rounds change the order of FedAvg and FedBasis? The main table's trainings on PACS, with as many as you say.

    python benchmarks/long_training.py --data PACS --weights tiny-imagenet --rounds 60 --out runs/long

Tuned settings, rates and statistics of the scale ``cpu``, its tables part and clients; only the number of rounds
differs, so a warm start of 90 % is longer too. Prints Last of the new clients, in percent, and what FedBasis has more,
over pairs of the same client, with its standard error. Runs resume.
"""

import argparse
import statistics
from pathlib import Path

import torch

from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.report.runs import RunData
from fedbasis.studies.base import Setup
from fedbasis.studies.new_clients import FROM_PRIOR, SIZES
from fedbasis.studies.scales import SCALES
from fedbasis.studies.variants import Key, row_title
from fedbasis.studies.verdicts import PairScores, last
from measure import table

WAYS = {
    "fedavg": ("none", "lp", "prior+lp", "ft@own", "prior+ft@own"),
    "fedbasis": ("lp", "coefficients+classifier", FROM_PRIOR[1]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", default="tiny-imagenet")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/long"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    setup = Setup(SCALES["cpu"], {"pacs": given.data}, given.weights, (given.seed,))
    scores: dict[tuple[Key, str], PairScores] = {}
    for name, ways in WAYS.items():
        changes = {"train": {"rounds": given.rounds}, "personalize": {"ways": list(ways)}}
        run = execute(prepare(parse(setup.raw("pacs", name, given.seed, **changes))), given.out)
        for way in ways:
            for size in SIZES:
                scores[(name, way), size] = last([RunData(run)], way, size)
    rows = []
    for key in dict.fromkeys(key for key, _ in scores):
        cells = [row_title(key)]
        for size in SIZES:
            mine, ours = scores[key, size], scores[FROM_PRIOR, size]
            gaps = [100 * (ours[pair] - mine[pair]) for pair in mine]
            error = statistics.stdev(gaps) / len(gaps) ** 0.5
            cells.append(f"{100 * statistics.fmean(mine.values()):.1f}")
            cells.append("" if key == FROM_PRIOR else f"{statistics.fmean(gaps):+.1f} ± {error:.1f}")
        rows.append(cells)
    print(table(["row", *(head for size in SIZES for head in (size, f"{row_title(FROM_PRIOR)} minus it"))], rows))


if __name__ == "__main__":
    main()
