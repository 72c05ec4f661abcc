"""Does FedAvg gain by as many tries as FedBasis had? Nine more on the tuning part of PACS.

    python benchmarks/more_tries.py --data PACS --weights tiny-imagenet --out runs/tries     (half an hour of one core)

Tries and scores are those of ``fedbasis tune`` (docs/protocol.md), which gives every method six. FedAvg's winner, at
rate 0.1 with a proximal term of 0.1 in fine-tuning, is changed in one setting each. Prints the mean Last of the new
clients over ways and sizes.
"""

import argparse
from pathlib import Path

from fedbasis.experiment import execute, prepare
from fedbasis.experiment.reuse import reuse_training
from fedbasis.studies.base import Setup
from fedbasis.studies.candidates import BY_RATE, PROX, RATE, TUNABLES, Tunable
from fedbasis.studies.scales import SCALES
from fedbasis.studies.tuned import shipped
from fedbasis.studies.tuning import FIRST_SEED, in_words, judge, score_in_words, tries
from fedbasis.training.rounds import DivergedError
from fedbasis.training.runs import Run
from measure import table

CHANGES = (
    {RATE: 0.2}, {RATE: 0.03}, {"train.momentum": 0.5}, {"train.momentum": 0.0}, {"train.decay": 0.0},
    {"train.decay": 5e-4}, {"train.batch": 8}, {"train.batch": 32}, {PROX: 0.03},
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", default="tiny-imagenet")
    parser.add_argument("--out", type=Path, default=Path("runs/tries"))
    given = parser.parse_args()
    setup = Setup(SCALES["cpu"], {"pacs": given.data}, given.weights, (FIRST_SEED,), tuned=False)
    usual = TUNABLES["fedavg"]
    more = Tunable(usual.name, tuple({RATE: 0.1, PROX: 0.1, **change} for change in CHANGES), usual.ways)
    planned, runs = tries(setup, "pacs", more)[len(BY_RATE) :], dict[str, Run | None]()
    for number, one in enumerate(planned):
        for request in one.requests:
            prepared = prepare(request.experiment)
            reuse_training(prepared, given.out)
            try:
                runs[request.key] = execute(prepared, given.out)
            except DivergedError:
                runs[request.key] = None
        done = judge(setup, "pacs", more, planned[: number + 1], runs, "").tries[number]
        print(f"{in_words(done.settings)}: {score_in_words(done)}", flush=True)
    found = judge(setup, "pacs", more, planned, runs, "").tries
    before = shipped("cpu", "pacs")
    six = before.methods[usual.name].tries if before else []
    print(table(["settings", "Last"], [[in_words(one.settings), score_in_words(one)] for one in (*six, *found)]))


if __name__ == "__main__":
    main()
