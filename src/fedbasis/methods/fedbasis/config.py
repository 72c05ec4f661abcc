"""The settings of FedBasis: the paper's choices and the measured alternatives (docs/explanation/fedbasis.md)."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fedbasis.methods.fedbasis.learning import CoefficientSettings, CoefficientStatistics
from fedbasis.methods.task import MethodConfig
from pflbed.errors import InputError

AS_PRINTED: Mapping[str, Any] = {
    "major": True, "tau": 0.1, "coordinate_descent": True, "warm_start": 0.3, "cluster": "network",
    "aggregation": "mean", "rate": "per-basis", "coefficient_optimizer": "sgd", "coefficient_rate": 0.01,
    "new_client_factor": 1.0,
}  # fmt: skip
"""The paper's choices; where it prints none: SGD on psi at the rate of the rest, clusters of whole networks."""


class FedBasisConfig(MethodConfig):
    """The settings of FedBasis; combinations that do not work are errors at construction."""

    preset: Literal["default", "paper"] = Field(
        "default", description="where other settings' defaults come from: measurements here, or the paper's algorithm"
    )
    bases: int = Field(4, ge=1, description="K, the number of bases besides the major one")
    major: bool = Field(True, description="add a major basis, which has weight 1/2 in every combination")
    tau: float = Field(0.1, gt=0, le=1, description="sharpening: temperature of the softmax while bases are trained")
    coordinate_descent: bool = Field(True, description="coefficients first, then bases; false trains both at once")
    warm_start: float = Field(0.3, ge=0, lt=1, description="share of the rounds that train FedAvg before the bases")
    cluster: Literal["network", "block"] = Field("block", description="unit of clustering after the warm start")
    cluster_rounds: int = Field(
        1, ge=1, description="last rounds of the warm start whose local models are clustered, if few clients take part"
    )
    init: Literal["pretrained", "random"] = Field("pretrained", description="initial bases: all equal, or independent")
    upload: Literal["factored", "full"] = Field("factored", description="one model and (a, alpha), or all K bases")
    aggregation: Literal["mean", "usage"] = Field("usage", description="divide by the clients, or by a basis' usage")
    rate: Literal["per-basis", "per-model"] = Field("per-model", description="what the local learning rate applies to")
    coefficient_optimizer: Literal["sgd", "adam"] = Field("adam", description="the optimizer of psi")
    coefficient_rate: float = Field(0.1, gt=0, description="the learning rate of psi")
    coefficient_epochs: int | None = Field(None, ge=0, description="epochs on psi a round; unset: as many as on bases")
    coefficient_statistics: Literal["batch", "frozen"] = Field(
        "batch", description="normalization while psi is trained: by the batch, or by the running statistics"
    )
    new_client_factor: float = Field(
        10.0, gt=0, description="learning rate of psi on a new client, as a multiple of its learning rate"
    )
    basis_optimizer: Literal["sgd", "adam"] = Field("sgd", description="adam trains all K bases in every step")
    communicate_every: Literal["round", "step"] = Field(
        "round", description="step: one batch a round, and psi is stored in the client state"
    )

    @model_validator(mode="before")
    @classmethod
    def _as_printed(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("preset") == "paper":
            return {**AS_PRINTED, **given}
        return given

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.init == "random" and self.warm_start > 0:
            raise ValueError("init = 'random' initializes every basis independently and needs warm_start = 0")
        if self.init == "pretrained" and self.warm_start == 0 and self.bases > 1:
            raise ValueError("bases that start equal stay equal: use warm_start > 0 or init = 'random'")
        wrong = (self.upload, self.aggregation) != ("full", "mean") or self.rate != "per-basis"
        if not self.coordinate_descent and wrong:
            raise ValueError(
                "coordinate_descent = false needs upload = 'full', aggregation = 'mean' and rate = 'per-basis': "
                "the coefficients move while the bases do"
            )
        if self.basis_optimizer != "sgd" and (self.upload, self.aggregation) != ("full", "mean"):
            raise ValueError("a basis_optimizer other than 'sgd' needs upload = 'full' and aggregation = 'mean'")
        return self

    def require(self, rounds: int, pretrained: bool, robust: bool) -> None:
        """Raise an ``InputError`` if the settings do not fit the rest of the experiment."""
        if self.warm_start > 0 and rounds < 2:
            raise InputError("A warm start needs at least 2 rounds, one of FedAvg and one of bases; raise 'rounds'.")
        if self.init == "random" and pretrained:
            raise InputError(
                "init = 'random' initializes every basis independently, so it must have no pretrained weights, but "
                "they are set; remove them."
            )
        if robust and not self.factored:
            raise InputError(
                "A trimmed mean or median of bases compares the one direction in which each client moves all bases, "
                "so it needs coordinate_descent = true and basis_optimizer = 'sgd'; set these, or remove "
                "aggregation.mean."
            )

    def require_clients(self, count: int) -> None:
        """Raise an ``InputError`` if the warm start has fewer models to cluster, ``count``, than bases."""
        if self.warm_start > 0 and count < self.bases:
            raise InputError(
                f"{self.bases} bases need at least as many local models to cluster, but there are {count}; lower "
                "'bases', or raise 'participation' or 'cluster_rounds'."
            )

    def require_average(self) -> None:
        """Raise an ``InputError`` if the server needs more than the clients' mean."""
        if self.warm_start > 0 or self.aggregation != "mean":
            raise InputError(
                "[privacy] protects what is averaged over the clients, but a warm start compares the clients' models "
                "with one another and aggregation = 'usage' divides by how much a basis was used; set warm_start = 0, "
                "init = 'random' and aggregation = 'mean'."
            )

    @property
    def by_usage(self) -> bool:
        """Whether a basis moves by the usage-weighted mean of the clients."""
        return self.aggregation == "usage"

    @property
    def factored(self) -> bool:
        """Whether training the combined model is equivalent to training all bases."""
        return self.coordinate_descent and self.basis_optimizer == "sgd"

    def coefficients_at(self, statistics: CoefficientStatistics) -> CoefficientSettings:
        """Return the settings for learning psi with these statistics."""
        return CoefficientSettings(self.coefficient_optimizer, self.coefficient_rate, statistics)

    def at_a_new_client(self, rate: float, frozen: bool) -> CoefficientSettings:
        """Return the settings for a new client that learns at this rate."""
        psi_rate = self.new_client_factor * rate
        return CoefficientSettings(self.coefficient_optimizer, psi_rate, "frozen" if frozen else "own")
