"""Tables of a TOML file as classes: unknown keys are refused, and so are numbers beyond all reason."""

from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

LARGEST = 1e12
"""No number of a configuration is larger, whatever its own bounds are: it would not fit a float32."""


class ConfigSection(BaseModel):
    """A part of the configuration: unknown keys are refused, "5" is no 5, a default counts as if it was written."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)

    @model_validator(mode="after")
    def _moderate(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            numbers = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
            for number in numbers:
                if isinstance(number, float) and abs(number) > LARGEST:
                    raise ValueError(f"{name} must be at most {LARGEST:g} in size, but it is {number:g}")
        return self
