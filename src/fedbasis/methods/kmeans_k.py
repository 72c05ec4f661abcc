"""k-means-k: FedAvg, and the k centroids of the last round's local models, from which a client chooses its model.

A baseline of Chen et al., "Federated Learning of Shareable Bases for Personalization-Friendly Image Classification",
AAAI 2024 (appendix, "Other baselines"): fine-tuned models theta_m are clustered by their parameters into k = 4 models,
    min over clusters C_k of sum_k sum_{m in C_k} w_m ||theta_m - c_k||^2,   c_k the (weighted) mean of its clients,
and a client uses the centroid it was assigned to. A new client has no theta_m, so it uses the centroid with the lowest
loss on its own data. k-means needs distances only: it runs on coordinates computed from the models' Gram matrix, as
many as there are models, in which all distances are those of the parameters.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedbasis.methods.base import MODEL, About, Adaptation, Context, MethodConfig, Updates, Ways
from fedbasis.methods.shared.last_round import LastRoundSummary, LastRoundSummaryUpdates
from fedbasis.networks.inputs import Examples
from fedbasis.tensors.params import State, Tensors
from fedbasis.tensors.seeding import seed_for
from pflbed.errors import InputError


class KMeansConfig(MethodConfig):
    """The number of centroids."""

    centroids: int = Field(4, ge=1, description="k, the number of centroids")


class KMeansKUpdates(LastRoundSummaryUpdates):
    """How an update is measured and averaged."""

    method: "KMeansK"

    def require_clients(self, count: int) -> None:
        """Raise an ``InputError`` if the last round has fewer models than centroids."""
        if count < self.method.config.centroids:
            raise InputError(
                f"{self.method.config.centroids} centroids need at least as many clients a round, but there are "
                f"{count}; lower 'centroids' or raise 'participation'."
            )


class KMeansK(LastRoundSummary):
    """The server's state is FedAvg's model, and after the last round also the centroids."""

    about: ClassVar[About] = replace(
        LastRoundSummary.about,
        name="kmeans-k",
        title="k-means-k",
        paper="Chen et al. 2024",
        sends="1 model",
        new_client="the centroid with the lowest loss on its data (centroid); +LP; +FT",
    )
    updates_type: ClassVar[type[Updates]] = KMeansKUpdates
    ways: ClassVar[Ways] = Ways(
        own=("centroid",),
        default=("centroid", "centroid+lp", "centroid+ft"),
        rate_free=("centroid",),
    )
    Config: ClassVar[type[MethodConfig]] = KMeansConfig
    prefix: ClassVar[str] = "centroid"
    config: KMeansConfig

    def summary(self, mean: Tensors, models: Sequence[Tensors], weights: Tensor, seed: int) -> list[Tensors]:
        """Return every cluster's mean, statistics included; for an empty cluster the mean of all models."""
        labels = self.cluster(self.gram(models, weights), weights, seed)
        means = [self.task.averaging.mean() for _ in range(self.count)]
        for label, model, weight in zip(labels, models, weights.tolist(), strict=True):
            means[label].add(model, weight)
        return [one.result() if k in labels else mean for k, one in enumerate(means)]

    def cluster(self, gram: Tensor, weights: Tensor, seed: int) -> list[int]:
        """Return the cluster of every model, by the Gram matrix of the models' deviations from their mean."""
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning

        values, vectors = torch.linalg.eigh(gram)
        points = (vectors * values.clamp_min(0).sqrt()).numpy()
        start = seed_for(seed, "k-means") % 2**32
        kmeans = KMeans(min(self.count, len(points)), n_init=10, random_state=start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different models than centroids
            labels: list[int] = kmeans.fit(points, sample_weight=weights.numpy()).labels_.tolist()
        return labels

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Choose the centroid with the lowest loss; before the last round there is only the mean."""
        yield from self.serve_lowest(self.found(server) or [server[MODEL]], data, context)
