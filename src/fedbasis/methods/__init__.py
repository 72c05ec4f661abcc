"""The registry of methods. A built-in method is a file and a line here; your own is ``"module:Class"``."""

from importlib.metadata import entry_points

from fedbasis.methods.apfl import APFL
from fedbasis.methods.base import Method
from fedbasis.methods.ditto import Ditto
from fedbasis.methods.fed_mtl import FedMTL
from fedbasis.methods.fedamp import FedAMP
from fedbasis.methods.fedavg import FedAvg
from fedbasis.methods.fedbasis import FedBasis
from fedbasis.methods.fedbn import FedBn
from fedbasis.methods.fedem import FedEM
from fedbasis.methods.fedfomo import FedFomo
from fedbasis.methods.fedper import FedPer
from fedbasis.methods.fedprox import FedProx
from fedbasis.methods.fedrep import FedRep
from fedbasis.methods.fedrod import FedRoD
from fedbasis.methods.ifca import IFCA
from fedbasis.methods.kmeans_k import KMeansK
from fedbasis.methods.knn_per import KNNPer
from fedbasis.methods.l2gd import L2GD
from fedbasis.methods.lg_fedavg import LgFedAvg
from fedbasis.methods.local import Local
from fedbasis.methods.pca_k import PCAK
from fedbasis.methods.per_fedavg import PerFedAvg
from fedbasis.methods.per_fedavg_hf import PerFedAvgHF
from fedbasis.methods.pfedgp import PFedGP
from fedbasis.methods.pfedhn import PFedHN
from fedbasis.methods.pfedme import PFedMe
from fedbasis.methods.scaffold import Scaffold
from fedbasis.networks.resolve import reference_of, resolve
from pflbed.errors import InputError

METHODS: dict[str, type[Method]] = {
    method.about.name: method
    for method in (
        Local, FedAvg, FedProx, Scaffold, FedMTL, PerFedAvg, PerFedAvgHF, PFedMe, Ditto, APFL, L2GD, LgFedAvg, FedPer,
        FedRep, FedBn, PFedHN, KNNPer, PCAK, KMeansK, FedBasis, IFCA, FedEM, FedRoD, FedFomo, FedAMP, PFedGP,
    )
}  # fmt: skip
"""The built-in methods by name."""


def find_method(name: str) -> type[Method]:
    """Return a method class: a built-in one by name, ``"module:Class"``, or an entry point ``fedbasis.methods``."""
    method = resolve(name, METHODS, "fedbasis.methods", "method")
    if not isinstance(method, type) or not issubclass(method, Method):
        raise InputError(f"The method '{name}' must be a subclass of fedbasis.Method, but it is {method!r:.80}.")
    return method


def known_methods() -> dict[str, type[Method]]:
    """Return the built-in methods and those that installed packages register."""
    added = [point.name for point in entry_points(group="fedbasis.methods") if point.name not in METHODS]
    return {**METHODS, **{name: find_method(name) for name in added}}


def name_of(method: type[Method]) -> str:
    """Return the name of a method class for ``find_method``."""
    name = method.about.name
    return name if METHODS.get(name) is method else reference_of(method)
