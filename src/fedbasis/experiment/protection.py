"""The two tables of a configuration about clients one does not trust, and about what they must not give away."""

from typing import Literal

from pydantic import Field, field_validator

from fedbasis.experiment.toml import ConfigSection
from fedbasis.methods.base import Method
from fedbasis.tensors.averaging import Averaging
from fedbasis.training.accounting import default_delta
from fedbasis.training.privacy import Mechanism


class AggregationConfig(ConfigSection):
    """How the server averages what clients send (docs/how-to/robustness.md)."""

    mean: Literal["mean", "trimmed", "median"] = Field(
        default="mean",
        description="coordinate by coordinate: the mean, the trimmed mean, or the median",
    )
    trim: float = Field(default=0.2, ge=0, lt=0.5, description="share that 'trimmed' leaves out at either end")
    clip: float | None = Field(
        default=None, ge=1e-9, le=1e9, description="the longest update (L2) taken as it is; unset: any"
    )

    def averaging(self) -> Averaging:
        """Return it as methods need it."""
        return Averaging(kind=self.mean, trim=self.trim, clip=self.clip)


class PrivacyConfig(ConfigSection):
    """Differential privacy of the participating clients (docs/how-to/privacy.md)."""

    noise_multiplier: float = Field(
        default=0.0, ge=0, le=1e6, description="noise on a round's mean, in clips / clients; 0: off"
    )
    clip: float = Field(
        default=1.0, ge=1e-9, le=1e9, description="the longest update (L2) of a client; longer ones are shortened"
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
        """Return it as rounds need it; nothing if it is off."""
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
    """Find what aggregation and privacy cannot do together, or with the rest."""
    problems: list[str] = []
    averaging, private = aggregation.averaging(), privacy.noise_multiplier > 0
    if averaging.robust and by_examples:
        problems.append(
            "aggregation.mean does not trust clients, so it cannot believe how many images they say they have; set "
            "train.weighting = 'uniform'"
        )
    if not averaging.trusting and kind is not None and not kind.updates_type.averages:
        problems.append(f"[aggregation] has no meaning for {kind.about.title}, which averages nothing")
    if private and by_examples:
        problems.append(
            "[privacy] bounds what a client can change, but a client with many images would count more; set "
            "train.weighting = 'uniform'"
        )
    if private and not averaging.trusting:
        problems.append(
            "[privacy] shortens updates itself and adds its noise to their mean; leave [aggregation] out, and set "
            "privacy.clip"
        )
    if private and privacy.noise_seed == "secret" and participating:
        problems.append(
            "privacy.noise_seed = 'secret' protects the clients that take part, but personalize.whom = 'participating' "
            "would write down what each of them predicts; serve new clients"
        )
    return problems
