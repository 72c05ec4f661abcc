"""What the first bases hold: how purely local models group by domain, block by block and as whole networks.

    python benchmarks/clusters.py        (half a minute; the demonstration's data and network, seed 0)

Purity is the share of clients that belong to the commonest domain of their cluster; 4 domains, 4 clusters.
"""

from collections import Counter

import torch

from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.experiment import prepare
from fedbasis.experiment.demo import experiments
from fedbasis.methods.fedbasis import FedBasis
from fedbasis.methods.shared.clustering import cluster_directions


def main() -> None:
    torch.set_num_threads(1)
    prepared = prepare(experiments(0)[1])
    method = prepared.method
    clients = {name: prepared.clients[name] for name in prepared.benchmark.participating}
    engine = Simulation(InProcess(method), {name: client.train for name, client in clients.items()}, seed=0)
    assert isinstance(method, FedBasis)
    server, last = method.init(0), method.warm_rounds - 1
    for number in range(last):
        server = method.aggregate(server, engine.map(server, list(clients), number), 0)
    arrived = list(engine.map(server, list(clients), last))
    layout = method.task.layout
    start = layout.flatten(server["model"])
    models = [layout.flatten(sent.tensors["model"]) for _, sent in arrived]
    deltas = [torch.stack([m[block] for m in models]) - start[block] for block in range(len(start))]
    kinds = {"whole network": torch.cat(deltas, dim=1), **dict(zip(layout.blocks, deltas, strict=True))}
    print("| clustered by | purity by domain | cluster sizes |\n| --- | ---: | --- |")
    for name, delta in kinds.items():
        labels = cluster_directions(delta, 4, seed=0).tolist()
        groups = [
            Counter(c.domain for c, mine in zip(clients.values(), labels, strict=True) if mine == k) for k in range(4)
        ]
        purity = sum(max(group.values()) for group in groups) / len(clients)
        print(f"| {name} | {purity:.2f} | {', '.join(str(sum(group.values())) for group in groups)} |")


if __name__ == "__main__":
    main()
