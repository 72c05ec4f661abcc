"""PFLBed: turn a cross-domain image dataset into a faithful benchmark for personalized federated learning."""

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
