"""What garbage from a fifth of the clients does to a model, and which mean withstands it.

    python benchmarks/robust.py --out runs/robust      (about 3 minutes on one core; what is done is only read)

Digits-4 with 40 participating clients (at most 40 images of a class and domain), seed 0. In every round each
fifth client sends normal noise of deviation 10 in place of every number, coefficients included. Prints the personalized
accuracy (%) of the 16 new clients, who are honest, with all of their images after the last epoch.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedbasis.engines.base import Engine
from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.experiment import prepare
from fedbasis.experiment.config import parse
from fedbasis.methods.base import Sent
from fedbasis.serving.evaluation import evaluate, summarize
from fedbasis.serving.personalize import label
from fedbasis.tensors.params import State
from fedbasis.tensors.seeding import torch_generator
from fedbasis.training.rounds import train
from fedbasis.training.runs import Run
from pflbed.files import write_json

EVERY = 5
SIZE = 10.0
COMMON: dict[str, Any] = {
    "data": {"clients": 10, "new_clients": 4, "limit": 40},
    "model": {"name": "cnn-small", "options": {"norm": "group"}},
    "train": {"rounds": 15, "epochs": 2, "batch": 16, "rate": 0.03},
    "personalize": {"rates": [0.005], "validate_every": 20},
    "machine": {"engine": "serial"},
}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedbasis": {"name": "fedbasis", "coefficient_epochs": 1},
}
WAYS = {"fedavg": ["none", "lp"], "fedbasis": ["coefficients+classifier"]}
MEANS: dict[str, dict[str, Any]] = {
    "mean": {},
    "trimmed mean": {"mean": "trimmed", "trim": 0.2},
    "median": {"mean": "median"},
    "mean, clip = 1": {"clip": 1.0},
}
ROWS = [("mean", False), ("mean", True), ("trimmed mean", True)]
MORE = [("trimmed mean", False), ("median", True), ("mean, clip = 1", True)]


class Attacked:
    """An engine some of whose clients send garbage."""

    def __init__(self, engine: Simulation, attackers: frozenset[str], seed: int) -> None:
        self.states, self._engine, self._attackers, self._seed = engine.states, engine, attackers, seed

    def map(self, server: State, clients: Sequence[str], round: int) -> Iterator[tuple[str, Sent]]:
        for client, sent in self._engine.map(server, clients, round):
            generator = torch_generator(self._seed, "garbage", client, round)
            yield client, garbage(sent, generator) if client in self._attackers else sent

    def peak_memory(self) -> int:
        return self._engine.peak_memory()


def garbage(sent: Sent, generator: torch.Generator) -> Sent:
    """Put noise in place of every number that is no choice."""
    return replace(
        sent,
        tensors={
            group: {
                name: SIZE * torch.randn(t.shape, generator=generator).to(t.dtype) if t.is_floating_point() else t
                for name, t in named.items()
            }
            for group, named in sent.tensors.items()
        },
    )


def score(
    method: str, mean: str, attacked: bool, out: Path, changed: dict[str, Any], seed: int = 0
) -> dict[str, float]:
    """Train and serve; what was done before is read."""
    raw = {**COMMON, **changed, "seed": seed, "method": METHODS[method], "aggregation": MEANS[mean]}
    raw["personalize"] = {**raw["personalize"], "ways": WAYS[method]}
    prepared = prepare(parse(raw))
    run = Run(prepared.run(out).folder.with_suffix(".attacked" if attacked else ".clean"))
    path = run.folder / "scores.json"
    if not path.exists():
        names = prepared.benchmark.participating
        honest = Simulation(InProcess(prepared.method), prepared.training, seed)
        engine: Engine = Attacked(honest, frozenset(names[::EVERY]), seed) if attacked else honest
        run.folder.mkdir(parents=True, exist_ok=True)
        server = train(prepared.method, engine, names, seed, run)
        plan = replace(prepared.plan, sizes=("M",))
        records = evaluate(
            InProcess(prepared.method), prepared.method.serving.published(server), prepared.new, plan, seed
        )
        rows = summarize(type(prepared.method), records, prepared.new)
        write_json(path, {row.label: 100 * row.last for row in rows})
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/robust"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--all", action="store_true", help="also the median, clipping, and what trimming costs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds: dict[str, Any] = {"train": {**COMMON["train"], "rounds": arguments.rounds}}
    columns = [label(method, how) for method in arguments.methods for how in WAYS[method]]
    print(
        "| clients | average | " + " | ".join(columns) + " |\n| --- | ---" + " | ---:" * len(columns) + " |", flush=True
    )
    for mean, attacked in ROWS + (MORE if arguments.all else []):
        found: dict[str, float] = {}
        for method in arguments.methods:
            found |= score(method, mean, attacked, arguments.out, rounds)
        who = "a fifth sends garbage" if attacked else "all honest"
        print(f"| {who} | {mean} | " + " | ".join(f"{found[way]:.1f}" for way in columns) + " |", flush=True)


if __name__ == "__main__":
    main()
