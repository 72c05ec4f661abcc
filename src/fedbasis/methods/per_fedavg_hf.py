"""Per-FedAvg (HF): Per-FedAvg with the Hessian term; a Hessian-vector product is a difference of gradients.

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020. With ``v = grad_D'(w - a grad_D(w))`` the meta-gradient is ``v - a h`` and

    h = [grad_D''(w + delta v) - grad_D''(w - delta v)] / (2 delta),    which is Hessian_D''(w) v up to delta^2

on a third batch D''. Everything else, including the batches and the normalization statistics, is as in ``per_fedavg``.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedbasis.methods.base import About, MethodConfig
from fedbasis.methods.per_fedavg import Inputs, PerFedAvg, PerFedAvgConfig, gradient_at
from fedbasis.tensors.flat import FlatModel
from pflbed.errors import InputError


class PerFedAvgHFConfig(PerFedAvgConfig):
    """The inner step, and the finite difference that replaces its derivative."""

    delta: float = Field(1e-3, gt=0, description="step of the central difference of gradients along v")


class PerFedAvgHF(PerFedAvg):
    """The server's state is the common initial model."""

    about: ClassVar[About] = replace(
        PerFedAvg.about,
        name="per-fedavg-hf",
        title="Per-FedAvg (HF)",
    )
    Config: ClassVar[type[MethodConfig]] = PerFedAvgHFConfig
    batches_a_step: ClassVar[int] = 3
    config: PerFedAvgHFConfig

    def setup(self) -> None:
        """Refuse arithmetic in which the difference of two gradients is noise."""
        if self.task.network.precision != "float32":
            raise InputError(
                f"Per-FedAvg (HF) must have train.precision 'float32', because it takes differences of gradients, but "
                f"it is '{self.task.network.precision}'."
            )

    def meta_gradient(self, model: FlatModel, group: Sequence[Inputs]) -> Tensor:
        """Put ``v - a h`` into the model's gradients; return the loss on D' after the inner step."""
        loss = super().meta_gradient(model, group)
        v = [flat.clone() for flat in model.gradients]
        gradient_at(model, group[2], v, self.config.delta)
        ahead = [flat.clone() for flat in model.gradients]
        gradient_at(model, group[2], v, -self.config.delta)
        factor = self.config.inner_rate / (2 * self.config.delta)
        for result, first, front in zip(model.gradients, v, ahead, strict=True):
            result.copy_(first - factor * (front - result))
        return loss
