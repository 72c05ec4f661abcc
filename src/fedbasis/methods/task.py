"""The inputs of every method: checked settings, and the task (network, local recipe, rounds, averaging)."""

from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_validator

from fedbasis.networks.batches import Recipe
from fedbasis.networks.models import Network, classifier_of, normalization_of
from fedbasis.tensors.averaging import Averaging
from fedbasis.tensors.blocks import Layout
from fedbasis.tensors.packed import packed, unpacked
from fedbasis.tensors.params import Tensors

LARGEST = 1e12
"""No number of a method's settings is larger: it would not fit a float32."""
LARGEST_COUNT = 1_000_000
"""No whole number is larger: bases, components, epochs, steps ... are counted with them."""


class MethodConfig(BaseModel):
    """The settings of a method: frozen, validated at construction; unknown keys are errors.

    Example:
        >>> class MineConfig(MethodConfig):
        ...     shrink: float = 0.99
        >>> MineConfig(shrink=0.5).shrink
        0.5
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _moderate(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            limit = LARGEST_COUNT if isinstance(value, int) else LARGEST
            if isinstance(value, (int, float)) and abs(value) > limit:
                raise ValueError(f"{name} must be at most {limit:g} in size, but it is {value:g}")
        return self


@dataclass(frozen=True)
class Task:
    """What a method trains, and how.

    Args:
        network: The network.
        recipe: How a client trains locally.
        rounds: The number of rounds.
        weighting: Whether clients have equal weights in means, or weights by their number of images.
        weights: Pretrained tensors, by name; they replace the randomly initialized ones.
        averaging: How updates are averaged.
    """

    network: Network
    recipe: Recipe
    rounds: int
    _: KW_ONLY
    weighting: Literal["uniform", "examples"] = "uniform"
    weights: Tensors | None = field(default=None, repr=False)
    averaging: Averaging = field(default_factory=Averaging)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle pretrained tensors as one plain array."""
        weights = None if self.weights is None else packed({"": self.weights})
        return _task, (self.network, self.recipe, self.rounds, self.weighting, weights, self.averaging)

    @cached_property
    def layout(self) -> Layout:
        """The network's tensors by blocks."""
        return self.network.layout(self.network.build())

    @cached_property
    def classifier(self) -> str:
        """The name of the network's classifier layer."""
        return classifier_of(self.network.build())

    @cached_property
    def head(self) -> frozenset[str]:
        """The names of the classifier's tensors."""
        return frozenset(entry.name for entry in self.layout.entries if entry.name.startswith(self.classifier + "."))

    @cached_property
    def body(self) -> frozenset[str]:
        """The names of all other tensors, normalization statistics included."""
        return frozenset(entry.name for entry in self.layout.entries) - self.head

    @cached_property
    def normalization(self) -> frozenset[str]:
        """The names of the normalization layers' tensors: scale and shift, and their running statistics."""
        return frozenset(normalization_of(self.network.build()))

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names of the trained parameters; all other tensors are statistics."""
        return frozenset(entry.name for entry in self.layout.select(True))

    def initial(self, seed: int) -> Tensors:
        """Return the initial model: randomly initialized, with pretrained tensors where there are any."""
        return {**self.network.initial(seed), **(self.weights or {})}

    def weight(self, examples: int) -> float:
        """Return the weight in a mean of a client with this number of images."""
        return float(examples) if self.weighting == "examples" else 1.0


def _task(
    network: Network, recipe: Recipe, rounds: int, weighting: Any, weights: NDArray[np.uint8] | None, how: Averaging
) -> Task:
    unpacked_weights = None if weights is None else unpacked(weights)[""]
    return Task(network, recipe, rounds, weighting=weighting, weights=unpacked_weights, averaging=how)
