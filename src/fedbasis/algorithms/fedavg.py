"""FedAvg: every sampled client trains the global model on its own data; the server takes the mean.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from collections.abc import Iterable
from typing import ClassVar

from fedbasis.algorithms.base import Context, Method, Sent
from fedbasis.params import State, StreamingMean, Tensors
from fedbasis.train import Examples, local_sgd

MODEL = "model"


class FedAvg(Method):
    """The global model is the only state."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al. 2017"
    sends: ClassVar[str] = "1 model"
    keeps: ClassVar[str] = "nothing"
    new_client: ClassVar[str] = "the global model as it is, or a new classifier (lp), or all of it fine-tuned (ft)"

    def init(self, seed: int) -> State:
        """Start from the initial model."""
        return {MODEL: self.task.initial(seed)}

    def client_update(
        self, received: State, kept: State | None, data: Examples, context: Context, only: tuple[int, int] | None = None
    ) -> tuple[Sent, State | None]:
        """Train the received model and send it back; ``only`` limits the training to some of its steps."""
        context.model.load(received[MODEL])
        loss = local_sgd(context.model, data, self.task.recipe, context.generator("batches"), only=only)
        numbers = {"loss": loss.value(), "examples": float(len(data))}
        return Sent({MODEL: context.model.tensors()}, numbers), None

    def aggregate(self, server: State, updates: Iterable[tuple[str, Sent]], seed: int) -> State:
        """Take the mean of the clients' models."""
        mean = StreamingMean()
        for client, sent in updates:
            mean.add(sent.tensors[MODEL], self.task.weight(int(sent.numbers["examples"])), f"The update of {client}")
        return {MODEL: mean.result()}

    def model(self, server: State) -> Tensors:
        """Return the global model."""
        return server[MODEL]
