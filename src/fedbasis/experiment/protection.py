"""The configuration tables [aggregation] (robust averaging, clipping) and [privacy] (differential privacy)."""

from typing import Literal

from pydantic import Field, field_validator

from fedbasis.experiment.toml import ConfigSection
from fedbasis.methods.base import Method
from fedbasis.tensors.averaging import Averaging
from fedbasis.training.accounting import default_delta
from fedbasis.training.privacy import Mechanism


class AggregationConfig(ConfigSection):
    """How the server averages updates (docs/how-to/robustness.md)."""

    mean: Literal["mean", "trimmed", "median"] = Field(
        default="mean",
        description="coordinate by coordinate: the mean, the trimmed mean, or the median",
    )
    trim: float = Field(default=0.2, ge=0, lt=0.5, description="share of the clients that 'trimmed' drops at each end")
    clip: float | None = Field(
        default=None, ge=1e-9, le=1e9, description="maximal L2 norm of an update; unset: no clipping"
    )

    def averaging(self) -> Averaging:
        """Return the averaging of these settings."""
        return Averaging(kind=self.mean, trim=self.trim, clip=self.clip)


class PrivacyConfig(ConfigSection):
    """Differential privacy of the participating clients (docs/how-to/privacy.md)."""

    noise_multiplier: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="standard deviation of the noise on a round's mean, in clip / clients; 0: off",
    )
    clip: float = Field(
        default=1.0, ge=1e-9, le=1e9, description="maximal L2 norm of an update; longer ones are clipped"
    )
    delta: float | None = Field(
        default=None, ge=1e-100, lt=1, description="of (epsilon, delta); unset: 1 / clients^1.1"
    )
    noise_seed: Literal["run", "secret"] = Field(
        default="run",
        description="run: from the seed, for experiments; secret: from the operating system, for real clients",
    )

    @field_validator("noise_multiplier")
    @classmethod
    def _audible(cls, value: float) -> float:
        if 0 < value < 1e-3:
            raise ValueError("noise below a thousandth of the clip protects nobody; use 0, or at least 0.001")
        return value

    def mechanism(self, clients: int, sampled: int) -> Mechanism | None:
        """Return the mechanism of these settings, or None if privacy is off."""
        if not self.noise_multiplier:
            return None
        delta = default_delta(clients) if self.delta is None else self.delta
        return Mechanism(
            multiplier=self.noise_multiplier,
            clip=self.clip,
            delta=delta,
            clients=clients,
            sampled=sampled,
            secret=self.noise_seed == "secret",
        )


def unprotected(
    aggregation: AggregationConfig,
    privacy: PrivacyConfig,
    kind: type[Method] | None,
    *,
    by_examples: bool,
    participating: bool,
) -> list[str]:
    """Return the problems of aggregation and privacy, with each other and with the other settings."""
    problems: list[str] = []
    averaging, private = aggregation.averaging(), privacy.noise_multiplier > 0
    if averaging.robust and by_examples:
        problems.append(
            "a robust aggregation.mean does not trust clients, so it cannot weight them by the number of images that "
            "they report; set train.weighting = 'uniform'"
        )
    if not averaging.trusting and kind is not None and not kind.updates_type.averages:
        problems.append(f"[aggregation] has no meaning for {kind.about.title}, which averages nothing")
    if private and by_examples:
        problems.append(
            "[privacy] bounds the change by a client, but a client with many images would have a larger weight; set "
            "train.weighting = 'uniform'"
        )
    if private and not averaging.trusting:
        problems.append(
            "[privacy] clips updates itself and adds noise to their mean; remove [aggregation], and set privacy.clip"
        )
    if private and privacy.noise_seed == "secret" and participating:
        problems.append(
            "privacy.noise_seed = 'secret' protects the participating clients, but personalize.whom = 'participating' "
            "would write the results of each of them; set personalize.whom = 'new'"
        )
    return problems
