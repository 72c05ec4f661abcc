"""Does ``auto`` choose well? Serve new clients of finished runs in all ways that it compares, and by ``auto`` itself.

    python benchmarks/automatic.py RUN...      (runs of FedBasis; half an hour of one core each for PACS at ``cpu``)

Every way has the settings of ``fedbasis personalize``: 20 epochs at rate 0.005. The method's default way is there too.
``auto`` sees a client's training images only; scores are Last on its test images, in percent. A difference is over
pairs of the same client and run, with its standard error; "worst client" is the one that loses most against the model
as published.
"""

import argparse
import json
import statistics
from collections import Counter
from pathlib import Path

import fedbasis as fb
from fedbasis.experiment import prepare
from fedbasis.experiment.config import parse
from fedbasis.serving.automatic import AUTO, NONE, TRIED, candidates
from measure import table

RATE = 0.005
SIZES = ("S", "M")
Scored = dict[tuple[Path, str], float]


def served(run: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Return every new client's Last accuracy, by way and size."""
    prepared = prepare(parse(json.loads((run / "config.json").read_text())))
    trained = fb.load(run)
    assert isinstance(trained, fb.Trained)
    plain = [f"{trained.method.ways.default[-1]}@{statistics}" for statistics in TRIED]
    ways = [*dict.fromkeys((*candidates(trained.method), *plain)), AUTO]
    scores = fb.evaluate(
        trained, prepared.new, ways=ways, sizes=SIZES, rates=[RATE], validate_every=20, engine="serial"
    )  # fmt: skip
    return {
        (way, size): {name: 100 * last for name, last in scores[way, size].per_client.items()}
        for way in ways
        for size in SIZES
    }


def compared(found: dict[tuple[str, str], Scored], size: str) -> list[list[str]]:
    """Make one row for every way: its mean, ``auto`` minus it, and the worst client against no personalization."""
    ways = [way for way, at in found if at == size]
    rows = []
    for way in ways:
        mine, auto, none = (found[one, size] for one in (way, AUTO, NONE))
        gaps = [auto[key] - mine[key] for key in mine]
        error = statistics.stdev(gaps) / len(gaps) ** 0.5
        losses = [mine[key] - none[key] for key in mine]
        difference = "" if way == AUTO else f"{statistics.fmean(gaps):+.2f} ± {error:.2f}"
        worst = ["", ""] if way == NONE else [f"{min(losses):+.1f}", str(sum(loss < 0 for loss in losses))]
        rows.append([way, size, f"{statistics.fmean(mine.values()):.1f}", difference, *worst])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    given = parser.parse_args()
    found: dict[tuple[str, str], Scored] = {}
    for run in given.runs:
        for key, scores in served(run).items():
            found.setdefault(key, {}).update({(run, name): last for name, last in scores.items()})
    rows = [row for size in SIZES for row in compared(found, size)]
    print(table(["way", "size", "Last", "auto minus it", "worst client", "clients worse off"], rows, 2))
    best = Counter(
        max((way for way, at in found if at == size and way != AUTO), key=lambda way: found[way, size][key])
        for size in SIZES
        for key in found[AUTO, size]
    )
    print("The best way of a client on its test images:", ", ".join(f"{way} {n}" for way, n in best.most_common()))


if __name__ == "__main__":
    main()
