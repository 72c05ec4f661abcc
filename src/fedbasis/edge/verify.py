"""Compare exported graphs, as onnxruntime runs them, with the same functions in torch, float64 and autograd.

Random pixels are used: on flat areas of real images, values tie, and a tie may be broken in two ways.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
        return max(asdict(self).values())


def relative(got: Any, expected: Tensor) -> float:
    """Return the norm of a difference divided by the norm of what is expected."""
    difference = torch.as_tensor(got).double().reshape(-1) - expected.detach().double().reshape(-1)
    return float(difference.norm() / expected.detach().double().norm().clamp_min(1e-6))


def verify(graphs: NewClientGraphs, state: State, files: Mapping[str, bytes], folder: Path) -> Errors:
    """Run the graphs on random images and compare; an ``InputError`` if they differ by more than ``LARGEST``.

    Args:
        graphs: What was exported.
        state: The published bases.
        files: The graphs by file name.
        folder: The published folder, which holds the tensors.
    """
    exact = ExactClient(graphs, state)
    generator = numpy_generator(0, "verify an edge export")
    task = graphs.method.task
    shape = (IMAGES, *sides(task.recipe.preprocessing.resolution), task.network.channels)
    pixels = generator.integers(0, 256, shape, dtype=np.uint8)
    labels = generator.integers(0, task.network.classes, IMAGES, dtype=np.int64)
    psi = generator.normal(size=(len(graphs.blocks), graphs.method.config.bases)).astype(np.float32)
    offset = 0.01 * generator.normal(size=task.layout.size(graphs.classifier, True)).astype(np.float32)
    found = exact.compare(files, folder, psi, offset, pixels, labels)
    if not found.largest <= LARGEST:
        name, worst = max(asdict(found).items(), key=lambda item: (item[1] != item[1], item[1]))
        raise InputError(
            f"The exported graphs must agree with torch to {LARGEST:g}, but {name.replace('_', ' ')} differs by "
            f"{worst:.1g}; nothing was written. Use another version of torch, or report this."
        )
    return found


class ExactClient:
    """The functions of a new client in torch, float64 and autograd."""

    def __init__(self, graphs: NewClientGraphs, state: State) -> None:
        self.graphs = NewClientGraphs(graphs.method, graphs.statistics, torch.float64)
        layout = graphs.method.task.layout
        bases = BasisSet.from_state(layout, state)
        matrices = [matrix.double() for matrix in bases.weights]
        if graphs.combines_statistics:
            matrices += [matrix.double() for matrix in bases.statistics if matrix.shape[1]]
        self.matrices: Sequence[Tensor] = matrices

    def gradients(
        self,
        psi: Tensor,
        offset: Tensor,
        statistics: Tensor | None,
        weight: Tensor | None,
        pixels: Tensor,
        labels: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return the loss, its gradients by psi and by the offset, and the statistics after the step."""
        psi, offset = psi.double().requires_grad_(), offset.double().requires_grad_()
        flats = self.graphs.combined(self.matrices, psi, offset)
        used = self.statistics(psi.detach(), statistics, weight)
        loss, kept = self.graphs.loss(flats, used, pixels, labels)
        of_psi, of_offset = torch.autograd.grad(loss, [psi, offset])
        return loss, of_psi, of_offset, kept

    def statistics(self, psi: Tensor, own: Tensor | None, weight: Tensor | None) -> Tensor | None:
        """Return the statistics that normalize."""
        if self.graphs.combines_statistics:
            return self.graphs.combined_statistics(self.matrices, psi, own, weight)
        return own

    def compare(
        self, files: Mapping[str, bytes], folder: Path, psi: NDArray[np.float32], offset: NDArray[np.float32],
        pixels: NDArray[np.uint8], labels: NDArray[np.int64],
    ) -> Errors:  # fmt: skip
        """Run all graphs, whose bases are in a folder, and return how far they are from these functions."""
        graphs, images = self.graphs, torch.from_numpy(pixels)
        errors: dict[str, float] = {}
        feeds: dict[str, Any] = {"psi": psi, "offset": offset, "pixels": pixels}
        own = weight = None
        if "statistics.onnx" in files:
            (measured,) = session(files["statistics.onnx"], folder).run(None, {"pixels": pixels})
            with torch.no_grad():
                errors["measured"] = relative(measured, graphs.measure(self.matrices, {"pixels": images})["statistics"])
            feeds["statistics"], own = measured, torch.from_numpy(measured).double()
            if graphs.combines_statistics:
                feeds["weight"], weight = np.float32(0.25), torch.tensor(0.25, dtype=torch.float64)
        (logits,) = session(files["apply.onnx"], folder).run(None, feeds)
        now = torch.from_numpy(psi).double(), torch.from_numpy(offset).double()
        with torch.no_grad():
            flats = graphs.combined(self.matrices, *now)
            weights, used = graphs.named(flats, True), self.statistics(now[0], own, weight)
            expected, _ = graphs.forward(graphs.module.eval(), weights, used, images)
            kept = {} if used is None else graphs.named(used.split_with_sizes(graphs.statistics_sizes), False)
            inputs = graphs.inputs(images).float().contiguous().numpy()
        errors["logits"] = relative(logits, expected)
        whole = with_weights(files["skeleton.onnx"], float_arrays({**weights, **kept}))
        (logits,) = session(whole).run(None, {"images": inputs})
        errors["model"] = relative(logits, expected)
        zeros = {"first": np.zeros_like(psi), "velocity": np.zeros_like(offset)}
        if graphs.optimizer == "adam":
            zeros |= {"second": np.zeros_like(psi), "steps": np.zeros((), np.float32)}
        step = session(files["step.onnx"], folder)
        rates = np.zeros(3, np.float32)
        outputs = dict(
            zip(
                [one.name for one in step.get_outputs()],
                step.run(None, {**feeds, **zeros, "labels": labels, "rates": rates}),
                strict=True,
            )
        )
        loss, of_psi, of_offset, after = self.gradients(*now, own, weight, images, torch.from_numpy(labels))
        share = 1 - BETAS[0] if graphs.optimizer == "adam" else 1.0
        errors["loss"] = relative(outputs["loss"], loss)
        errors["psi_gradient"] = relative(outputs["first_out"] / share, of_psi)
        errors["classifier_gradient"] = relative(outputs["velocity_out"], of_offset)
        if "statistics_out" in outputs and after is not None:
            errors["statistics"] = relative(outputs["statistics_out"], after)
        return Errors(**errors)
