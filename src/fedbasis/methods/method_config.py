"""What the settings of every method have in common."""

from pydantic import BaseModel, ConfigDict


class MethodConfig(BaseModel):
    """The settings of a method: frozen, checked when made, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
