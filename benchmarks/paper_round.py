"""The paper's PACS setting on a CPU, for as long as it takes to see that all of it works: two rounds, one new client.

    python benchmarks/paper_round.py --data PACS [--weights resnet18.safetensors] [--out runs]

ResNet-18 at 224 pixels, images of 256 pixels, random resized crops, 80 participating and 40 new clients, five epochs a
round, as ``fedbasis reproduce --scale paper`` has it; but four clients in each of two rounds (FedAvg, then bases)
instead of all in 100, and one new client. It prints the seconds of every part and what the whole would take at that
speed.
"""

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import torch

import fedbasis as fb
import pflbed
from fedbasis.studies.scales import SCALES
from fedbasis.training.events import Event, RoundEnded
from pflbed.dataset import find


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", help="ImageNet weights; without them the network is random, which costs the same")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    bed = SCALES["paper"].testbeds["pacs"]
    data, train, adapt = bed.data, bed.train, bed.personalize
    began = time.perf_counter()
    dataset, _, _ = find(chosen.data).checked()
    spec = pflbed.Spec(
        clients_per_domain=data["clients"], new_clients_per_domain=data["new_clients"], alpha=data["alpha"],
        split=data["split"], seed=0,
    )  # fmt: skip
    benchmark = pflbed.build(dataset.table, spec)
    clients = pflbed.clients(benchmark, dataset.decode(data["resolution"]).images)
    say(
        part="data", seconds=round(time.perf_counter() - began, 1), images=len(dataset.table), shape=clients.image_shape
    )

    def ended(event: Event) -> None:
        if isinstance(event, RoundEnded):
            say(part="round", **{key: event.record[key] for key in ("round", "loss", "seconds") if key in event.record})

    began = time.perf_counter()
    trained = fb.train(
        fb.FedBasis(network="resnet18", warm_start=0.5, **bed.fedbasis), clients, rounds=2, seed=0, out=chosen.out,
        **{key: train[key] for key in ("epochs", "batch", "rate", "momentum", "decay", "augment")},
        crop=data["crop"], participation=4, weights=chosen.weights, engine="serial", device="cpu", on_event=ended,
    )  # fmt: skip
    training = time.perf_counter() - began
    name, client = next(iter(clients.new.items()))
    began = time.perf_counter()
    mine = fb.personalize(trained, client.train, epochs=adapt["epochs"], batch=adapt["batch"], rate=adapt["rates"][0])
    serving = time.perf_counter() - began
    steps = adapt["epochs"] * len(client.train)
    say(
        part="training", seconds=round(training, 1), peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    )
    say(
        part="personalization", client=name, images=len(client.train), seconds=round(serving, 1),
        ms_an_image=round(1000 * serving / steps, 1), before=mine.before, after=mine.after,
        learned={block: [round(value, 3) for value in row] for block, row in list(mine.alpha.rows.items())[:2]}
        if hasattr(mine.alpha, "rows") else str(mine.alpha)[:200],
    )  # fmt: skip
    taking_part = sum(len(clients[one].train) for one in clients.participating)
    passes = taking_part * train["epochs"] * train["rounds"]
    say(part="whole", images_of_participants=taking_part, passes_of_fedavg=passes, passes_of_fedbasis=int(1.7 * passes))


if __name__ == "__main__":
    main()
