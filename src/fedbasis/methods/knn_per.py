"""kNN-Per: FedAvg's predictions, mixed on every client with those of a kNN classifier on the client's own images.

Marfoq et al., "Personalized Federated Learning through Local Memorization", ICML 2022. Training is FedAvg. A client
then stores the features (the inputs of the classifier) and the labels of its images, and predicts

    p(y | x) = lam * p_knn(y | x) + (1 - lam) * p_global(y | x),
    p_knn(y | x) proportional to the sum over the k nearest stored images i of w_i 1[y_i = y].

With d_i the Euclidean distance of the features and D their number, the authors' code has
``w_i = exp(-d_i^2 / (D scale))`` (``kernel = "squared"``), and the paper's text ``w_i = exp(-d_i / scale)``
(``kernel = "distance"``), which hardly looks beyond the nearest image if distances are large. ``lam = "tuned"`` chooses
lam by leave-one-out on the client's own images: each is predicted from the others and from the global model, which was
not trained on any of them, so no further data are needed.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedbasis.methods.base import (
    About,
    Adaptation,
    Context,
    Learns,
    MethodConfig,
    Serving,
    Ways,
    require_labels,
    require_tensor,
)
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks.classifier import probabilities_and_features
from fedbasis.networks.inputs import Examples
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors
from pflbed.errors import InputError

GRID = [step / 10 for step in range(11)]
"""The values of lam among which a client chooses."""


class KNNPerConfig(MethodConfig):
    """The neighbours and their weight; the defaults are those of the authors' code."""

    k: int = Field(10, ge=1, description="number of nearest neighbours; all images if there are fewer")
    lam: float | Literal["tuned"] = Field(0.5, description="weight of the neighbours, 0 to 1, or chosen by each client")
    kernel: Literal["squared", "distance"] = Field(
        "squared", description="exponent: squared distance per feature (authors' code), or the distance (paper's text)"
    )
    scale: float = Field(1.0, gt=0, description="divisor of the exponent")

    def model_post_init(self, context: object, /) -> None:
        """Check the weight."""
        if self.lam != "tuned" and not 0 <= self.lam <= 1:
            raise ValueError("lam must be a number from 0 to 1, or 'tuned'")


class KNNPerServing(Serving):
    """How a personalized client predicts."""

    method: "KNNPer"

    def check_learned(self, learned: Tensors) -> None:
        """Check the features, labels and weight of the neighbours."""
        features = require_tensor(learned, "features", (None, None))
        labels = require_tensor(learned, "labels", (len(features),), torch.int64)
        require_labels(labels, self.method.task.network.classes)
        share = float(require_tensor(learned, "lam", ()))
        if not 0 <= share <= 1 or not len(features):
            raise InputError("A datastore must hold images and a weight from 0 to 1, but it does not.")

    def learns(self, way: str) -> Learns:
        """Return the features and the label of every image, and lam where the client chooses it."""
        layer = self.method.task.network.build().get_submodule(self.method.task.classifier)
        features = next(layer.parameters()).flatten(1).shape[1]
        return Learns(besides=int(self.method.config.lam == "tuned"), per_image=features + 1)

    def refit(self, way: str, data: Examples, context: Context) -> Tensors:
        """Store the client's images again, by the features of the model as it is now."""
        return self.method.datastore(data, context)[1]

    def probabilities(self, model: FlatModel, learned: Tensors, pixels: Tensor) -> Tensor:
        """Mix the model's prediction with the neighbours'; without a datastore it is the model's."""
        if "features" not in learned:
            return super().probabilities(model, learned, pixels)
        probabilities, features = self.method.features(model, pixels)
        lam = float(learned["lam"])
        return lam * self.method.vote(features, learned["features"], learned["labels"]) + (1 - lam) * probabilities


class KNNPer(FedAvg):
    """FedAvg in training; afterwards a datastore of features on every client."""

    about: ClassVar[About] = About(
        name="knn-per",
        title="kNN-Per",
        paper="Marfoq et al. 2022",
        sends="1 model",
        keeps="nothing in training; the features and labels of its images when it predicts",
        new_client="the global model mixed with the nearest neighbours among its own images (knn)",
    )
    serving_type: ClassVar[type[Serving]] = KNNPerServing
    trains_as: ClassVar[str] = "fedavg"
    ways: ClassVar[Ways] = Ways(
        own=("knn",),
        default=("knn",),
        rate_free=("knn",),
        one_network=False,
    )
    Config: ClassVar[type[MethodConfig]] = KNNPerConfig
    config: KNNPerConfig

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Store the client's features and labels; no gradient is taken and the model stays the global one."""
        context.model.load(self.model(server))
        yield self.datastore(data, context)

    def datastore(self, data: Examples, context: Context) -> tuple[float, Tensors]:
        """Return the leave-one-out loss of the mixture, and the features and labels of the client's images."""
        probabilities, features = self.features(context.model, data.pixels)
        labels = data.labels.cpu().long()
        votes = self.vote(features, features, labels, leave_one_out=True)
        lam = best_share(votes, probabilities, labels) if self.config.lam == "tuned" else self.config.lam
        true = (lam * votes + (1 - lam) * probabilities).gather(1, labels[:, None])
        loss = float(-true.clamp_min(1e-12).log().mean())
        return loss, {"features": features, "labels": labels, "lam": torch.tensor(lam, dtype=torch.float32)}

    def features(self, model: FlatModel, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's class probabilities and features."""
        return probabilities_and_features(model.module, self.task.classifier, pixels, self.task.recipe.preprocessing)

    def vote(self, queries: Tensor, features: Tensor, labels: Tensor, leave_one_out: bool = False) -> Tensor:
        """Return the neighbours' class probabilities [queries, classes].

        With ``leave_one_out`` the queries are the features themselves, and an image is not its own neighbour. An image
        without neighbours has zeros.
        """
        distances = torch.cdist(queries, features, compute_mode="donot_use_mm_for_euclid_dist")
        if leave_one_out:
            distances.fill_diagonal_(float("inf"))
        nearest, rows = distances.topk(min(self.config.k, len(features) - leave_one_out), largest=False)
        exponents = nearest.square() / features.shape[1] if self.config.kernel == "squared" else nearest
        weights = F.softmax(-exponents / self.config.scale, dim=1)  # the sum is one even where every weight is zero
        return torch.zeros(len(queries), self.task.network.classes).scatter_add_(1, labels[rows], weights)


def best_share(votes: Tensor, probabilities: Tensor, labels: Tensor) -> float:
    """Return the weight with the highest accuracy; ties go to the highest likelihood, then to the smallest weight."""

    def score(lam: float) -> tuple[int, float]:
        mixed = lam * votes + (1 - lam) * probabilities
        likelihood = mixed.gather(1, labels[:, None]).clamp_min(1e-12).log().mean()
        return int((mixed.argmax(1) == labels).sum()), float(likelihood)

    return max(GRID, key=score)
