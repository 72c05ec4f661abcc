"""A linear network with a squared loss in float64.

With all data in one batch every client's loss is a quadratic ``1/2 tr(W H W') - tr(B W')``, whose minima and gradient
steps are written down in a line of numpy.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from battery import Serial
from fedbasis.engines.client_state import ClientStates
from fedbasis.methods import METHODS
from fedbasis.methods.base import Method, Sent, Task
from fedbasis.networks.inputs import Examples
from fedbasis.tensors.params import State, Tensors
from shapes import shapes_examples

Matrix = NDArray[np.float64]
SEED = 7


def build(name: str, task: Task, **settings: Any) -> Method:
    return METHODS[name].build(METHODS[name].Config(**settings), task)


def run(
    method: Method, data: dict[str, Examples], rounds: Sequence[Sequence[str]]
) -> tuple[State, ClientStates, list[dict[str, Sent]]]:
    """Let the named clients take part, round by round; return the server, what clients keep, and all they sent."""
    engine, server, log = Serial(method, data, SEED), method.init(SEED), []
    for number, chosen in enumerate(rounds):
        seen: dict[str, Sent] = {}

        def stream(server: State = server, chosen: Sequence[str] = chosen, number: int = number) -> Iterator[Any]:
            for client, sent in engine.map(server, chosen, number):
                seen[client] = sent  # noqa: B023
                yield client, sent

        server = method.aggregate(server, stream(), SEED)
        log.append(seen)
    return server, engine.states, log


def equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def clients(count: int = 3) -> dict[str, Examples]:
    return {f"c{i}": shapes_examples(18 + 3 * i, i % 2, seed=i) for i in range(count)}


class Linear(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(3, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


def linear(classes: int) -> nn.Module:
    return Linear(classes).double()


def squared(logits: Tensor, labels: Tensor) -> Tensor:
    wanted = nn.functional.one_hot(labels, logits.shape[1]).to(logits)
    return ((logits - wanted) ** 2).sum(1).mean() / 2


def dots(count: int = 4) -> dict[str, Examples]:
    """Clients with different pixels, labels and sizes."""
    made = {}
    for i in range(count):
        rng = np.random.default_rng(i)
        pixels = rng.integers(0, 256, (20 + 5 * i, 1, 1, 3), dtype=np.uint8)
        labels = (pixels[:, 0, 0, i % 3] > 60 + 40 * i).astype(np.int64)
        made[f"c{i}"] = Examples(torch.from_numpy(pixels), torch.from_numpy(labels))
    return made


def problem(data: Examples) -> tuple[Matrix, Matrix]:
    """Return H and B of a client's loss; the gradient is W H - B, with the bias as last column of W."""
    x = np.concatenate([(data.pixels.numpy().reshape(-1, 3) / 255 - 0.5) / 0.29, np.ones((len(data), 1))], 1)
    return x.T @ x / len(x), np.eye(2)[data.labels.numpy()].T @ x / len(x)


def matrix(tensors: Tensors) -> Matrix:
    joined: Matrix = torch.cat([tensors["fc.weight"], tensors["fc.bias"][:, None]], 1).numpy()
    return joined


def minimum(hessian: Matrix, linear_term: Matrix) -> Matrix:
    return linear_term @ np.linalg.inv(hessian)


def assert_near(got: Matrix, wanted: Matrix, tolerance: float = 1e-8) -> None:
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance)
