"""PCA-k: FedAvg, and the k principal components of the last round's local models, which span personal models.

A baseline of Chen et al., "Federated Learning of Shareable Bases for Personalization-Friendly Image Classification",
AAAI 2024 (appendix, "Other baselines"): fine-tuned models theta_m, vectorized, with mean t, are represented by the top
k eigenvectors u_1..u_k of their covariance,
    theta_m ~ t + sum_k <u_k, theta_m - t> u_k.
A new client fine-tunes t and projects the result onto the components. The eigenvectors are computed from the M x M Gram
matrix of the deviations D (M clients with weights w that add up to one): with
diag(w)^1/2 D D^T diag(w)^1/2 = V L V^T, component k is D^T diag(w)^1/2 v_k / l_k^1/2. A component has zeros for
normalization statistics, so those of every projected model are the mean model's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedbasis.methods.base import MODEL, About, Adaptation, Context, MethodConfig, Updates, Ways
from fedbasis.methods.shared.last_round import LastRoundSummary, LastRoundSummaryUpdates
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import by_epoch, sgd_steps
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors
from pflbed.errors import InputError

NOISE = 1e-12
"""Eigenvalues below this share of the largest one are rounding errors and are dropped."""


class PCAConfig(MethodConfig):
    """The number of principal components."""

    components: int = Field(4, ge=1, description="k, the number of principal components")


class PCAKUpdates(LastRoundSummaryUpdates):
    """How an update is measured and averaged."""

    method: "PCAK"

    def require_clients(self, count: int) -> None:
        """Raise an ``InputError`` if there are too few clients: M models have M - 1 components around their mean."""
        if count <= self.method.config.components:
            raise InputError(
                f"{self.method.config.components} components need more clients than that a round, but there are "
                f"{count}; lower 'components' or raise 'participation'."
            )


class PCAK(LastRoundSummary):
    """The server's state is FedAvg's model, and after the last round also the components."""

    about: ClassVar[About] = replace(
        LastRoundSummary.about,
        name="pca-k",
        title="PCA-k",
        paper="Chen et al. 2024",
        sends="1 model",
        new_client="fine-tunes the mean model and projects it onto the components (projection)",
    )
    updates_type: ClassVar[type[Updates]] = PCAKUpdates
    ways: ClassVar[Ways] = Ways(own=("projection",), default=("projection",))
    Config: ClassVar[type[MethodConfig]] = PCAConfig
    prefix: ClassVar[str] = "component"
    config: PCAConfig

    def summary(self, mean: Tensors, models: Sequence[Tensors], weights: Tensor, seed: int) -> list[Tensors]:
        """Return the components, the largest first; missing ones are zero."""
        root = (weights / weights.sum()).sqrt()
        values, vectors = torch.linalg.eigh(root[:, None] * self.gram(models, weights) * root)
        mixing = torch.zeros(self.count, len(models), dtype=torch.float64)
        for k, place in enumerate(reversed(range(len(models)))):  # eigenvalues ascend
            if k < len(mixing) and values[place] > NOISE * values[-1]:
                mixing[k] = root * vectors[:, place] / values[place].sqrt()
        components = [{name: torch.zeros_like(tensor) for name, tensor in mean.items()} for _ in mixing]
        for entry in self.task.layout.select(True):
            flats = torch.cat([mixing @ rows for rows in self.deviations(models, weights, [entry.name])], dim=1)
            for component, flat in zip(components, flats, strict=True):
                component[entry.name].copy_(flat.view(entry.shape))
        return components

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Fine-tune the mean model; after every epoch yield its projection onto the components."""
        model, device = context.model, context.model.weights[0].device
        model.load(server[MODEL])
        rows = [self.task.layout.flatten(component) for component in self.found(server)]
        span = [  # no rows before the last round
            torch.stack([row[block] for row in rows]).to(device) if rows else flat.new_zeros(0, len(flat))
            for block, flat in enumerate(model.weights)
        ]
        start = _copy(model)
        steps = sgd_steps(model, data, plan.recipe(self.task.recipe), context.generator("adapt"))
        for epoch, loss in enumerate(by_epoch(steps), start=1):
            tuned = _copy(model)
            c = project(model, start, span)
            yield loss, {"coefficients": c.cpu()}
            if epoch < plan.epochs:  # continue from the model before the projection
                _paste(model, tuned)


def project(model: FlatModel, start: Sequence[Tensor], span: Sequence[Tensor]) -> Tensor:
    """Replace the model by its projection onto ``start`` plus the span of orthonormal rows; return the coordinates."""
    moved = [flat - origin for flat, origin in zip(model.weights, start[: len(model.weights)], strict=True)]
    _paste(model, start)
    c = torch.stack([torch.mv(rows, flat) for rows, flat in zip(span, moved, strict=True)]).sum(0)
    for flat, rows in zip(model.weights, span, strict=True):
        flat.add_(torch.mv(rows.t(), c))
    return c


def _copy(model: FlatModel) -> list[Tensor]:
    return [flat.clone() for flat in model.weights + model.statistics]


def _paste(model: FlatModel, flats: Sequence[Tensor]) -> None:
    for flat, value in zip(model.weights + model.statistics, flats, strict=True):
        flat.copy_(value)
