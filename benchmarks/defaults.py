"""Why FedBasis' defaults are what they are: one option changed at a time, judged on validation images only.

    python benchmarks/defaults.py --out runs      (about 20 minutes on 2 cores; finished runs are only read)

Digits-4, the demonstration's settings, seed 0, classifier rate 0.005: mean personalized accuracy (%) of the new clients
on their validation images after the last epoch. Test images play no part here.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fedbasis.cli.display import Live
from fedbasis.experiment.config import Experiment, parse
from fedbasis.experiment.demo import experiments
from fedbasis.experiment.jobs import execute_all
from fedbasis.training.runs import Run, read_lines

BASIS: dict[str, dict[str, Any]] = {
    "FedBasis as it is by default": {},
    'rate = "per-basis"': {"rate": "per-basis"},
    'aggregation = "mean"': {"aggregation": "mean"},
    'cluster = "network"': {"cluster": "network"},
    'coefficient_optimizer = "sgd"': {"coefficient_optimizer": "sgd"},
    "the four above at once, as in the paper": {
        "rate": "per-basis", "aggregation": "mean", "cluster": "network", "coefficient_optimizer": "sgd",
    },
    "major = false": {"major": False},
    "tau = 1": {"tau": 1.0},
    "warm_start = 0.6": {"warm_start": 0.6},
    "warm_start = 0.9": {"warm_start": 0.9},
}  # fmt: skip


def variant(base: Experiment, settings: dict[str, Any]) -> Experiment:
    raw = base.as_dict()
    raw["method"] |= settings
    raw["personalize"] |= {"rates": [0.005], "validate_every": raw["personalize"]["epochs"]}
    return parse(raw)


def scores(run: Run) -> dict[str, list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for record in read_lines(run.evaluation):
        found.setdefault((record["how"], record["size"]), []).append(100 * record["validation"][-1])
    ways = dict.fromkeys(how for how, _ in found)
    return {how: [float(np.mean(found[how, size])) for size in ("S", "M")] for how in ways}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    fedavg, fedbasis = experiments(0)
    plans = {"FedAvg": variant(fedavg, {})} | {name: variant(fedbasis, changed) for name, changed in BASIS.items()}
    names = list(plans)
    print("| changed | way | S | M |\n| --- | --- | ---: | ---: |", flush=True)
    for pair in (names[i : i + 2] for i in range(0, len(names), 2)):
        with Live(Console(stderr=True)) as live:
            listeners = [live.listener(plans[name].method_name) for name in pair]
            runs = execute_all([plans[name] for name in pair], arguments.out, listeners)
        for name, run in zip(pair, runs, strict=True):
            for how, (small, medium) in scores(run).items():
                print(f"| {name} | {how} | {small:.1f} | {medium:.1f} |", flush=True)


if __name__ == "__main__":
    main()
