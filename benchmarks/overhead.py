"""What fedbasis adds to a round: FedAvg of a logistic model against the loop one writes by hand, one thread each.

    python benchmarks/overhead.py            (about a minute; --quick for a look)

Ours samples clients, draws seeded batches from uint8 pixels, checks every update, logs every round and writes a
checkpoint every second, as it does by default; the loop by hand does none of that.
"""

import itertools
import tempfile
from pathlib import Path

import torch

from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.methods import METHODS
from fedbasis.methods.base import Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.training.rounds import train
from fedbasis.training.runs import Run
from measure import options, ratio, table, taking_turns
from plain import PIXELS, Variant, fedavg_round, floats, logistic, prepared, random_images, shared_out

CLIENTS, SAMPLES, SAMPLED = 100, 64, 10


def measured(batch: int, rounds: int, repeats: int) -> dict[str, float]:
    """Return the seconds a round of both."""
    data = shared_out(*random_images(CLIENTS * SAMPLES, PIXELS), CLIENTS)
    ready = [floats(images) for images in data.values()]
    recipe = Recipe(preprocessing=Preprocessing(PIXELS), epochs=1, batch=batch)
    method = METHODS["fedavg"].build(None, Task(Network("plain:logistic", 10, PIXELS), recipe, rounds))
    model, start = prepared(logistic(10), Variant())
    numbers = itertools.count()

    def ours() -> None:
        run = Run(Path(folder) / str(next(numbers)))
        run.folder.mkdir()
        train(method, Simulation(InProcess(method), data, 0), list(data), 0, run, participation=SAMPLED)

    def by_hand() -> None:
        state = start
        for _ in range(rounds):
            chosen = [ready[i] for i in torch.randperm(CLIENTS)[:SAMPLED]]
            state = fedavg_round(model, state, chosen, batch, Variant())

    with tempfile.TemporaryDirectory() as folder:
        taken = taking_turns({"ours": ours, "by hand": by_hand}, repeats)
    return {name: seconds / rounds for name, seconds in taken.items()}


def main() -> None:
    given = options(__doc__)
    torch.set_num_threads(1)
    rows = []
    for batch in (16, 64):
        taken = measured(batch, *((100, 3) if given.quick else (100, 15)))
        cells = [f"{1000 * taken[name]:.1f}" for name in ("ours", "by hand")]
        rows.append([f"logistic model, batch {batch}", *cells, ratio(taken["ours"], taken["by hand"]), "1.15"])
    heads = ["10 clients a round, 64 images each, 1 epoch", "ours, ms a round", "by hand, ms a round", "ratio"]
    print(table([*heads, "at most"], rows))


if __name__ == "__main__":
    main()
