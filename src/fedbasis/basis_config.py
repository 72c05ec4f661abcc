"""The settings of FedBasis: every choice of the paper, with the measured alternatives beside it (docs/method.md)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from fedbasis.basis_learning import CoefficientSettings, Statistics
from fedbasis.method_config import MethodConfig


class FedBasisConfig(MethodConfig):
    """Checked when made, also for what does not go together."""

    bases: int = Field(4, ge=1, description="K, the number of bases besides the major one")
    major: bool = Field(True, description="a major basis that is always half of every combination")
    tau: float = Field(0.1, gt=0, le=1, description="sharpening: temperature of the softmax while bases are trained")
    coordinate_descent: bool = Field(True, description="coefficients first, then bases; false trains both at once")
    warm_start: float = Field(0.3, ge=0, lt=1, description="share of the rounds spent on FedAvg before bases are made")
    cluster: Literal["network", "block"] = Field("block", description="what is grouped when the first bases are made")
    init: Literal["pretrained", "random"] = Field("pretrained", description="all bases equal, or each its own draw")
    upload: Literal["factored", "full"] = Field("factored", description="one model and (a, alpha), or all K bases")
    aggregation: Literal["mean", "usage"] = Field("usage", description="divide by the clients, or by a basis' usage")
    rate: Literal["per-basis", "per-model"] = Field("per-model", description="what moves at the local learning rate")
    coefficient_optimizer: Literal["sgd", "adam"] = Field("adam", description="the optimizer of psi")
    coefficient_rate: float = Field(0.1, gt=0, description="the learning rate of psi")
    coefficient_epochs: int | None = Field(None, ge=0, description="epochs on psi a round; unset: as many as on bases")
    coefficient_statistics: Literal["batch", "frozen"] = Field("batch", description="what normalizes while psi learns")
    new_client_statistics: Statistics = Field("own", description="the same, at a new client; own: also afterwards")
    basis_optimizer: Literal["sgd", "adam"] = Field("sgd", description="adam trains all K bases in every step")
    communicate_every: Literal["round", "step"] = Field("round", description="step: one batch a round, psi kept")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.init == "random" and self.warm_start > 0:
            raise ValueError("init = 'random' draws every basis itself and needs warm_start = 0")
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

    @property
    def factored(self) -> bool:
        """Whether training one combined model trains all bases exactly."""
        return self.coordinate_descent and self.basis_optimizer == "sgd"

    def coefficients_at(self, statistics: Statistics) -> CoefficientSettings:
        """Return how psi is learned."""
        return CoefficientSettings(self.coefficient_optimizer, self.coefficient_rate, statistics)
