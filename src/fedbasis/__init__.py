"""FedBasis: personal image classifiers for clients nobody has seen before.

Many clients learn a few shareable basis models together; a new client learns only how to combine them, on its own few
images, and gets one ordinary network. The names below are the public interface; they are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "About": "fedbasis.methods.base",
    "FedAvg": "fedbasis.methods.fedavg",
    "FedBasis": "fedbasis.methods.fedbasis",
    "InputError": "pflbed.errors",
    "METHODS": "fedbasis.methods",
    "Method": "fedbasis.methods.base",
    "MethodConfig": "fedbasis.methods.task",
    "Network": "fedbasis.networks.models",
    "Personal": "fedbasis.experiment.api",
    "Scores": "fedbasis.experiment.api",
    "Trained": "fedbasis.experiment.api",
    "Ways": "fedbasis.methods.base",
    "bases_from": "fedbasis.experiment.post_processing",
    "evaluate": "fedbasis.experiment.api",
    "load": "fedbasis.experiment.api",
    "personalize": "fedbasis.experiment.api",
    "show_progress": "fedbasis.cli.display",
    "train": "fedbasis.experiment.api",
}
"""Where a public name is defined."""

__all__ = [
    "METHODS",
    "About",
    "FedAvg",
    "FedBasis",
    "InputError",
    "Method",
    "MethodConfig",
    "Network",
    "Personal",
    "Scores",
    "Trained",
    "Ways",
    "bases_from",
    "evaluate",
    "load",
    "personalize",
    "show_progress",
    "train",
]

if TYPE_CHECKING:
    from fedbasis.cli.display import show_progress
    from fedbasis.experiment.api import Personal, Scores, Trained, evaluate, load, personalize, train
    from fedbasis.experiment.post_processing import bases_from
    from fedbasis.methods import METHODS
    from fedbasis.methods.base import About, Method, Ways
    from fedbasis.methods.fedavg import FedAvg
    from fedbasis.methods.fedbasis import FedBasis
    from fedbasis.methods.task import MethodConfig
    from fedbasis.networks.models import Network
    from pflbed.errors import InputError


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedbasis' has no attribute {name!r}")
    found = getattr(import_module(_HOME[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
