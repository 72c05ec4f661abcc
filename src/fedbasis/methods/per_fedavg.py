"""Per-FedAvg (FO): clients learn a common initial model from which one gradient step gives a good personal model.

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020. The objective is ``mean_m f_m(w - a grad f_m(w))``; a local step is

    w' = w - a grad_D(w),    w <- w - rate (I - a Hessian_D''(w)) grad_D'(w')

on three batches D, D' and D''. This file drops the Hessian (the paper's first-order variant); ``per_fedavg_hf`` has it.
The recipe's SGD (momentum, decay) takes the outer steps. Only the pass on D is at ``w`` itself, and only this pass
updates the normalization statistics.

With ``steps = "outer"`` a client takes as many outer steps as FedAvg: D' runs through FedAvg's own batches, D and D''
through other shuffles of the same images, so that every image is passed two (three) times as often. With
``steps = "epochs"`` the batches of the recipe's epochs are D, D' (and D'') in turn, as in most public code: every image
is passed about as often as in FedAvg, and there are half (a third) of FedAvg's steps.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedbasis.methods.base import MODEL, About, Context, Method, MethodConfig, Sent, Update, Ways
from fedbasis.networks.batches import Recipe, augment_batches, batches, draw_batches
from fedbasis.networks.inputs import Examples
from fedbasis.networks.optimizers import FlatSGD
from fedbasis.networks.train import MeanLoss
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors

Inputs = tuple[Tensor, Tensor]  # inputs and labels, where the model is


class PerFedAvgConfig(MethodConfig):
    """The inner step."""

    inner_rate: float = Field(0.01, ge=0, description="a, the learning rate of the inner step from w")
    steps: Literal["outer", "epochs"] = Field(
        "outer", description="as many outer steps as FedAvg's steps, or as many passes over the images as FedAvg"
    )


class PerFedAvg(Method):
    """The server's state is the common initial model."""

    about: ClassVar[About] = About(
        name="per-fedavg-fo",
        title="Per-FedAvg (FO)",
        paper="Fallah et al. 2020",
        sends="1 model",
        keeps="nothing",
        new_client="all of the model fine-tuned (ft), which it was trained for",
    )
    ways: ClassVar[Ways] = Ways(default=("ft",))
    Config: ClassVar[type[MethodConfig]] = PerFedAvgConfig
    batches_a_step: ClassVar[int] = 2
    config: PerFedAvgConfig

    def init(self, seed: int) -> State:
        """Start from the initial model."""
        return {MODEL: self.task.initial(seed)}

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Take SGD steps along the meta-gradient; the logged loss is the one after the inner step."""
        model, recipe, loss = context.model, self.task.recipe, MeanLoss()
        model.load(received[MODEL])
        rates, decays = ([value] * len(model.weights) for value in (recipe.rate, recipe.decay))
        optimizer = FlatSGD(model.weights, model.gradients, rates, decays, recipe.momentum)
        for group in self.groups(model, data, context):
            loss.add(self.meta_gradient(model, group))
            optimizer.step()
        return Sent({MODEL: model.tensors()}, {"loss": loss.value(), "examples": float(len(data))}), None

    def groups(self, model: FlatModel, data: Examples, context: Context) -> Iterator[list[Inputs]]:
        """Yield D, D' (and D'') of every outer step."""
        first, recipe, size = context.generator("batches"), self.task.recipe, self.batches_a_step
        if self.config.steps == "epochs":
            return batch_groups(model, data, recipe, first, size)
        others = [context.generator("batches", role) for role in range(1, size)]
        streams = [single_batches(model, data, recipe, generator) for generator in (others[0], first, *others[1:])]
        return (list(group) for group in zip(*streams, strict=True))

    def meta_gradient(self, model: FlatModel, group: Sequence[Inputs]) -> Tensor:
        """Write ``grad_D'(w - a grad_D(w))`` to the model's gradients; return the loss on D' at that point."""
        gradient(model, group[0])
        return gradient_at(model, group[1], model.gradients, -self.config.inner_rate)

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Average the clients' models."""
        return {MODEL: self.mean(updates)}

    def model(self, server: State) -> Tensors:
        """Return the common initial model."""
        return server[MODEL]


def batch_groups(
    model: FlatModel, data: Examples, recipe: Recipe, generator: torch.Generator, size: int
) -> Iterator[list[Inputs]]:
    """Yield the batches of the recipe's epochs in groups of ``size``.

    A group may span two epochs. A short last group is filled up with the first batches of the last epoch, repeatedly if
    needed: a client with one batch and one epoch uses it for all of D, D' and D''.
    """
    epochs = [batches(len(data), recipe.batch, generator) for _ in range(recipe.epochs)]
    parts = [rows for epoch in epochs for rows in epoch]
    parts += islice(cycle(epochs[-1]), -len(parts) % size)
    drawn = (batch.inputs(data, recipe, model) for batch in augment_batches(parts, data, recipe, generator))
    for group in zip(*[drawn] * size, strict=True):
        yield list(group)


def single_batches(model: FlatModel, data: Examples, recipe: Recipe, generator: torch.Generator) -> Iterator[Inputs]:
    """Yield the batches of the recipe's epochs one by one, drawn and augmented as for FedAvg's local SGD."""
    return (batch.inputs(data, recipe, model) for batch in draw_batches(data, recipe, generator))


def gradient(model: FlatModel, batch: Inputs) -> Tensor:
    """Write the gradient of a batch's mean cross entropy to the model's gradients, in training mode; return the loss.

    A batch of one image is normalized by the running statistics, as in all local training.
    """
    inputs, labels = batch
    model.module.train(len(labels) > 1)
    model.zero_gradients()
    loss = cross_entropy(model.logits(inputs), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def gradient_at(model: FlatModel, batch: Inputs, direction: Sequence[Tensor], length: float) -> Tensor:
    """Do the same at ``w + length * direction``, then restore weights, statistics and counters."""
    tensors = [*model.weights, *model.module.buffers()]
    before = [tensor.clone() for tensor in tensors]
    for flat, towards in zip(model.weights, direction, strict=True):
        flat.add_(towards, alpha=length)
    loss = gradient(model, batch)
    for tensor, value in zip(tensors, before, strict=True):
        tensor.copy_(value)
    return loss
