"""How well new clients are served on Digits-4, over seeds: the demonstration's experiments, averaged.

    python benchmarks/accuracy.py --seeds 3 --out runs     (about 5 minutes a seed; finished runs are only read)

Prints one table: mean and standard deviation over the seeds of Last, Best and |Delta|, in percent.
"""

import argparse
import json
import statistics
from pathlib import Path

from rich.console import Console

from fedbasis.demo import experiments
from fedbasis.display import Live
from fedbasis.jobs import execute_all
from fedbasis.personalize import label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    found: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for seed in range(arguments.seeds):
        plans = experiments(seed)
        with Live(Console(stderr=True)) as live:
            runs = execute_all(plans, arguments.out, [live.observer(plan.method_name) for plan in plans])
        for run in runs:
            for row in json.loads(run.results.read_text(encoding="utf-8")):
                found.setdefault((row["method"], row["how"], row["size"]), []).append(row)
    print("| method | S Last | S Best | S abs. Δ | M Last | M Best | M abs. Δ |\n| --- |" + " ---: |" * 6)
    for method, how in dict.fromkeys((method, how) for method, how, _ in found):
        cells = []
        for size in ("S", "M"):
            rows = found[method, how, size]
            cells += [_mean([100 * row[key] for row in rows]) for key in ("last", "best")]
            cells.append(f"{statistics.mean(100 * row['delta'] for row in rows):.1f}")
        print(f"| {label(method, how)} | " + " | ".join(cells) + " |")


def _mean(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
