"""Do new clients bear coded bases? Serve the new clients of finished runs with the bases as published and as coded.

    python benchmarks/compact_bundles.py RUN...     (runs of FedBasis; about 5 core minutes each for PACS at ``cpu``)

Every new client learns coefficients and a classifier at rate 0.01 with statistics of its own. Scores are Last, in
percent; a difference is over pairs of the same client and run, S and M together, with its standard error.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import fedbasis as fb
from fedbasis.experiment import prepare
from fedbasis.experiment.config import parse
from fedbasis.serving.bundle import bundle
from fedbasis.tensors.compact import Bits
from measure import table

WAY = "coefficients+classifier"
SIZES = ("S", "M")
CODINGS: dict[str, Bits | None] = {"as published": None, "8 bits": 8, "4 bits": 4, "3 bits": 3}


def served(run: Path, bits: Bits | None) -> dict[tuple[str, str], float]:
    """Return every new client's Last accuracy by size and name."""
    prepared = prepare(parse(json.loads((run / "config.json").read_text())))
    with tempfile.TemporaryDirectory() as scratch:
        bundle(run / "bases", Path(scratch) / "bases", bits)
        trained = fb.load(Path(scratch) / "bases")
        assert isinstance(trained, fb.Trained)
        scores = fb.evaluate(
            trained, prepared.new, ways=[WAY], sizes=SIZES, rates=[0.01], statistics=["own"], validate_every=20,
            engine="serial",
        )  # fmt: skip
    return {(size, name): 100 * last for size in SIZES for name, last in scores[WAY, size].per_client.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--codings", default="as published,4 bits,3 bits", help=f"of {', '.join(CODINGS)}")
    given = parser.parse_args()
    found = {
        coding: {(run, *key): last for run in given.runs for key, last in served(run, CODINGS[coding]).items()}
        for coding in given.codings.split(",")
    }
    first, rows = next(iter(found.values())), []
    for coding, scores in found.items():
        mean = (statistics.fmean(last for key, last in scores.items() if key[1] == size) for size in SIZES)
        pairs = [
            statistics.fmean(scores[run, size, name] - first[run, size, name] for size in SIZES)
            for run, at, name in scores
            if at == SIZES[0]
        ]
        error = statistics.stdev(pairs) / len(pairs) ** 0.5
        rows.append([coding, " / ".join(f"{one:.2f}" for one in mean), f"{statistics.fmean(pairs):+.2f} ± {error:.2f}"])
    print(table(["bases", "S / M", "difference"], rows))


if __name__ == "__main__":
    main()
