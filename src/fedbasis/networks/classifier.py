"""Features and heads: the inputs and outputs of a network's classifier, and heads that are trained on features.

Training a head alone does not change the features, so they are computed once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbasis.networks.batches import at_once, batches
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.optimizers import PlainSGD
from fedbasis.networks.train import forward
from pflbed.errors import InputError


@dataclass(frozen=True)
class Passed:
    """The inputs of a network's classifier, and the network's logits."""

    features: Tensor
    logits: Tensor


@contextmanager
def watching(layer: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Record the input and the output of a layer in every forward pass within the context; bfloat16 as float32."""
    seen: list[tuple[Tensor, Tensor]] = []
    hook = layer.register_forward_hook(lambda _, inputs, output: seen.append((_full(inputs[0]), _full(output))))
    try:
        yield seen
    finally:
        hook.remove()


def _full(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def require_last(classifier: str, output: Tensor, logits: Tensor, who: str) -> None:
    """Raise an ``InputError`` if the network changes its classifier's output."""
    if output is not logits and not torch.equal(output, logits):
        raise InputError(f"{who} needs '{classifier}' to be the network's last layer, but it is not.")


def passed(
    module: nn.Module, classifier: str, pixels: Tensor, preprocessing: Preprocessing, last_for: str | None = None
) -> Passed:
    """Return the features and logits of images in evaluation mode.

    Args:
        module: The network.
        classifier: The name of its classifier.
        pixels: The images.
        preprocessing: How pixels become inputs.
        last_for: The method that needs the classifier to be the last layer, for the error if it is not; None: any.
    """
    with watching(module.get_submodule(classifier)) as seen:
        logits = forward(module, pixels, preprocessing)
    features, outputs = (torch.cat(parts) for parts in zip(*seen, strict=True))
    if last_for is not None:
        require_last(classifier, outputs, logits, last_for)
    return Passed(features, logits)


def probabilities_and_features(
    module: nn.Module, classifier: str, pixels: Tensor, preprocessing: Preprocessing
) -> tuple[Tensor, Tensor]:
    """Return the class probabilities and the features of images, on the CPU."""
    seen = passed(module, classifier, pixels, preprocessing)
    return torch.softmax(seen.logits, dim=1).cpu(), seen.features.flatten(1).cpu()


@torch.no_grad()
def apply_head(module: nn.Module, classifier: str, features: Tensor, batch: int = 256) -> Tensor:
    """Return the class probabilities of features, on the CPU: the same as ``train.predict`` of their images."""
    head = module.get_submodule(classifier)
    return torch.softmax(torch.cat([head(part) for part in torch.split(features, batch)]), dim=1).cpu()


def head_steps(
    loss_of: Callable[[Tensor], Tensor],
    optimizer: PlainSGD,
    count: int,
    batch: int,
    epochs: int,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[bool, Tensor]]:
    """Take SGD steps on ``loss_of(row numbers on the device)`` and yield ``(epoch ends here, loss)`` after each."""
    for _ in range(epochs):
        parts = batches(count, batch, generator)
        parts = at_once(parts, device)
        for number, rows in enumerate(parts, start=1):
            optimizer.zero_grad()
            loss = loss_of(rows)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield number == len(parts), loss.detach()
