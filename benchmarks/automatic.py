"""Does ``auto`` choose well? Serve new clients of finished runs in all ways that it compares, and by its rule.

    python benchmarks/automatic.py RUN...      (runs of FedBasis; twenty minutes of one core each for PACS at ``cpu``)

Every way has the settings of ``fedbasis personalize``: 20 epochs at rate 0.005, no augmentation. The method's default
way is there too.
``auto`` sees a client's training images only; scores are Last on its test images, in percent. A difference is over
pairs of the same client and run, with its standard error; "worst client" is the one that loses most against the model
as published. ``auto`` departs from the recommended way where another is better by so many standard errors on held-out
images; other numbers of them are scored by the same cross-validation, and may be chosen on runs of a tuning part. What
was served is kept in every run's folder as ``automatic.json``.
"""

import argparse
import json
import statistics
from collections import Counter
from pathlib import Path

import torch

import fedbasis as fb
from fedbasis.experiment import prepare
from fedbasis.experiment.config import parse
from fedbasis.methods.base import Adaptation, Context
from fedbasis.networks.inputs import examples_of
from fedbasis.serving.automatic import AUTO, ERRORS, FEWEST, NONE, TRIED, Judged, candidates, choose
from fedbasis.serving.personalize import cross_validated
from measure import table

RATE, EPOCHS, BATCH = 0.005, 20, 16
SIZES = ("S", "M")
RULES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 100.0)
Scored = dict[str, float]
Held = dict[str, dict[str, list[int]]]
"""client -> way -> for every image of it, whether it was right when held out."""


def served(run: Path) -> tuple[dict[str, dict[str, Scored]], dict[str, Held]]:
    """Return every new client's Last accuracy by size and way, and what cross-validation saw, by size."""
    kept = run / "automatic.json"
    if kept.exists():
        scores, held = json.loads(kept.read_text())
        return scores, held
    prepared = prepare(parse(json.loads((run / "config.json").read_text())))
    trained = fb.load(run / "bases")  # not the run, whose records would be replaced
    assert isinstance(trained, fb.Trained)
    method, model = trained.method, trained.method.task.network.workspace()
    plain = [f"{method.ways.default[-1]}@{statistics}" for statistics in TRIED]
    ways = [*dict.fromkeys((*candidates(method), *plain))]
    found = fb.evaluate(
        trained, prepared.new, ways=ways, sizes=SIZES, rates=[RATE], epochs=EPOCHS, batch=BATCH,
        validate_every=EPOCHS, engine="serial",
    )  # fmt: skip
    scores = {
        size: {way: {name: 100 * last for name, last in found[way, size].per_client.items()} for way in ways}
        for size in SIZES
    }
    plan, held = Adaptation(epochs=EPOCHS, rate=RATE, batch=BATCH), dict[str, Held]()
    for size in SIZES:
        for client in prepared.new.values():
            data = examples_of(client.sized(size))
            choice = cross_validated(method, trained.state, data, Context(0, client.id, model), plan)
            held.setdefault(size, {})[client.id] = {one.way: one.right.int().tolist() for one in choice.judged}
    kept.write_text(json.dumps([scores, held]))
    return scores, held


def by_rule(held: dict[str, list[int]], recommended: str, errors: float) -> str:
    """Return the way that a rule chooses for a client; of too few images, the recommended one."""
    judged = [Judged(way, torch.tensor(right, dtype=torch.bool)) for way, right in held.items()]
    return choose(judged, errors) if judged and len(judged[0].right) >= FEWEST else recommended


def compared(found: dict[tuple[str, str], Scored], size: str) -> list[list[str]]:
    """Make one row for every way and rule: its mean, ``auto`` minus it, and the worst client against no way."""
    rows, auto, none = [], found[AUTO, size], found[NONE, size]
    for way in [way for way, at in found if at == size]:
        mine = found[way, size]
        gaps = [auto[key] - mine[key] for key in mine]
        error = statistics.stdev(gaps) / len(gaps) ** 0.5
        losses = [mine[key] - none[key] for key in mine]
        difference = "" if way == AUTO else f"{statistics.fmean(gaps):+.2f} ± {error:.2f}"
        worst = ["", ""] if way == NONE else [f"{min(losses):+.1f}", str(sum(loss < -1e-9 for loss in losses))]
        rows.append([way, size, f"{statistics.fmean(mine.values()):.2f}", difference, *worst])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[tuple[str, str], Scored] = {}
    departs: Counter[str] = Counter()
    for run in given.runs:
        scores, held = served(run)
        for size in SIZES:
            recommended = next(reversed(next(one for one in held[size].values() if one)))
            for way, mine in scores[size].items():
                found.setdefault((way, size), {}).update({f"{run} {name}": last for name, last in mine.items()})
            for errors in (*RULES, None):
                name = AUTO if errors is None else f"a rule of {errors:g} standard errors"
                for client, ways in held[size].items():
                    way = by_rule(ways, recommended, ERRORS if errors is None else errors)
                    departs[name] += way != recommended
                    found.setdefault((name, size), {})[f"{run} {client}"] = scores[size][way][client]
    rows = [row for size in SIZES for row in compared(found, size)]
    print(table(["way", "size", "Last", "auto minus it", "worst client", "clients worse off"], rows, 2))
    print("Departures from the recommended way:", ", ".join(f"{name} {n}" for name, n in departs.items()))
    fixed = [way for way, at in found if at == SIZES[0] and way != AUTO and not way.startswith("a rule")]
    best = Counter(max(fixed, key=lambda way: found[way, size][key]) for size in SIZES for key in found[AUTO, size])
    print("The best way of a client on its test images:", ", ".join(f"{way} {n}" for way, n in best.most_common()))


if __name__ == "__main__":
    main()
