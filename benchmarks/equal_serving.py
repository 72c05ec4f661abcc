"""What do coefficients give at the same learning rate and statistics? Serve new clients of finished runs of FedBasis.

    python benchmarks/equal_serving.py RUN...      (runs with models; ten minutes of one core each, PACS at ``cpu``)

The main table serves every way at the rate and statistics that tuning chose for it, so two rows can differ in these
too. Here a classifier on the uniform combination of the bases, and coefficients with a classifier, both from the class
prior, have the same ones. Prints Last in percent and the difference over pairs of client and run, with its standard
error. What was served is kept in every run's folder as ``equal-serving.json``.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch

import fedbasis as fb
from fedbasis.experiment import prepare
from fedbasis.experiment.config import parse
from measure import table

WAYS = ("prior+lp", "prior+coefficients+classifier")
RATES, STATISTICS, SIZES, EPOCHS = (0.005, 0.01), ("own", "shrunk"), ("S", "M"), 20


def served(run: Path) -> dict[str, dict[str, float]]:
    """Return Last of every new client by rate, way and size."""
    kept = run / "equal-serving.json"
    if kept.exists():
        found: dict[str, dict[str, float]] = json.loads(kept.read_text())
        return found
    prepared, trained = prepare(parse(json.loads((run / "config.json").read_text()))), fb.load(run / "bases")
    assert isinstance(trained, fb.Trained)
    ways = [f"{way}@{kind}" for way in WAYS for kind in STATISTICS]
    found = {}
    for rate in RATES:
        scores = fb.evaluate(
            trained, prepared.new, ways=ways, sizes=SIZES, rates=[rate], epochs=EPOCHS, batch=16,
            validate_every=EPOCHS, engine="serial",
        )  # fmt: skip
        found |= {f"{rate} {way} {size}": dict(scores[way, size].per_client) for way in ways for size in SIZES}
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
        for kind in STATISTICS:
            for rate in RATES:
                without, with_them = (
                    [100 * last for run in runs for last in run[f"{rate} {way}@{kind} {size}"].values()] for way in WAYS
                )
                gaps = [mine - other for mine, other in zip(with_them, without, strict=True)]
                error = statistics.stdev(gaps) / len(gaps) ** 0.5
                means = [f"{statistics.fmean(scores):.2f}" for scores in (without, with_them)]
                rows.append([size, kind, f"{rate:g}", *means, f"{statistics.fmean(gaps):+.2f} ± {error:.2f}"])
    print(table(["size", "statistics", "rate", "uniform", "coefficients", "difference"], rows, 3))


if __name__ == "__main__":
    main()
