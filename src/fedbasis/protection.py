"""The two tables of a configuration about clients one does not trust, and about what they must not give away."""

from typing import Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from fedbasis.accounting import default_delta
from fedbasis.averaging import Averaging
from fedbasis.privacy import Mechanism


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, "5" is no 5, a default counts as if it was written."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)


class Aggregation(Section):
    """How the server averages what clients send (docs/robustness.md)."""

    mean: str = Field(
        default="mean",
        pattern="^(mean|trimmed|median)$",
        description="coordinate by coordinate: the mean, the trimmed mean, or the median",
    )
    trim: float = Field(default=0.2, ge=0, lt=0.5, description="share that 'trimmed' leaves out at either end")
    clip: float | None = Field(default=None, gt=0, description="the longest update (L2) taken as it is; unset: any")

    def averaging(self) -> Averaging:
        """Return it as methods need it."""
        return Averaging(cast(Literal["mean", "trimmed", "median"], self.mean), self.trim, self.clip)


class Privacy(Section):
    """Differential privacy of the participating clients (docs/privacy.md)."""

    noise_multiplier: float = Field(
        default=0.0, ge=0, description="noise on a round's mean, in clips / clients; 0: off"
    )
    clip: float = Field(default=1.0, gt=0, description="the longest update (L2) of a client; longer ones are shortened")
    delta: float | None = Field(default=None, gt=0, lt=1, description="of (epsilon, delta); unset: 1 / clients^1.1")
    noise_seed: str = Field(
        default="run",
        pattern="^(run|secret)$",
        description="run: from the seed, for experiments; secret: from the operating system, for real clients",
    )

    def mechanism(self, clients: int, sampled: int) -> Mechanism | None:
        """Return it as rounds need it; nothing if it is off."""
        if not self.noise_multiplier:
            return None
        delta = default_delta(clients) if self.delta is None else self.delta
        return Mechanism(self.noise_multiplier, self.clip, delta, clients, sampled, self.noise_seed == "secret")
