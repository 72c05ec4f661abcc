"""Does training bear coded downloads? FedBasis on PACS with float32 and with compact downloads, over seeds.

    python benchmarks/compact_accuracy.py --data PACS --out runs     (about 15 core minutes a run; runs resume)

The scale ``cpu``: 80 participating and 40 new clients of the tables part, 20 rounds of two epochs at the learning rate
that won on the tuning part (0.1). Each new client learns coefficients and a classifier at rate 0.01 with statistics of
its own. Scores are Last, in percent; a difference is over pairs of the same client and seed, with its standard error.
"""

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from fedbasis.cli.display import Live
from fedbasis.report.runs import RunData
from fedbasis.studies.base import RunRequest, Setup
from fedbasis.studies.plan import Item
from fedbasis.studies.run import carry_out_plan
from fedbasis.studies.scales import SCALES
from fedbasis.studies.verdicts import last
from measure import table

WAY = "coefficients+classifier"
DOWNLOADS = ("float32", "bfloat16", "compact")
SIZES = ("S", "M")


def request(setup: Setup, download: str, seed: int) -> RunRequest:
    serve = {"ways": [WAY], "rates": [0.01], "statistics": ["own"], "validate_every": 20}
    train = {"rate": 0.1, "download": download}
    return setup.request("pacs", "fedbasis", seed, f"{download} downloads", train=train, personalize=serve)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", default="tiny-imagenet")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--downloads", default="float32,compact", help=f"of {', '.join(DOWNLOADS)}")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("reproduced"))
    chosen = parser.parse_args()
    downloads, seeds = chosen.downloads.split(","), tuple(range(chosen.seeds))
    setup = Setup(SCALES["cpu"], {"": chosen.data}, chosen.weights, seeds, tuned=False)
    requests = {(kind, seed): request(setup, kind, seed) for seed in seeds for kind in downloads}
    items = [Item(one, (), ("compact-accuracy",)) for one in requests.values()]
    with Live(Console(stderr=True)) as live:
        done = carry_out_plan(items, chosen.out, chosen.jobs, lambda _, item: live.listener(item.request.name), ended)
    for item, error in done.failed:
        print(f"{item.request.name}, seed {item.request.seed}: {error}")
    runs = {key: RunData(done.runs[one.key]) for key, one in requests.items() if one.key in done.runs}
    rows = []
    for kind in downloads:
        mine = {size: last([runs[kind, seed] for seed in seeds if (kind, seed) in runs], WAY, size) for size in SIZES}
        first = {size: last([runs[downloads[0], s] for s in seeds if (kind, s) in runs], WAY, size) for size in SIZES}
        each = [" / ".join(f"{100 * of_seed(mine[size], seed):.1f}" for size in SIZES) for seed in seeds]
        rows.append([kind, *each, " / ".join(f"{100 * statistics.fmean(mine[size].values()):.2f}" for size in SIZES),
                     difference(mine, first)])  # fmt: skip
    print(table(["downloads", *(f"seed {seed}, S / M" for seed in seeds), "mean, S / M", "difference"], rows))


def ended(_: int) -> None:
    """Nothing to do between runs."""


def of_seed(scores: Mapping[tuple[int, str], float], seed: int) -> float:
    found = [score for (of, _), score in scores.items() if of == seed]
    return statistics.fmean(found) if found else float("nan")


def difference(
    mine: Mapping[str, Mapping[tuple[int, str], float]], first: Mapping[str, Mapping[tuple[int, str], float]]
) -> str:
    """The mean difference of S and M over pairs of client and seed, and its standard error."""
    pairs = [100 * statistics.fmean(mine[size][key] - first[size][key] for size in SIZES) for key in mine[SIZES[0]]]
    if not any(pairs):
        return ""
    return f"{statistics.fmean(pairs):+.2f} ± {statistics.stdev(pairs) / len(pairs) ** 0.5:.2f}"


if __name__ == "__main__":
    main()
