"""Compare exported graphs, as onnxruntime runs them, with the same functions in torch, float64 and autograd.

Random pixels are used: on flat areas of real images, values tie, and a tie may be broken in two ways.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbasis.edge.packages import session
from fedbasis.edge.skeleton import float_arrays, with_weights
from fedbasis.edge.step import BETAS, NewClientGraphs
from fedbasis.methods.fedbasis.bases import BasisSet
from fedbasis.networks.models import sides
from fedbasis.tensors.params import State
from fedbasis.tensors.seeding import numpy_generator
from pflbed.errors import InputError

IMAGES = 5
LARGEST = 1e-4
"""The largest relative difference that is accepted; a wrong operator gives one of about 1."""
FACTOR = 10
"""Where torch itself loses digits in float32, so many times its difference is accepted."""
WEIGHT = 0.25
"""The weight of the client's own statistics where they are shrunk."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Relative differences from float64, by what is compared; the statistics' are 0 if a network has none."""

    loss: float
    psi_gradient: float
    classifier_gradient: float
    logits: float
    model: float
    statistics: float = 0.0
    measured: float = 0.0

    @property
    def largest(self) -> float:
        """The largest of them."""
        return float(max(asdict(self).values()))


@dataclass(frozen=True)
class Case:
    """What graphs are run on."""

    psi: Tensor
    offset: Tensor
    pixels: Tensor
    labels: Tensor
    own: Tensor | None = None
    """The client's own statistics, if it has any."""
    weight: Tensor | None = None

    @classmethod
    def of(cls, graphs: NewClientGraphs, images: int = IMAGES) -> "Case":
        """Draw random images and a random state, but for the statistics."""
        generator, task = numpy_generator(0, "verify an edge export"), graphs.method.task
        shape = (images, *sides(task.recipe.preprocessing.resolution), task.network.channels)
        pixels = generator.integers(0, 256, shape, dtype=np.uint8)
        labels = generator.integers(0, task.network.classes, images, dtype=np.int64)
        psi = generator.normal(size=(len(graphs.blocks), graphs.method.config.bases)).astype(np.float32)
        offset = 0.01 * generator.normal(size=task.layout.size(graphs.classifier, True)).astype(np.float32)
        return cls(*(torch.from_numpy(array) for array in (psi, offset, pixels, labels)))


@dataclass(frozen=True)
class Gradients:
    """What one backward pass gives."""

    loss: Tensor
    psi: Tensor
    classifier: Tensor
    after: Mapping[str, Tensor] = field(default_factory=dict)
    """The ``statistics`` after the step, if there are any."""


def relative(got: Any, expected: Tensor) -> float:
    """Return the norm of a difference divided by the norm of what is expected."""
    difference = torch.as_tensor(got).detach().double().reshape(-1) - expected.detach().double().reshape(-1)
    return float(difference.norm() / expected.detach().double().norm().clamp_min(1e-6))


class TorchClient:
    """The functions of a new client in torch and autograd, of any precision."""

    def __init__(self, graphs: NewClientGraphs, state: State, dtype: torch.dtype = torch.float64) -> None:
        self.graphs, self.dtype = NewClientGraphs(graphs.method, graphs.statistics, dtype), dtype
        bases = BasisSet.from_state(graphs.method.task.layout, state)
        self.matrices = [matrix.to(dtype) for matrix in bases.weights]
        if graphs.combines_statistics:
            self.matrices += [matrix.to(dtype) for matrix in bases.statistics if matrix.shape[1]]

    def statistics(self, case: Case) -> Tensor | None:
        """Return the statistics that normalize."""
        own, weight = (None if value is None else value.to(self.dtype) for value in (case.own, case.weight))
        if self.graphs.combines_statistics:
            return self.graphs.combined_statistics(self.matrices, case.psi.to(self.dtype), own, weight)
        return own

    def gradients(self, case: Case) -> Gradients:
        """Return the loss of a batch and its gradients."""
        psi, offset = (value.to(self.dtype, copy=True).requires_grad_() for value in (case.psi, case.offset))
        flats = self.graphs.combined(self.matrices, psi, offset)
        loss, after = self.graphs.loss(flats, self.statistics(case), case.pixels, case.labels)
        of_psi, of_offset = torch.autograd.grad(loss, [psi, offset], allow_unused=True, materialize_grads=True)
        return Gradients(loss, of_psi, of_offset, after)

    @torch.no_grad()
    def measure(self, pixels: Tensor) -> Tensor:
        """Return the statistics of images."""
        return self.graphs.measure(self.matrices, {"pixels": pixels})["statistics"]

    @torch.no_grad()
    def model(self, case: Case) -> dict[str, Tensor]:
        """Return the parameters and statistics of the current model."""
        flats = self.graphs.combined(self.matrices, case.psi.to(self.dtype), case.offset.to(self.dtype))
        used = self.statistics(case)
        kept = {} if used is None else self.graphs.named(used.split_with_sizes(self.graphs.statistics_sizes), False)
        return {**self.graphs.named(flats, True), **kept}

    @torch.no_grad()
    def logits(self, case: Case) -> Tensor:
        """Return the logits of the images with the current model."""
        return self.graphs.forward(self.graphs.module.eval(), self.model(case), None, case.pixels)[0]


