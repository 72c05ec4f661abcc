"""FedAvg: every sampled client trains the global model on its own data; the server averages the models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from collections.abc import Iterable
from typing import ClassVar

from fedbasis.methods.base import MODEL, About, Context, Method, Sent, Update
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import Adjust, local_sgd
from fedbasis.tensors.params import State, Tensors


class FedAvg(Method):
    """The server's state is the global model; clients have no state.

    Args:
        network: A name, a factory or an ``nn.Module``.

    Example:
        >>> FedAvg(network="cnn-small").about.title
        'FedAvg'
    """

    about: ClassVar[About] = About(
        name="fedavg",
        title="FedAvg",
        paper="McMahan et al. 2017",
        sends="1 model",
        keeps="nothing",
        new_client="the global model as it is, or a new classifier (lp), or all of it fine-tuned (ft)",
    )

    def init(self, seed: int) -> State:
        """Start from the initial model."""
        return {MODEL: self.task.initial(seed)}

    def client_update(
        self,
        received: State,
        state: State | None,
        data: Examples,
        context: Context,
        only: tuple[int, int] | None = None,
    ) -> tuple[Sent, State | None]:
        """Train the received model and send it back; ``only`` is the range of steps to take (None: all)."""
        context.model.load(received[MODEL])
        adjust = self.adjust(received, state, context)
        loss = local_sgd(context.model, data, self.task.recipe, context.generator("batches"), only=only, adjust=adjust)
        numbers = {"loss": loss.value(), "examples": float(len(data))}
        return Sent({MODEL: context.model.tensors()}, numbers), None

    def adjust(self, received: State, state: State | None, context: Context) -> Adjust | None:
        """Return what subclasses add to every gradient, called once the model is loaded; here nothing."""
        return None

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Average the clients' models."""
        return {MODEL: self.mean(updates)}

    def model(self, server: State) -> Tensors:
        """Return the global model."""
        return server[MODEL]
