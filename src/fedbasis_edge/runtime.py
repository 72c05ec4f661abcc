"""onnxruntime, with telemetry off, and only with graphs and data that were checked."""

import os
from collections.abc import Mapping
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the import: some builds ask for it then

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from pflbed.errors import InputError

ort.disable_telemetry_events()
ort.set_default_logger_severity(4)


class Graph:
    """A graph that can be run.

    Args:
        data: The checked ONNX file.
        name: What errors call it.
        external: The files that hold its constants, by name.
        threads: Threads of an operator; 0: one per core.
    """

    def __init__(self, data: bytes, name: str, external: Mapping[str, bytes] | None = None, threads: int = 0) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        if external:
            options.add_external_initializers_from_files_in_memory(
                list(external), list(external.values()), [len(one) for one in external.values()]
            )
        self._name = name
        try:
            self._session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        except Exception as error:
            raise InputError(
                f"{name} must be a graph that onnxruntime can open, but it is not ({_why(error)})."
            ) from error
        self.inputs = {one.name: one.shape for one in self._session.get_inputs()}
        """The shapes of the inputs by name; a dimension of any size is a text."""
        self._outputs = [one.name for one in self._session.get_outputs()]

    def __call__(self, values: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Run the graph; of ``values`` it takes its own inputs."""
        if missing := self.inputs.keys() - values.keys():
            raise InputError(f"{self._name} must need known inputs only, but it needs '{sorted(missing)[0]}'.")
        try:
            made = self._session.run(None, {name: values[name] for name in self.inputs})
        except Exception as error:
            raise InputError(f"{self._name} must run on these images, but it does not ({_why(error)}).") from error
        return {name: np.asarray(value) for name, value in zip(self._outputs, made, strict=True)}


def _why(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:160]
