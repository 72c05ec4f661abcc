"""Tables of a TOML file: unknown keys are refused, and everything that is wrong is said at once, in sentences."""

from collections.abc import Mapping
from types import UnionType
from typing import Any, Union, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from pflbed.errors import did_you_mean

LARGEST = 1e12
"""No number of a configuration is larger, whatever its own bounds are: it would not fit a float32."""


def require_moderate(value: Any, key: str = "a number") -> None:
    """Refuse numbers beyond all reason, in a value or in lists and tables of values."""
    if isinstance(value, Mapping):
        for inner, item in value.items():
            require_moderate(item, str(inner))
    elif isinstance(value, (list, tuple)):
        for item in value:
            require_moderate(item, key)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) > LARGEST and key != "seed":
        raise ValueError(f"{key} must be at most {LARGEST:g} in size")


class ConfigSection(BaseModel):
    """A part of the configuration: unknown keys are refused, "5" is no 5, a default counts as if it was written."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)


def sentences(error: ValidationError, prefix: tuple[str, ...], root: type[BaseModel]) -> list[str]:
    """Say what is wrong, a sentence for every key; ``prefix`` stands before the keys of ``root``."""
    found: dict[str, str] = {}
    for detail in error.errors():
        key = ".".join((*prefix, *_place(root, detail["loc"])))
        if detail["type"] != "too_short" or not detail["input"]:  # pydantic also calls a list of bad items too short
            found[key] = (
                f"{found[key]} or {_sentence(detail, '', root)}" if key in found else _sentence(detail, key, root)
            )
    return list(found.values())


def _place(root: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Name the key, without the alternative of a union that pydantic tried."""
    field = _section(root, tuple(map(str, path[:1]))).model_fields.get(str(path[1])) if len(path) > 2 else None
    union = field is not None and get_origin(field.annotation) in (Union, UnionType)
    return [str(part) for part in (path[:2] if union else path)]


def _sentence(error: ErrorDetails, key: str, root: type[BaseModel]) -> str:
    if error["type"] == "extra_forbidden":
        *above, last = (str(part) for part in error["loc"])
        keys = [name for name in _section(root, tuple(above)).model_fields if name != "method_name"]
        return f"'{key}' is not a key{did_you_mean(last, keys)}"
    message = error["msg"].removeprefix("Value error, ")
    start = f"'{key}': " if key else ""
    return f"{start}{message[0].lower()}{message[1:]}" + (
        f" (got {error['input']!r})" if not isinstance(error["input"], (Mapping, BaseModel)) else ""
    )


def _section(root: type[BaseModel], path: tuple[str, ...]) -> type[BaseModel]:
    for part in path:
        field = root.model_fields.get(part)
        kind = field.annotation if field else None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            root = kind
    return root
