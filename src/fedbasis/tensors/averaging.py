"""How the server averages updates: by the mean, or by a robust mean that a few faulty clients cannot move far.

The trimmed mean drops the lowest and the highest values of every coordinate: ``trim`` of the total weight at each end
(a client on the border counts in part). The median drops all but the middle. Yin et al., "Byzantine-Robust Distributed
Learning", ICML 2018. Both need all of a round's values of a coordinate at once. So the updates are stored on disk and
read a few coordinates at a time, and memory does not grow with the number of clients.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedbasis.tensors.packed import on_disk
from fedbasis.tensors.params import StreamingMean, Tensors, columns, require_same, shapes
from pflbed.errors import InputError

CHUNK_NUMBERS = 2**20
"""How many numbers, of all clients together, are read at a time."""
NOTHING = 1e-9
"""A share of the total weight up to this size is a rounding error and counts as zero."""
SINGLE = 0.25
"""With the median, the share of values at each end that is clamped where single models are needed."""


class Mean(Protocol):
    """A mean over clients to which models are added one at a time."""

    def add(self, tensors: Mapping[str, Tensor], weight: float, where: str = "an update") -> None:
        """Add one model.

        Args:
            tensors: The model.
            weight: Its weight in the mean.
            where: What error messages call it.
        """
        ...

    def result(self) -> Tensors:
        """Return the mean; an error if nothing was added."""
        ...


MakeMean = Callable[[], Mean]


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """How updates are averaged; by default the plain mean.

    Args:
        kind: The plain mean, the trimmed mean or the median.
        trim: The share of the total weight that the trimmed mean drops at each end.
        clip: The maximal L2 norm of an update; longer ones are scaled down to it. None: no clipping.
    """

    kind: Literal["mean", "trimmed", "median"] = "mean"
    trim: float = 0.2
    clip: float | None = None
    """The maximal L2 norm of an update (sent minus received, all tensors as one vector)."""

    @property
    def robust(self) -> bool:
        """Whether this is a trimmed mean or a median."""
        return self.kind != "mean"

    @property
    def trusting(self) -> bool:
        """Whether updates are averaged without any bound on them."""
        return not self.robust and self.clip is None

    def mean(self) -> Mean:
        """Start a mean over clients."""
        return OrderedMean(self) if self.robust else StreamingMean()

    def robust_mean(self, values: Tensor, weights: Tensor) -> Tensor:
        """Average values [clients, coordinates] for every row of weights [rows, clients], in float64."""
        if not self.robust:
            return (weights / weights.sum(1, keepdim=True)).double() @ values.double()
        return middle(values.double(), weights.double(), 0.5 if self.kind == "median" else self.trim)

    def clamp_models(self, models: Sequence[Tensors]) -> Sequence[Tensors]:
        """Clamp single models, coordinate by coordinate, to the range of the values that a trimmed mean counts.

        So a faulty model ends up no further out than some models of other clients.
        """
        if not self.robust or not self._cut(len(models)):
            return models
        lows, highs = Tensors(), Tensors()
        for name, like in models[0].items():
            parts = [self._range(part) for part in _columns(models, name)]
            ends = torch.cat([torch.empty(2, 0), *parts], dim=1).to(like.dtype)
            lows[name], highs[name] = (end.view(like.shape) for end in ends)
        bounded = ({name: t.clamp(lows[name], highs[name]) for name, t in model.items()} for model in models)
        return [state[""] for state in on_disk({"": model} for model in bounded)]

    def clamp_outliers(self, values: Tensor) -> Tensor:
        """Clamp values [clients, coordinates] to that range, widened on both sides by its width."""
        if not self.robust or not self._cut(len(values)):
            return values
        low, high = self._range(values)
        return values.clamp(low - (high - low), high + (high - low))

    def _cut(self, count: int) -> int:
        return int((SINGLE if self.kind == "median" else self.trim) * count + NOTHING)

    def _range(self, values: Tensor) -> Tensor:
        cut = self._cut(len(values))
        return torch.sort(values, dim=0).values[[cut, -1 - cut]]


class OrderedMean:
    """A trimmed mean or a median; the models are stored on disk until all are received."""

    def __init__(self, averaging: Averaging) -> None:
        self._averaging = averaging
        self._models: list[Tensors] = []
        self._weights: list[float] = []

    def add(self, tensors: Mapping[str, Tensor], weight: float, where: str = "an update") -> None:
        """Store one model with its weight."""
        if self._models:
            require_same(tensors, shapes(self._models[0]), where)
        self._models += [state[""] for state in on_disk([{"": dict(tensors)}])]
        self._weights.append(weight)

    def result(self) -> Tensors:
        """Return the robust mean of every coordinate, in the tensors' own precision."""
        if sum(self._weights) <= 0:
            raise InputError("A mean needs at least one update with a positive weight, but none was received.")
        weights = torch.tensor([self._weights], dtype=torch.float64)
        result = Tensors()
        for name, like in self._models[0].items():
            parts = [self._averaging.robust_mean(part, weights)[0] for part in _columns(self._models, name)]
            result[name] = torch.cat([torch.empty(0), *parts]).to(like.dtype).view(like.shape)
        return result


def _columns(models: Sequence[Tensors], name: str) -> list[Tensor]:
    return list(columns(models, [name], max(1, CHUNK_NUMBERS // len(models))))


def middle(values: Tensor, weights: Tensor, cut: float) -> Tensor:
    """Return the weighted trimmed mean of every column of values [n, columns] for every row of weights [rows, n].

    ``cut`` of the total weight is dropped at each end; one half gives the median, which is the mean of the two middle
    values if no single one is in the middle.
    """
    ordered, places = values.sort(dim=0)
    rows = []
    for row in weights:
        share = (row / row.sum())[places]
        upto = share.cumsum(0)
        if cut >= 0.5:
            ends = [(upto < 0.5 - NOTHING).sum(0), (upto <= 0.5 + NOTHING).sum(0).clamp(max=len(values) - 1)]
            rows.append(torch.stack([ordered.gather(0, end[None])[0] for end in ends]).mean(0))
            continue
        part = upto.clamp(max=1 - cut) - (upto - share).clamp(min=cut)
        part = torch.where(part > NOTHING, part, 0.0)
        rows.append(torch.where(part > 0, part * ordered, 0.0).sum(0) / part.sum(0))  # zero times infinity is not zero
    return torch.stack(rows)
