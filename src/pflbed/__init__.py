"""PFLBed: turn a cross-domain image dataset into a faithful benchmark for personalized federated learning."""

from pflbed.bench_folder import load, write
from pflbed.benchmark import Benchmark
from pflbed.cache import Decoded, decode
from pflbed.client_data import Client, Clients, Images, clients
from pflbed.dataset import Dataset, find
from pflbed.errors import InputError
from pflbed.folders import scan, scan_client
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
    "find",
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
