"""Validate the tables of a TOML file: unknown keys are errors, and all errors are reported at once."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from pflbed.errors import InputError, did_you_mean


class ConfigSection(BaseModel):
    """A table of the configuration: unknown keys are errors, types are strict ("5" is not 5), defaults are checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)


def read_toml(path: Path, what: str, hint: str) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: The file.
        what: What error messages call it.
        hint: What to do if it does not exist.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{what} {path} must exist, but it does not; {hint}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{what} {path} must be a TOML file, but it cannot be read: {error}.") from error


def sentences(error: ValidationError, prefix: tuple[str, ...], root: type[BaseModel]) -> list[str]:
    """Return the errors of a validation, one sentence for every key; ``prefix`` is put before the keys of ``root``."""
    problems: dict[str, str] = {}
    for detail in error.errors():
        key = ".".join((*prefix, *_place(root, detail["loc"])))
        if detail["type"] != "too_short" or not detail["input"]:  # pydantic also calls a list of bad items too short
            problems[key] = (
                f"{problems[key]} or {_sentence(detail, '', root)}" if key in problems else _sentence(detail, key, root)
            )
    return list(problems.values())


def _place(root: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Return the parts of the key, without the union member that pydantic appends."""
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
