"""How well new clients are served on Digits-4, over seeds, with the paper's three rates and a look at every epoch.

    python benchmarks/accuracy.py --seeds 3 --out runs     (about 8 minutes a seed; what is done is only read)

Takes the demonstration's trained models (or trains them), personalizes every new client with the rates 0.005, 0.01 and
0.05 and validation after every epoch, and prints mean and standard deviation over the seeds of Last, Best and |Delta|.
"""

import argparse
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


def score(job: tuple[dict[str, object], Path]) -> list[ResultRow]:
    """Personalize and score the new clients of one trained run; what was done before is read."""
    raw, out = job
    torch.set_num_threads(1)
    experiment: Experiment = parse(raw)
    prepared = prepare(experiment)
    run = prepared.run(out)
    path = run.folder / "accuracy.jsonl"
    done = read_lines(path)
    rewrite_lines(path, done)
    _, server = artifact.load(run.bases, "bases")
    plan = replace(prepared.plan, rates=RATES, adaptation=Adaptation())
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
    arguments = parser.parse_args()
    found: dict[tuple[str, str, str], list[ResultRow]] = {}
    for seed in range(arguments.seeds):
        plans = experiments(seed)
        with Live(Console(stderr=True)) as live:
            execute_all(plans, arguments.out, [live.listener(plan.method_name) for plan in plans])
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            for rows in pool.map(score, [(plan.as_dict(), arguments.out) for plan in plans]):
                for row in rows:
                    found.setdefault((row.method, row.how, row.size), []).append(row)
    print("| method | S Last | S Best | S abs. Δ | M Last | M Best | M abs. Δ |\n| --- |" + " ---: |" * 6)
    for method, how in dict.fromkeys((method, how) for method, how, _ in found):
        cells = [cell for size in ("S", "M") for cell in _cells(found[method, how, size])]
        print(f"| {label(method, how)} | " + " | ".join(cells) + " |")
    print()
    for (method, how, size), rows in found.items():
        print(f"{label(method, how)}, {size}: rates {', '.join(f'{row.rate:g}' for row in rows)}")


def _cells(rows: Sequence[ResultRow]) -> list[str]:
    columns = [[100 * row.last for row in rows], [100 * row.best for row in rows]]
    spread = [f" ± {statistics.stdev(values):.1f}" if len(rows) > 1 else "" for values in columns]
    means = [f"{statistics.mean(values):.1f}{sd}" for values, sd in zip(columns, spread, strict=True)]
    return [*means, f"{statistics.mean(100 * row.delta for row in rows):.1f}"]


if __name__ == "__main__":
    main()
