"""How well new clients are served on Digits-4, over seeds, with the paper's three rates and a look at every epoch.

    python benchmarks/accuracy.py --seeds 3 --out runs     (about 8 minutes a seed; what is done is only read)

Takes the demonstration's trained models (or trains them) and those of FedBasis as printed, personalizes every new
client with the rates 0.005, 0.01 and 0.05 and validation after every epoch, and prints mean and standard deviation over
the seeds of Last, Best and |Delta|. FedAvg and FedBasis start from the class prior too. ``--csv`` writes a row for
every seed, and what FedBasis has more than each row over pairs of client and seed is printed with its standard error.
"""

import argparse
import csv
import multiprocessing
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from fedbasis.cli.display import Live
from fedbasis.engines.in_process import InProcess
from fedbasis.experiment import prepare
from fedbasis.experiment.config import Experiment, parse
from fedbasis.experiment.demo import experiments
from fedbasis.experiment.jobs import execute_all
from fedbasis.methods.base import Adaptation
from fedbasis.serving import artifact
from fedbasis.serving.evaluation import ResultRow, evaluate, summarize
from fedbasis.serving.personalize import label
from fedbasis.training.runs import append_line, read_lines, rewrite_lines

RATES = (0.005, 0.01, 0.05)
OURS, WAY = "FedBasis", "coefficients+classifier"
PRIOR = f"prior+{WAY}"
WAYS = {
    "FedAvg": ("none", "prior", "lp", "ft", "prior+lp", "prior+ft"),
    OURS: ("lp", "coefficients", WAY, PRIOR),
    "FedBasis (as printed)": (WAY,),
}
"""What is shown of the demonstration's two methods, and of the printed algorithm, trained as they are."""
Key = tuple[str, str, str]


def trainings(seed: int) -> dict[str, Experiment]:
    """Return the demonstration's experiments, and that of the printed algorithm, by title."""
    fedavg, ours = experiments(seed)
    raw = ours.as_dict()
    return dict(
        zip(WAYS, (fedavg, ours, parse({**raw, "method": {"name": "fedbasis", "preset": "paper"}})), strict=True)
    )


def title(name: str, way: str) -> str:
    """Name a row as tables do."""
    return label("fedavg" if name == "FedAvg" else "fedbasis", way).replace(OURS, name, 1)


def score(job: tuple[dict[str, object], Path, Sequence[str]]) -> list[ResultRow]:
    """Personalize and score the new clients of one trained run; what was done before is read."""
    raw, out, ways = job
    torch.set_num_threads(1)
    experiment: Experiment = parse(raw)
    prepared = prepare(experiment)
    run = prepared.run(out)
    path = run.folder / "accuracy.jsonl"
    done = read_lines(path)
    rewrite_lines(path, done)
    _, server = artifact.load(run.bases, "bases")
    plan = replace(prepared.plan, ways=tuple(ways), rates=RATES, adaptation=Adaptation())
    records = evaluate(
        InProcess(prepared.method),
        server,
        prepared.new,
        plan,
        experiment.seed,
        done,
        lambda record: append_line(path, record),
    )
    return summarize(type(prepared.method), records, prepared.new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--csv", type=Path, help="a file for the scores of every seed")
    arguments = parser.parse_args()
    found: dict[Key, list[ResultRow]] = {}
    for seed in range(arguments.seeds):
        plans = trainings(seed)
        with Live(Console(stderr=True)) as live:
            execute_all(list(plans.values()), arguments.out, [live.listener(name) for name in plans])
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            jobs = [(plan.as_dict(), arguments.out, WAYS[name]) for name, plan in plans.items()]
            for name, rows in zip(plans, pool.map(score, jobs), strict=True):
                for row in rows:
                    found.setdefault((name, row.how, row.size), []).append(row)
    print("| method | S Last | S Best | S abs. Δ | M Last | M Best | M abs. Δ | FedBasis minus it, S | M |")
    print("| --- |" + " ---: |" * 8)
    for name, how in dict.fromkeys((name, how) for name, how, _ in found):
        cells = [cell for size in ("S", "M") for cell in _cells(found[name, how, size])]
        cells += [_gap(found[OURS, WAY, size], found[name, how, size]) for size in ("S", "M")]
        print(f"| {title(name, how)} | " + " | ".join(cells) + " |")
    print()
    for (name, how, size), rows in found.items():
        print(f"{title(name, how)}, {size}: rates {', '.join(f'{row.rate:g}' for row in rows)}")
    if arguments.csv:
        with arguments.csv.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["row", "size", "seed", "rate", "Last", "Best", "|Δ|"])
            for (name, how, size), rows in found.items():
                for seed, row in enumerate(rows):
                    scores = [f"{100 * value:.2f}" for value in (row.last, row.best, row.delta)]
                    writer.writerow([title(name, how), size, seed, f"{row.rate:g}", *scores])


def _gap(ours: Sequence[ResultRow], theirs: Sequence[ResultRow]) -> str:
    """Write what the first row has more of Last, over pairs of client and seed, with its standard error."""
    gaps = [
        100 * (mine.per_client[name] - other.per_client[name])
        for mine, other in zip(ours, theirs, strict=True)
        for name in mine.per_client
    ]
    error = statistics.stdev(gaps) / len(gaps) ** 0.5
    return f"{statistics.fmean(gaps):+.1f} ± {error:.1f}" if any(gaps) else ""


def _cells(rows: Sequence[ResultRow]) -> list[str]:
    columns = [[100 * row.last for row in rows], [100 * row.best for row in rows]]
    spread = [f" ± {statistics.stdev(values):.1f}" if len(rows) > 1 else "" for values in columns]
    means = [f"{statistics.mean(values):.1f}{sd}" for values, sd in zip(columns, spread, strict=True)]
    return [*means, f"{statistics.mean(100 * row.delta for row in rows):.1f}"]


if __name__ == "__main__":
    main()
