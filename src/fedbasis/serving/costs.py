"""What a way of personalizing costs a new client besides time: numbers that it learns, and bytes that it downloads.

Both follow from a method's settings and the shapes of its tensors, so that they are known of every finished run.
"""

from dataclasses import dataclass
from math import prod

from fedbasis.methods.base import Learns, Method
from fedbasis.serving.automatic import PRIOR
from fedbasis.serving.personalize import FROM_PRIOR, default_statistics, split_way, without_prior
from fedbasis.tensors.files import Header


@dataclass(frozen=True)
class LearnedNumbers:
    """How many numbers a new client learns."""

    trained: int
    """Trained weights, coefficients, and a class prior."""
    per_image: int = 0
    """Numbers that are stored of each of its images."""
    statistics: int = 0
    """Running statistics that are replaced by its own, or moved towards them."""

    def __str__(self) -> str:
        trained = f"{self.trained:,}" if self.trained or not self.per_image else ""
        stored = f"{self.per_image:,} an image" if self.per_image else ""
        statistics = f"{self.statistics:,} statistics" if self.statistics else ""
        return " + ".join(part for part in (trained, stored, statistics) if part)


def learned_numbers(method: Method, how: str, statistics: str = "") -> LearnedNumbers | None:
    """Count the numbers that a new client learns.

    Args:
        method: The method.
        how: The way of personalizing, such as ``prior+lp`` or ``ft@frozen``.
        statistics: The normalization statistics, where the way does not fix them; empty: the way's default.

    Returns:
        The counts; None where a method does not say what its own way learns.
    """
    way, fixed = split_way(how)
    learns = _learns(method, without_prior(way))
    if learns is None:
        return None
    names, layout = learns.parameters, method.task.layout
    if way == PRIOR or way.startswith(FROM_PRIOR):
        names |= {f"{method.task.classifier}.bias"}
    moved = (fixed or statistics or default_statistics(method, way)) != "frozen"
    return LearnedNumbers(
        sum(prod(layout.shapes[name]) for name in names) + learns.besides,
        learns.per_image,
        sum(prod(entry.shape) for entry in layout.select(False)) if moved else 0,
    )


def _learns(method: Method, way: str) -> Learns | None:
    task, own = method.task, (*method.ways.own, *method.ways.followed)
    if way in own:
        return method.serving.learns(way)
    first, _, then = way.rpartition("+")
    start = method.serving.learns(first) if first in own else Learns()
    if start is None or (first and first not in own):
        return None
    trained = {
        **dict.fromkeys(("none", PRIOR), frozenset[str]()),
        **dict.fromkeys(("ft", "ft-prox"), task.parameters),
        "lp": task.head & task.parameters,
        "bn": task.normalization & task.parameters,
    }
    if then not in trained:
        return None
    return Learns(parameters=start.parameters | trained[then], besides=start.besides, per_image=start.per_image)


def download_bytes(method: Method, how: str, published: Header) -> int:
    """Count the bytes of the tensors that a new client needs.

    A method's own ways need all that it publishes. Other ways start from one model, which the server can compute.

    Args:
        method: The method.
        how: The way of personalizing.
        published: The header of the file of the published tensors.
    """
    way = without_prior(split_way(how)[0])
    tensors = [tensor for group in published.values() for tensor in group.values()]
    if way in method.ways.own or way.rpartition("+")[0] in method.ways.own:
        return sum(prod(tensor.shape) * tensor.dtype.itemsize for tensor in tensors)
    itemsize = max(tensor.dtype.itemsize for tensor in tensors if tensor.dtype.is_floating_point)
    return sum(prod(shape) for shape in method.task.layout.shapes.values()) * itemsize
