"""How the server averages: by the mean, or so that a few clients cannot move the result far, whatever they send.

The trimmed mean leaves out, coordinate by coordinate, the lowest and the highest values: ``trim`` of all weight at
either end (a client on the border counts in part). The median leaves out all but the middle. Yin et al.,
"Byzantine-Robust Distributed Learning", ICML 2018. Both need all of a round's values of a coordinate at once: what
clients sent is put aside on disk and looked at a few coordinates at a time, so memory does not grow with the clients.
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
"""So many numbers, of all clients together, are looked at at a time."""
NOTHING = 1e-9
"""A share of all weight that is only rounding: times a huge number it would not be."""
SINGLE = 0.25
"""With the median, this share at either end is brought into range where single models are needed."""


class Mean(Protocol):
    """What can be averaged over clients."""

    def add(self, tensors: Mapping[str, Tensor], weight: float, where: str = "an update") -> None:
        """Add one model with its weight."""
        ...

    def result(self) -> Tensors:
        """Return the mean; refuse when nothing was added."""
        ...


MakeMean = Callable[[], Mean]


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """The choice; by default the plain mean of all that clients send."""

    kind: Literal["mean", "trimmed", "median"] = "mean"
    trim: float = 0.2
    clip: float | None = None
    """The longest update (sent minus received, all tensors as one vector) that is taken as it is."""

    @property
    def robust(self) -> bool:
        """Whether it is another mean than the plain one."""
        return self.kind != "mean"

    @property
    def trusting(self) -> bool:
        """Whether clients are believed whatever they send."""
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
        """Bring models that are needed one by one into the range of the values that a trimmed mean counts.

        A coordinate that lies outside is moved to the range's end: a model of garbage becomes one that is not further
        away than some that others sent.
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
        """Move values [clients, coordinates] that lie further out than that range is wide to there."""
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
    """A trimmed mean or a median of models that wait on disk until all have come."""

    def __init__(self, averaging: Averaging) -> None:
        self._averaging = averaging
        self._models: list[Tensors] = []
        self._weights: list[float] = []

    def add(self, tensors: Mapping[str, Tensor], weight: float, where: str = "an update") -> None:
        """Put one model aside with its weight."""
        if self._models:
            require_same(tensors, shapes(self._models[0]), where)
        self._models += [state[""] for state in on_disk([{"": dict(tensors)}])]
        self._weights.append(weight)

    def result(self) -> Tensors:
        """Return the middle of every coordinate, in the tensors' own precision."""
        if sum(self._weights) <= 0:
            raise InputError("A mean needs at least one update with a positive weight, but none arrived.")
        weights = torch.tensor([self._weights], dtype=torch.float64)
        result = Tensors()
        for name, like in self._models[0].items():
            parts = [self._averaging.robust_mean(part, weights)[0] for part in _columns(self._models, name)]
            result[name] = torch.cat([torch.empty(0), *parts]).to(like.dtype).view(like.shape)
        return result


def _columns(models: Sequence[Tensors], name: str) -> list[Tensor]:
    return list(columns(models, [name], max(1, CHUNK_NUMBERS // len(models))))


def middle(values: Tensor, weights: Tensor, cut: float) -> Tensor:
    """Average the middle of every column of values [n, columns] for every row of weights [rows, n].

    ``cut`` of all weight is left out at either end; one half is the median, the mean of the two middle values if no
    single one is in the middle.
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
        kept = upto.clamp(max=1 - cut) - (upto - share).clamp(min=cut)
        kept = torch.where(kept > NOTHING, kept, 0.0)
        rows.append(torch.where(kept > 0, kept * ordered, 0.0).sum(0) / kept.sum(0))  # zero times infinity is not zero
    return torch.stack(rows)
