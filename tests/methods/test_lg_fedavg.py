"""LG-FedAvg against modules that share their upper layers alone, FedAvg and training alone."""

import pytest

from battery import QUICK, task_of
from fedbasis.methods.lg_fedavg import LgFedAvg, LgFedAvgConfig
from methods.helpers.layers import BlockTests
from pflbed.errors import InputError


class TestLgFedAvg(BlockTests):
    name = "lg-fedavg"
    setting = "local_blocks"
    shared = {None: ("fc.",), 2: ("conv3.", "fc.")}  # noqa: RUF012

    def test_global_blocks_are_counted_from_the_output(self) -> None:
        task = task_of(QUICK, "batch", 3)
        blocks = len(task.layout.blocks)
        for shared in range(blocks + 1):
            settings = ({"global_blocks": shared}, {"local_blocks": blocks - shared})
            one, other = (LgFedAvg.build(LgFedAvgConfig.model_validate(given), task) for given in settings)
            assert one.personal == other.personal
        with pytest.raises(InputError, match="'global_blocks' must be at most"):
            LgFedAvg.build(LgFedAvgConfig.model_validate({"global_blocks": blocks + 1}), task)
        with pytest.raises(InputError, match="only one of local_blocks and global_blocks"):
            LgFedAvg(local_blocks=1, global_blocks=1)