def _combined(graphs: NewClientGraphs, combine: bytes, folder: Path, case: Case) -> dict[str, NDArray[np.float32]]:
    """Return the current model by name, as a client without torch makes it."""
    graph = session(combine, folder)
    given = {"psi": case.psi, "offset": case.offset, "statistics": case.own, "weight": case.weight}
    feeds = {one.name: given[one.name].numpy() for one in graph.get_inputs()}  # type: ignore[union-attr]
    made = dict(zip((one.name for one in graph.get_outputs()), graph.run(None, feeds), strict=True))
    flat, kept = torch.from_numpy(made["weights"]), case.own
    if "statistics_out" in made:
        kept = torch.from_numpy(made["statistics_out"])
    sizes = [graphs.method.task.layout.size(block, True) for block in graphs.blocks]
    named = graphs.named(flat.split_with_sizes(sizes), True)
    named |= {} if kept is None else graphs.named(kept.split_with_sizes(graphs.statistics_sizes), False)
    return float_arrays(named)


def verify(graphs: NewClientGraphs, state: State, files: Mapping[str, bytes], folder: Path) -> Errors:
    """Run the graphs on random images and compare; an ``InputError`` if they differ by more than ``LARGEST``.

    Args:
        graphs: What was exported.
        state: The published bases.
        files: The graphs by file name.
        folder: The published folder, which holds the tensors.
    """
    exact, case = TorchClient(graphs, state), Case.of(graphs)
    errors: dict[str, float] = {}
    feeds: dict[str, Any] = {name: getattr(case, name).numpy() for name in ("psi", "offset", "pixels")}
    if "statistics.onnx" in files:
        (measured,) = session(files["statistics.onnx"], folder).run(None, {"pixels": feeds["pixels"]})
        errors["measured"] = relative(measured, exact.measure(case.pixels))
        feeds["statistics"] = measured
        own, weight = torch.from_numpy(measured), torch.tensor(WEIGHT) if graphs.combines_statistics else None
        case = Case(case.psi, case.offset, case.pixels, case.labels, own, weight)
        feeds |= {} if weight is None else {"weight": weight.numpy()}
    expected = exact.logits(case)
    (logits,) = session(files["apply.onnx"], folder).run(None, feeds)
    errors["logits"] = relative(logits, expected)
    whole = with_weights(files["skeleton.onnx"], _combined(graphs, files["combine.onnx"], folder, case))
    inputs = exact.graphs.inputs(case.pixels).float().contiguous().numpy()
    (logits,) = session(whole).run(None, {"images": inputs})
    errors["model"] = relative(logits, expected)
    zeros = {"first": torch.zeros_like(case.psi), "velocity": torch.zeros_like(case.offset), "rates": torch.zeros(3)}
    if graphs.optimizer == "adam":
        zeros |= {"second": torch.zeros_like(case.psi), "steps": torch.zeros(())}
    feeds |= {"labels": case.labels.numpy(), **{name: value.numpy() for name, value in zeros.items()}}
    step = session(files["step.onnx"], folder)
    outputs = dict(zip((one.name for one in step.get_outputs()), step.run(None, feeds), strict=True))
    right, usual = exact.gradients(case), TorchClient(graphs, state, torch.float32).gradients(case)
    share = 1 - BETAS[0] if graphs.optimizer == "adam" else 1.0
    errors["loss"] = relative(outputs["loss"], right.loss)
    errors["psi_gradient"] = relative(outputs["first_out"] / share, right.psi)
    errors["classifier_gradient"] = relative(outputs["velocity_out"], right.classifier)
    if "statistics_out" in outputs:
        errors["statistics"] = relative(outputs["statistics_out"], right.after["statistics"])
    lost = {
        "psi_gradient": relative(usual.psi, right.psi),
        "classifier_gradient": relative(usual.classifier, right.classifier),
    }
    for name, error in errors.items():
        limit = max(LARGEST, FACTOR * lost.get(name, 0.0))
        if not error <= min(limit, 0.1):
            raise InputError(
                f"The exported graphs must agree with torch to {limit:.0e}, but {name.replace('_', ' ')} differs by "
                f"{error:.1g}; nothing was written. Use another version of torch, or report this."
            )
    return Errors(**errors)
