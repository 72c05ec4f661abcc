"""Validate the tables of a TOML file: unknown keys and huge numbers are errors."""

from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

LARGEST = 1e12
"""No number of a configuration is larger, whatever its own bounds are: it would not fit a float32."""


class ConfigSection(BaseModel):
    """A table of the configuration: unknown keys are errors, types are strict ("5" is not 5), defaults are checked."""

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
