"""Names of runs in tables: a method, or a variant of one with settings and a title of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedbasis.methods import METHODS
from fedbasis.serving.personalize import label

Key = tuple[str, str]
"""A row of a table: the name of a run, which is that of a method or of a variant, and a way of personalizing."""


@dataclass(frozen=True)
class Variant:
    """A method under a name, with settings on top of the scale's."""

    name: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    """What tables call it; nothing: the method's own title."""


PRINTED = "fedbasis-paper"
VARIANTS: Mapping[str, Variant] = {
    variant.name: variant for variant in (Variant(PRINTED, "fedbasis", {"preset": "paper"}, "FedBasis (as printed)"),)
}


def variant(name: str) -> Variant:
    """Return the variant of this name; a method is its own."""
    return VARIANTS.get(name) or Variant(name, name)


def row_title(key: Key) -> str:
    """Name a row as tables do: ``FedAvg + FT``, ``FedBasis (as printed)``."""
    name, how = key
    found = variant(name)
    plain = label(found.method, how)
    return plain.replace(METHODS[found.method].about.title, found.title, 1) if found.title else plain
