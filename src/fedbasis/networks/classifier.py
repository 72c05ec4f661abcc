"""What enters a network's classifier and what leaves it: the features, and heads that are trained on them.

Whoever trains a head alone leaves the features as they are, so they are computed once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbasis.networks.train import PlainSGD, Preprocessing, batches, forward
from pflbed.errors import InputError


@dataclass(frozen=True)
class Passed:
    """What went into a classifier, and the network's output."""

    features: Tensor
    logits: Tensor


@contextmanager
def watching(layer: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Collect what goes into a layer and what comes out of it, pass by pass."""
    seen: list[tuple[Tensor, Tensor]] = []
    hook = layer.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    try:
        yield seen
    finally:
        hook.remove()


def require_last(classifier: str, output: Tensor, logits: Tensor, who: str) -> None:
    """Refuse a network that does something to its classifier's output."""
    if output is not logits and not torch.equal(output, logits):
        raise InputError(f"{who} needs '{classifier}' to be the network's last layer, but it is not.")


def passed(
    module: nn.Module, classifier: str, pixels: Tensor, preprocessing: Preprocessing, last_for: str | None = None
) -> Passed:
    """Return the features and logits of images in evaluation mode; ``last_for`` needs the classifier to be last."""
    with watching(module.get_submodule(classifier)) as seen:
        logits = forward(module, pixels, preprocessing)
    features, outputs = (torch.cat(parts) for parts in zip(*seen, strict=True))
    if last_for is not None:
        require_last(classifier, outputs, logits, last_for)
    return Passed(features, logits)


def probabilities_and_features(
    module: nn.Module, classifier: str, pixels: Tensor, preprocessing: Preprocessing
) -> tuple[Tensor, Tensor]:
    """Return a model's class probabilities and the features they were made of, on the CPU."""
    seen = passed(module, classifier, pixels, preprocessing)
    return torch.softmax(seen.logits, dim=1).cpu(), seen.features.flatten(1).cpu()


@torch.no_grad()
def apply_head(module: nn.Module, classifier: str, features: Tensor, batch: int = 256) -> Tensor:
    """Return the class probabilities of features, on the CPU: what ``train.predict`` makes of their images."""
    head = module.get_submodule(classifier)
    return torch.softmax(torch.cat([head(part) for part in torch.split(features, batch)]), dim=1).cpu()


def head_steps(
    loss_of: Callable[[Tensor], Tensor],
    optimizer: PlainSGD,
    count: int,
    batch: int,
    epochs: int,
    generator: torch.Generator,
) -> Iterator[tuple[bool, Tensor]]:
    """Take SGD steps on ``loss_of(row numbers)`` and yield ``(epoch ends here, loss)`` after each."""
    for _ in range(epochs):
        parts = batches(count, batch, generator)
        for number, rows in enumerate(parts, start=1):
            optimizer.zero_grad()
            loss = loss_of(rows)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield number == len(parts), loss.detach()
