"""A client's local round of FedBasis: learn the coefficients, sharpen them, train the bases (equation 9)."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fedbasis.methods.fedbasis import coefficients
from fedbasis.methods.fedbasis.config import FedBasisConfig
from fedbasis.methods.fedbasis.learning import (
    AnyBases,
    LocalWork,
    learn_coefficients,
    train_bases,
    train_factored,
    watch_rebuilt,
)
from fedbasis.methods.fedbasis.upload import Upload
from fedbasis.networks.train import MeanLoss
from fedbasis.tensors.params import State


def train_locally(
    config: FedBasisConfig,
    work: LocalWork,
    load: Callable[[], AnyBases],
    psi: Tensor,
    *,
    coefficient_batches: torch.Generator,
    basis_batches: torch.Generator,
) -> tuple[State, Tensor, dict[str, float]]:
    """Learn ``psi`` in place and train the bases.

    Args:
        config: The settings of FedBasis.
        work: The working model, the images and the recipe.
        load: Returns the bases; they are loaded here so that they can be freed when one model is enough.
        psi: The coefficients, updated in place.
        coefficient_batches: Draws the batches while the coefficients are learned.
        basis_batches: Draws the batches while the bases are trained.

    Returns:
        The upload, the sharpened coefficients, and the losses.
    """
    bases = load()
    settings, psi_loss = config.coefficients_at(config.coefficient_statistics), MeanLoss()
    whole = bases if config.upload == "full" else None
    if config.coordinate_descent:
        epochs = work.recipe.epochs if config.coefficient_epochs is None else config.coefficient_epochs
        coefficient_work = replace(work, recipe=replace(work.recipe, epochs=epochs))
        for _, step_loss in learn_coefficients(coefficient_work, bases, psi, coefficient_batches, settings):
            psi_loss.add(step_loss)
    per_model = config.rate == "per-model"
    if config.factored:
        weights = coefficients.alpha(psi, config.tau)
        c = coefficients.combination(weights, config.major)
        bases.combine_into(c, work.model)
        watch = watch_rebuilt(bases.stacked(), psi, c, work.model, work.watch) if work.watch else None
        del bases  # one model is all that the basis epochs need
        loss, a = train_factored(work, c, basis_batches, per_model, watch)
        upload, trained = Upload(work.model.tensors(), weights.cpu(), a), None
    else:
        joint = None if config.coordinate_descent else settings
        loss, moved = train_bases(
            work, bases.stacked(), psi, config.tau, basis_batches, per_model, config.basis_optimizer, joint
        )
        weights, trained = coefficients.alpha(psi, config.tau), moved.weights
        upload = Upload(work.model.tensors(), weights.cpu(), torch.ones(len(weights), dtype=torch.float64))
    sent = upload.factored() if whole is None else upload.full(whole.stacked(), config.aggregation == "usage", trained)
    return sent, weights, {"loss": loss.value(), "coefficient_loss": psi_loss.value()}
