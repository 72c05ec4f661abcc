"""The registry of methods: adding one is a file beside this and a line here."""

from fedbasis.algorithms.base import Method
from fedbasis.algorithms.fedavg import FedAvg
from fedbasis.algorithms.fedbasis import FedBasis

METHODS: dict[str, type[Method]] = {method.name: method for method in (FedAvg, FedBasis)}
