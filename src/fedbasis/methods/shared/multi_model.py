"""The base of methods with several whole models: different initial models, and their losses on a client's data."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedbasis.methods.base import Context
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import forward
from fedbasis.tensors.params import State, Tensors
from fedbasis.tensors.seeding import seed_for, torch_generator


class MultiModel(FedAvg):
    """A base class for methods whose server has several models."""

    prefix: ClassVar[str]
    """The server's models are the groups ``<prefix>_0``, ``<prefix>_1``, ...; the setting ``<prefix>s`` counts them."""

    @property
    def count(self) -> int:
        """How many models there are."""
        return int(getattr(self.config, f"{self.prefix}s"))

    def numbered(self, models: Sequence[Tensors]) -> State:
        """Return models as groups of the server's state."""
        return {f"{self.prefix}_{k}": tensors for k, tensors in enumerate(models)}

    def models(self, state: State) -> list[Tensors]:
        """Return a state's models in order."""
        return [state[f"{self.prefix}_{k}"] for k in range(self.count)]

    def starts(self, seed: int, noise: float) -> list[Tensors]:
        """Return different initial models; a single one is FedAvg's.

        Models that start equal stay equal, and pretrained tensors are equal in all of them. So noise of ``noise`` times
        the tensor's standard deviation is added to each pretrained parameter in every model: a model without noise
        would be the best for all clients.
        """
        if self.count == 1:
            return [self.task.initial(seed)]
        seeds = [seed, *(seed_for(seed, "cluster", i) for i in range(1, self.count))]
        models = [self.task.initial(drawn) for drawn in seeds]
        for model, drawn in zip(models, seeds, strict=True):
            generator = torch_generator(drawn, "noise")
            for entry in self.task.layout.select(True):
                if entry.name in (self.task.weights or {}):
                    tensor = model[entry.name]
                    drawn_noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                    model[entry.name] = tensor + noise * tensor.std(correction=0) * drawn_noise
        return models

    def losses(self, models: Sequence[Tensors], data: Examples, context: Context) -> Tensor:
        """Return every example's cross entropy under every model [examples, models], in evaluation mode."""
        columns = []
        for tensors in models:
            context.model.load(tensors)
            logits = forward(context.model.module, data.pixels, self.task.recipe.preprocessing)
            columns.append(cross_entropy(logits, data.labels.to(logits.device), reduction="none").cpu())
        return torch.stack(columns, dim=1).double()

    def lowest(self, models: Sequence[Tensors], data: Examples, context: Context) -> tuple[int, float]:
        """Return the index and the loss of the model with the lowest mean loss on the client's data (NaN: infinite)."""
        means = self.losses(models, data, context).mean(0).nan_to_num(nan=torch.inf)
        chosen = int(means.argmin())
        return chosen, float(means[chosen])

    def serve_lowest(
        self, models: Sequence[Tensors], data: Examples, context: Context
    ) -> Iterator[tuple[float, Tensors]]:
        """Personalize by choosing the model with the lowest loss on the client's data; nothing is trained."""
        chosen, loss = self.lowest(models, data, context)
        context.model.load(models[chosen])
        yield loss, {"chosen": torch.tensor(chosen)}
