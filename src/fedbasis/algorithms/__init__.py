"""The registry of methods: adding one is a file beside this and a line here."""

from fedbasis.algorithms.base import Method
from fedbasis.algorithms.fedavg import FedAvg
from fedbasis.algorithms.fedbasis import FedBasis
from pflbed.errors import InputError

METHODS: dict[str, type[Method]] = {method.name: method for method in (FedAvg, FedBasis)}


def method_named(name: str) -> type[Method]:
    """Return the class of a method, or say which there are."""
    if name not in METHODS:
        raise InputError(f"The method must be one of {', '.join(METHODS)}, but it is '{name}'.")
    return METHODS[name]
