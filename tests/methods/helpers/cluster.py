"""What the tests of methods with several models share."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from battery import ROUNDS
from fedbasis.methods import METHODS
from fedbasis.methods.base import MODEL, Sent, Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples
from fedbasis.networks.models import Network
from fedbasis.tensors.params import Tensors
from fedbasis.tensors.seeding import torch_generator
from shapes import shapes_examples

WEIGHTINGS = ["uniform", "examples"]


def task_of(recipe: Recipe, norm: str = "batch", rounds: int = ROUNDS, **task: Any) -> Task:
    return Task(Network("cnn-small", 3, 12, {"norm": norm, "width": 4}), recipe, rounds, **task)


def method_of(name: str, task: Task, **settings: Any) -> Any:
    return METHODS[name].build(METHODS[name].Config(**settings), task)


def updates_of(models: list[Tensors], examples: list[int]) -> list[tuple[str, Sent]]:
    numbers = [{"loss": 0.0, "examples": float(count)} for count in examples]
    return [(str(i), Sent({MODEL: m}, n)) for i, (m, n) in enumerate(zip(models, numbers, strict=True))]


def flat(task: Task, tensors: Tensors) -> NDArray[np.float64]:
    """All parameters of a model behind one another, in the order of their names."""
    return np.concatenate([tensors[name].double().numpy().ravel() for name in sorted(task.parameters)])


def statistics(task: Task) -> set[str]:
    return set(task.layout.shapes) - task.parameters


def shuffled(tensors: Tensors, seed: int, scale: float = 0.1) -> Tensors:
    """The same model with noise on every number."""
    generator = torch_generator("shuffled", seed)
    return {name: t + scale * torch.rand(t.shape, generator=generator) for name, t in tensors.items()}


def naive_losses(task: Task, tensors: Tensors, data: Examples) -> list[float]:
    """Every example's cross entropy, one by one, without any of the library's helpers."""
    module = task.network.build()
    module.load_state_dict(tensors, strict=False)
    module.eval()
    losses = []
    for pixels, label in zip(data.pixels, data.labels.tolist(), strict=True):
        with torch.no_grad():
            logits = module(task.recipe.preprocessing(pixels[None]))[0].tolist()
        losses.append(math.log(sum(math.exp(x) for x in logits)) - logits[label])
    return losses


def relabelled(count: int, seed: int, shift: int) -> Examples:
    """Groups of clients that call the same shapes by other names: no one model serves both."""
    data = shapes_examples(count, seed=seed)
    return Examples(data.pixels, (data.labels + shift) % 3)
