"""LG-FedAvg against modules that share their upper layers alone, FedAvg and training alone."""

from methods.helpers.layers import BlockTests


class TestLgFedAvg(BlockTests):
    name = "lg-fedavg"
    setting = "local_blocks"
    shared = {None: ("fc.",), 2: ("conv3.", "fc.")}  # noqa: RUF012
