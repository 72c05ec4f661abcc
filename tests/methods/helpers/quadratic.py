"""A network whose cross entropy is a quadratic function of its weights, in float64.

With the logits ``(-log(exp(q) - 1), 0)`` and label 0 the cross entropy is q. So methods run as they are, on a problem
whose solutions are known.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from battery import Serial
from fedbasis.engines.client_state import ClientStates
from fedbasis.methods import METHODS
from fedbasis.methods.base import Context, Method, Task
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples, Preprocessing
from fedbasis.networks.models import Network
from fedbasis.tensors.params import State, Tensors

Array = np.ndarray[Any, np.dtype[np.float64]]


class Quadratic(nn.Module):
    """For every image ``1 + 1/2 sum_j c_j (w_j - b_j)^2``; its red pixels give b, its green ones c."""

    classifier_name = "none"

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.3, -0.2], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        q = 1 + (curvature(x[:, 1, 0]) * (self.w - x[:, 0, 0]) ** 2).sum(1) / 2
        return torch.stack([-torch.log(torch.expm1(q)), torch.zeros_like(q)], 1)


class Smooth(nn.Module):
    """A network without kinks, normalized by the batch."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(432, 5), nn.BatchNorm1d(5), nn.Tanh()).double()
        self.fc = nn.Linear(5, classes).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.hidden(x))  # type: ignore[no-any-return]


def curvature(green: Any) -> Any:
    return 0.5 + 2 * green


def quadratic(classes: int) -> nn.Module:
    return Quadratic()


def smooth(classes: int) -> nn.Module:
    return Smooth(classes)


PLAIN = Recipe(
    preprocessing=Preprocessing(2, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    epochs=1,
    batch=4,
    rate=0.1,
    momentum=0.0,
    decay=0.0,
)


QUADRATIC = Network(f"{__name__}:quadratic", 2, 2)
SMOOTH = Network(f"{__name__}:smooth", 3, 12)
TINY = Network("cnn-small", 3, 12, {"norm": "batch"})


def make(name: str, network: Network, recipe: Recipe, **config: Any) -> Method:
    return METHODS[name].build(METHODS[name].Config(**config), Task(network, recipe, 10))


def fedavg(network: Network, recipe: Recipe) -> FedAvg:
    return FedAvg.build(None, Task(network, recipe, 10))


def points(count: int, seed: int) -> Examples:
    """Images of two pixels for ``Quadratic``."""
    rng = np.random.default_rng(seed)
    pixels = torch.from_numpy(rng.integers(0, 256, (count, 1, 2, 3), dtype=np.uint8))
    return Examples(pixels, torch.zeros(count, dtype=torch.int64))


def slope(w: Array, data: Examples, rows: Any = slice(None)) -> Array:
    """The gradient of the mean over some rows, by hand."""
    x = data.pixels.numpy()[rows].astype(np.float64) / 255
    return np.asarray((curvature(x[:, 0, :, 1]) * (w - x[:, 0, :, 0])).mean(0))


def bowl(data: Examples) -> tuple[Array, Array]:
    """The curvature c and the centre b of ``1/2 sum c (w - b)^2``, which the mean over the data is up to a constant."""
    at_zero = slope(np.zeros(2), data)
    c = slope(np.ones(2), data) - at_zero
    return c, -at_zero / c


def stream(context: Context, data: Examples, batch: int, epochs: int, *purpose: str | int) -> list[Array]:
    """The batches of some epochs, by hand."""
    generator = context.generator(*(purpose or ("batches",)))
    orders = [torch.randperm(len(data), generator=generator) for _ in range(epochs)]
    return [part.numpy() for order in orders for part in torch.split(order, batch)]


def rounds_of(
    method: Method, data: dict[str, Examples], rounds: int, server: State | None = None
) -> Iterator[tuple[State, ClientStates]]:
    engine, server = Serial(method, data, seed=7), server or method.init(7)
    for number in range(rounds):
        server = method.aggregate(server, engine.map(server, list(data), number), 7)
        yield server, engine.states


def last_of(method: Method, data: dict[str, Examples], rounds: int) -> tuple[State, ClientStates]:
    return list(rounds_of(method, data, rounds))[-1]


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def close(got: Tensor, wanted: Array, tolerance: float = 1e-11) -> None:
    np.testing.assert_allclose(got.numpy(), wanted, rtol=tolerance, atol=tolerance)
