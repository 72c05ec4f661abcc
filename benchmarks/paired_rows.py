"""How far is every row of a main table from one of them? Read off finished runs; nothing is trained.

    python benchmarks/paired_rows.py OUT                       (PACS at ``cpu``; OUT is that of ``fedbasis reproduce``)
    python benchmarks/paired_rows.py OUT --scale photo --data PACS-features --weights efficientnet-lite0.safetensors

Last of the new clients in percent, by size, sorted by M, and what the reference row has more: the mean over pairs of
client and seed, with its standard error. Bold are the best row of a size and all that are not significantly worse. The
tables of docs/results/index.md have some of these rows.
"""

import argparse
import statistics
from pathlib import Path

from fedbasis.report.paired import bold
from fedbasis.report.runs import RunData
from fedbasis.studies.base import Results, Setup
from fedbasis.studies.new_clients import EVERY, FROM_PRIOR, NewClients, sizes
from fedbasis.studies.plan import plan
from fedbasis.studies.run import read_finished
from fedbasis.studies.scales import SCALES
from fedbasis.studies.variants import Key, row_title
from fedbasis.studies.verdicts import PairScores, last
from measure import table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--scale", choices=list(SCALES), default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--weights", default="tiny-imagenet", help="as in the runs")
    parser.add_argument("--data", default="PACS", help="as in the runs; only the folder's name matters")
    given = parser.parse_args()
    study, scale = NewClients(), SCALES[given.scale]
    places = {"pacs": given.data}
    setup = Setup(scale, places, given.weights, tuple(range(given.seeds)), strict=False)
    for testbed in scale.main:
        done = read_finished(plan([study], setup), given.out)
        found = Results({key: RunData(run) for key, run in done.runs.items()})
        runs = found.by_name(study.requests(setup), testbed)
        keys = dict.fromkeys((*study.rows(scale), *EVERY))
        print(table_of({key: runs[key[0]] for key in keys if runs.get(key[0])}, sizes(setup, testbed)))


def table_of(runs: dict[Key, list[RunData]], names: list[str]) -> str:
    """Lay out the rows, the highest at the last size first."""
    scores: dict[str, dict[Key, PairScores]] = {
        size: {key: last(mine, key[1], size) for key, mine in runs.items()} for size in names
    }
    order = sorted(runs, key=lambda key: -statistics.fmean(scores[names[-1]][key].values()))
    best = {size: dict(zip(order, bold([scores[size][key] for key in order]), strict=True)) for size in names}
    rows = [[row_title(key), *(_cell(scores[size][key], best[size][key]) for size in names),
             *(_gap(scores[size], key) for size in names)] for key in order]  # fmt: skip
    return table(["row", *names, *(f"{row_title(FROM_PRIOR)} minus it, {size}" for size in names)], rows)


def _cell(mine: PairScores, best: bool) -> str:
    mean = f"{100 * statistics.fmean(mine.values()):.1f}"
    return f"**{mean}**" if best else mean


def _gap(scores: dict[Key, PairScores], key: Key) -> str:
    mine, ours = scores[key], scores.get(FROM_PRIOR, {})
    if key == FROM_PRIOR or mine.keys() != ours.keys():
        return ""
    gaps = [100 * (ours[pair] - mine[pair]) for pair in mine]
    return f"{statistics.fmean(gaps):+.1f} ± {statistics.stdev(gaps) / len(gaps) ** 0.5:.1f}"


if __name__ == "__main__":
    main()
