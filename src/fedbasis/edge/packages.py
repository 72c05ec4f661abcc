"""The optional packages of the edge export, imported when they are needed."""

import os
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pflbed.errors import InputError


def _required(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"{what} needs the package {name}, but it is not installed; run pip install -e '.[edge]' in the checkout."
        ) from error


@lru_cache(maxsize=1)
def onnx() -> Any:
    """Return the package onnx."""
    package = _required("onnx", "An export to ONNX")
    import_module("onnx.checker")
    return package


@lru_cache(maxsize=1)
def onnxruntime() -> Any:
    """Return the package onnxruntime, with its telemetry off."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return _required("onnxruntime", "Verifying an export")


def session(model: bytes | Path, folder: Path | None = None, threads: int = 1) -> Any:
    """Open a graph in onnxruntime on the CPU.

    Args:
        model: The file, or its bytes.
        folder: Where the external data of a graph given as bytes are.
        threads: Threads of one operator.
    """
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
