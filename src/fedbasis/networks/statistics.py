"""Normalization statistics of a new client: the server's, the client's own, or a mean of both.

A network with BatchNorm layers has running means and variances. For a new client they can be treated in three ways:

    frozen   the server's statistics normalize all batches and stay as they are
    own      they are replaced by those of the client's images; training normalizes by the batch and updates them
    shrunk   (n0 * server's + n * own) / (n0 + n) with n images of the client; they normalize all batches and stay

``shrunk`` is the adaptation of Schneider et al., "Improving robustness against common corruptions by covariate shift
adaptation", NeurIPS 2020, applied before training. It is ``frozen`` for a large n0.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fedbasis.networks.inputs import Examples, Preprocessing
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors

Statistics = Literal["frozen", "own", "shrunk"]
CHOICES: tuple[Statistics, ...] = get_args(Statistics)
PASS = 256
"""Images of a forward pass."""


def statistics_of(model: FlatModel, data: Examples, preprocessing: Preprocessing) -> Tensors:
    """Return the statistics of the client's images, layer after layer, and leave the model as it was.

    Every layer normalizes by the images of the pass, as in training. Up to 256 images are one pass; more are split
    evenly, and the means over the passes are returned. With a single image the model's own statistics are returned.
    """
    before, layers = model.tensors(), _layers(model.module)
    if len(data) > 1:
        passes = -(-len(data) // PASS)
        device, module = model.weights[0].device, model.module
        with _cumulative(module), torch.no_grad():
            module.train()
            for pixels in torch.tensor_split(data.pixels, passes):
                module(preprocessing(pixels.to(device), model.weights[0].dtype))
    after = model.tensors()
    model.load(before)
    return {name: after[name] for layer in layers for name in (f"{layer}.running_mean", f"{layer}.running_var")}


def has_statistics(module: nn.Module) -> bool:
    """Return whether a network has running statistics; without them all choices are the same."""
    return bool(_layers(module))


def _layers(module: nn.Module) -> dict[str, _NormBase]:
    found = {name: layer for name, layer in module.named_modules() if isinstance(layer, _NormBase)}
    return {name: layer for name, layer in found.items() if layer.track_running_stats}


@contextmanager
def _cumulative(module: nn.Module) -> Iterator[None]:
    """Let running statistics be plain means over the passes within the context; dropout is off."""
    layers = list(_layers(module).values())
    dropouts = [(layer, layer.p) for layer in module.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]
    momenta = [layer.momentum for layer in layers]
    try:
        for layer in layers:
            layer.momentum = None
            layer.reset_running_stats()  # in place: they stay views of the flat vectors
        for dropout, _ in dropouts:
            dropout.p = 0.0
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for dropout, p in dropouts:
            dropout.p = p


def with_statistics(server: State, own: Tensors, weight: float) -> State:
    """Return a published state whose statistics are moved towards the client's by ``weight``, in all of its models.

    Coefficients of a combination add up to one, so the combined statistics of bases move by the same weight.
    """
    return {
        group: {
            name: torch.lerp(tensor, own[name].to(tensor), weight)
            if name in own and tensor.shape == own[name].shape
            else tensor
            for name, tensor in tensors.items()
        }
        for group, tensors in server.items()
    }
