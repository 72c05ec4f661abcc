"""The workloads under Flower's simulator: as many Ray actors as there are cores, one thread each."""

import logging
import os
from typing import Any

import torch

from measure import Turns
from plain import Variant, fedavg_round
from workload import CLIENTS, FOREVER, SAMPLED, WORKLOADS, Workload


def play(workload: Workload, turns: Turns) -> None:
    """Play rounds."""
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.WARNING)
    name = next(key for key, value in WORKLOADS.items() if value is workload)
    client, server = ClientApp(), ServerApp()

    @client.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        from workload import WORKLOADS  # the actor's own, whose images are made once

        torch.set_num_threads(1)
        mine = WORKLOADS[name]
        data = mine.ready[int(context.node_config["partition-id"])]
        start = message.content["arrays"].to_torch_state_dict()
        trained = fedavg_round(mine.model(), start, [data], mine.batch, Variant())
        numbers = MetricRecord({"num-examples": len(data[1])})
        return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": numbers}), reply_to=message)

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        def after(number: int, _: ArrayRecord) -> None:
            turns.next() if number else turns.begin()

        strategy = FedAvg(fraction_train=SAMPLED / CLIENTS, fraction_evaluate=0.0)
        strategy.start(grid, ArrayRecord(workload.model().state_dict()), num_rounds=FOREVER, evaluate_fn=after)

    resources: Any = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": workload.cores}}
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=resources)
