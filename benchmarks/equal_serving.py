"""What do coefficients give at the same learning rate and statistics? Serve new clients of finished runs of FedBasis.

    python benchmarks/equal_serving.py RUN...      (runs with models; ten minutes of one core each, PACS at ``cpu``)

The main table serves every way at the rate and statistics that tuning chose for it, so two rows can differ in these
too. Here a classifier on the uniform combination of the bases, and coefficients with a classifier, both from the class
prior, have the same ones: each of the two pairs that tuning chose. Everything else is as in the run's configuration:
its seed, augmentation and epochs. Prints Last in percent and the difference over pairs of client and run, with its
standard error. What was served is kept in every run's folder as ``equal-serving.json``.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

import torch

from fedbasis.engines.in_process import InProcess
from fedbasis.experiment import prepare
from fedbasis.experiment.config import parse
from fedbasis.serving import artifact
from fedbasis.serving.evaluation import EvaluationPlan, evaluate, summarize
from measure import table

WAYS = ("prior+lp", "prior+coefficients+classifier")
PAIRS, SIZES = (("own", 0.01), ("shrunk", 0.005)), ("S", "M")


def served(run: Path) -> dict[str, dict[str, float]]:
    """Return Last of every new client by way, rate and size."""
    kept = run / "equal-serving.json"
    if kept.exists():
        found: dict[str, dict[str, float]] = json.loads(kept.read_text())
        return found
    experiment = parse(json.loads((run / "config.json").read_text()))
    prepared = prepare(experiment)
    _, server = artifact.load(run / "bases", "bases")
    adaptation = replace(prepared.plan.adaptation, validate_every=prepared.plan.adaptation.epochs)
    found = {}
    for kind, rate in PAIRS:
        plan = EvaluationPlan.of(
            prepared.method, ways=[f"{way}@{kind}" for way in WAYS], sizes=SIZES, rates=[rate], statistics=None,
            adaptation=adaptation,
        )  # fmt: skip
        records = evaluate(InProcess(prepared.method), server, prepared.new, plan, experiment.seed)
        for row in summarize(type(prepared.method), records, prepared.new):
            found[f"{row.how} {rate:g} {row.size}"] = dict(row.per_client)
    kept.write_text(json.dumps(found))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    given = parser.parse_args()
    torch.set_num_threads(1)
    runs = [served(run) for run in given.runs]
    rows = []
    for size in SIZES:
        for kind, rate in PAIRS:
            without, with_them = (
                [100 * last for run in runs for last in run[f"{way}@{kind} {rate:g} {size}"].values()] for way in WAYS
            )
            gaps = [mine - other for mine, other in zip(with_them, without, strict=True)]
            error = statistics.stdev(gaps) / len(gaps) ** 0.5
            means = [f"{statistics.fmean(scores):.2f}" for scores in (without, with_them)]
            rows.append([size, kind, f"{rate:g}", *means, f"{statistics.fmean(gaps):+.2f} ± {error:.2f}"])
    print(table(["size", "statistics", "rate", "uniform", "coefficients", "difference"], rows, 3))


if __name__ == "__main__":
    main()
