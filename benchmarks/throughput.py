"""How quick a round is on two cores: our pool of processes against the loop one writes by hand, with two threads.

    python benchmarks/throughput.py            (some minutes; --quick for a look)

FedAvg of a CNN on images like CIFAR-10's: 100 clients of 500 images, 10 a round, 1 epoch in batches of 32. Everybody is
a process of its own that plays a round when it is its turn.
"""

import sys
import tempfile
from pathlib import Path

import torch

from fedbasis.engines.pool import Pool
from fedbasis.engines.simulation import Simulation
from fedbasis.methods import METHODS
from fedbasis.methods.base import Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.training.rounds import train
from fedbasis.training.runs import Run
from measure import Turns, options, play, ratio, table
from plain import Variant, channels_last, fedavg_round, floats, prepared, random_images, shared_out

CLIENTS, SAMPLES, SAMPLED, BATCH, SIZE = 100, 500, 10, 32, 32
CORES = 2
OURS = "ours: 2 processes of 1 thread"
BY_HAND = {
    "by hand, 2 threads": Variant(),
    "by hand, 2 threads, channels last": Variant(channels_last=True),
    "by hand, 2 threads, fused optimizer": Variant(fused=True),
    "by hand, 2 threads, channels last and fused optimizer": Variant(channels_last=True, fused=True),
}
NETWORK = Network("cnn", 10, SIZE)


def ours() -> None:
    """Play our rounds, with everything that a run does by default."""
    data = shared_out(*random_images(CLIENTS * SAMPLES, SIZE), CLIENTS)
    task = Task(NETWORK, Recipe(preprocessing=Preprocessing(SIZE), epochs=1, batch=BATCH), rounds=10**6)
    method = METHODS["fedavg"].build(None, task)
    pool, turns = Pool(method, ["cpu"] * CORES), Turns()
    with tempfile.TemporaryDirectory() as folder:
        turns.begin()
        try:
            train(
                method, Simulation(pool, data, 0), list(data), 0, Run(Path(folder)), participation=SAMPLED,
                emit=turns.listen,
            )  # fmt: skip
        finally:
            pool.close()


def by_hand(variant: Variant) -> None:
    """Play rounds of the loop by hand."""
    torch.set_num_threads(CORES)
    images = shared_out(*random_images(CLIENTS * SAMPLES, SIZE), CLIENTS)
    ready = [channels_last(*floats(i)) if variant.channels_last else floats(i) for i in images.values()]
    model, state = prepared(NETWORK.build(), variant)
    turns = Turns()
    while True:
        turns.begin()
        chosen = [ready[i] for i in torch.randperm(CLIENTS)[:SAMPLED]]
        state = fedavg_round(model, state, chosen, BATCH, variant)
        turns.end()


def main() -> None:
    given = options(__doc__, player={"choices": [OURS, *BY_HAND]})
    if given.player == OURS:
        ours()
    elif given.player is not None:
        by_hand(BY_HAND[given.player])
    else:
        names = [OURS, *list(BY_HAND)[: 1 if given.quick else None]]
        commands = {name: [sys.executable, __file__, "--player", name] for name in names}
        threads = {name: 1 if name == OURS else CORES for name in names}
        taken = play(commands, *((3, threads, 1) if given.quick else (7, threads)))
        first = taken[next(iter(BY_HAND))]
        limits = {OURS: "0.80"}
        rows = [[name, f"{taken[name]:.2f}", ratio(taken[name], first), limits.get(name, "")] for name in names]
        print(table(["FedAvg, CNN, 10 clients of 500 images a round", "s a round", "ratio", "at most"], rows))


if __name__ == "__main__":
    main()
