"""The workloads under pfl-research's simulator: one process, as many threads as there are cores.

It takes a client's batches in their order, without shuffling; everything else is as by hand.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from measure import Turns
from workload import FOREVER, SAMPLED, Workload


class WithLoss(nn.Module):
    """A network with the two functions that pfl asks of it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)  # type: ignore[no-any-return]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross entropy."""
        return F.cross_entropy(self.network.train()(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Nothing is evaluated here."""
        return {}


def play(workload: Workload, turns: Turns) -> None:
    """Play rounds."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    from plain import DECAY, MOMENTUM, RATE

    class TakeTurns(TrainingProcessCallback):  # type: ignore[misc]
        """Ends a turn after every round."""

        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            turns.next()
            return False, Metrics()

    torch.set_num_threads(workload.cores)
    users = {i: list(mine) for i, mine in enumerate(workload.ready)}
    data = FederatedDataset.from_slices(users, get_user_sampler("random", list(users)))
    model = WithLoss(workload.model())

    def local(parameters: Any, lr: float) -> torch.optim.SGD:
        return torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, weight_decay=DECAY)

    wrapped = PyTorchModel(model, local, torch.optim.SGD(model.parameters(), lr=1.0))
    turns.begin()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=FOREVER,
            evaluation_frequency=FOREVER,
            train_cohort_size=SAMPLED,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=None),
        wrapped,
        NNTrainHyperParams(local_batch_size=workload.batch, local_num_epochs=1, local_learning_rate=RATE),
        callbacks=[TakeTurns()],
        send_metrics_to_platform=False,
    )
