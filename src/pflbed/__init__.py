"""PFLBed: turn a cross-domain image dataset into a faithful benchmark for personalized federated learning.

The names below are the public interface; they are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Benchmark": "pflbed.benchmark",
    "Client": "pflbed.client_data",
    "ClientView": "pflbed.client_data",
    "Clients": "pflbed.client_data",
    "Dataset": "pflbed.dataset",
    "Decoded": "pflbed.cache",
    "Images": "pflbed.client_data",
    "InputError": "pflbed.errors",
    "Spec": "pflbed.spec",
    "Table": "pflbed.table",
    "bootstrap_interval": "pflbed.score",
    "build": "pflbed.split",
    "clients": "pflbed.client_data",
    "decode": "pflbed.cache",
    "digits4": "pflbed.in_memory",
    "find": "pflbed.dataset",
    "from_arrays": "pflbed.in_memory",
    "from_dataset": "pflbed.adapters",
    "global_accuracy": "pflbed.score",
    "label_mismatch": "pflbed.score",
    "load": "pflbed.bench_folder",
    "load_manifest": "pflbed.manifest",
    "personalized_accuracy": "pflbed.score",
    "scan": "pflbed.folders",
    "scan_client": "pflbed.folders",
    "weighted_accuracy": "pflbed.score",
    "write": "pflbed.bench_folder",
}
"""Where a public name is defined."""

__all__ = [
    "Benchmark",
    "Client",
    "ClientView",
    "Clients",
    "Dataset",
    "Decoded",
    "Images",
    "InputError",
    "Spec",
    "Table",
    "bootstrap_interval",
    "build",
    "clients",
    "decode",
    "digits4",
    "find",
    "from_arrays",
    "from_dataset",
    "global_accuracy",
    "label_mismatch",
    "load",
    "load_manifest",
    "personalized_accuracy",
    "scan",
    "scan_client",
    "weighted_accuracy",
    "write",
]

if TYPE_CHECKING:
    from pflbed.adapters import from_dataset
    from pflbed.bench_folder import load, write
    from pflbed.benchmark import Benchmark
    from pflbed.cache import Decoded, decode
    from pflbed.client_data import Client, Clients, ClientView, Images, clients
    from pflbed.dataset import Dataset, find
    from pflbed.errors import InputError
    from pflbed.folders import scan, scan_client
    from pflbed.in_memory import digits4, from_arrays
    from pflbed.manifest import load_manifest
    from pflbed.score import (
        bootstrap_interval,
        global_accuracy,
        label_mismatch,
        personalized_accuracy,
        weighted_accuracy,
    )
    from pflbed.spec import Spec
    from pflbed.split import build
    from pflbed.table import Table


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pflbed' has no attribute {name!r}")
    found = getattr(import_module(_HOME[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
