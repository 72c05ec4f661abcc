"""What is wrong with settings, a line for every key: what must hold, and what was got, in our own words."""

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pflbed.errors import did_you_mean

HIDDEN = ("method_name",)
"""Fields that are no keys of a file."""
KINDS = {
    "int": "a whole number", "float": "a number", "string": "a text", "bool": "true or false", "list": "a list",
    "tuple": "a list", "dict": "a table", "model": "a table", "mapping": "a table",
}  # fmt: skip


def problem_lines(error: ValidationError, prefix: tuple[str, ...], root: type[BaseModel]) -> list[str]:
    """Describe a validation error, one line per key; ``prefix`` is put before the keys of ``root``."""
    found: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors():
        if detail["type"] != "too_short" or not detail["input"]:  # pydantic also calls a list of bad items too short
            found.setdefault(".".join((*prefix, *_place(root, detail["loc"]))), []).append(detail)
    return [_line(key, details, root) for key, details in found.items()]


def _line(key: str, details: Sequence[ErrorDetails], root: type[BaseModel]) -> str:
    first = details[0]
    if first["type"] == "extra_forbidden":
        *above, last = (str(part) for part in first["loc"])
        keys = [name for name in _section(root, tuple(above)).model_fields if name not in HIDDEN]
        return f"'{key}' is not a key{did_you_mean(last, keys)}"
    if first["type"] == "missing":
        return f"'{key}' is missing"
    if first["type"] == "value_error":
        message = first["msg"].removeprefix("Value error, ")
        return f"'{key}': {message}" if key else message
    name = f"'{key}'" if key else "it"
    wanted = " or ".join(dict.fromkeys(_requirement(detail) for detail in details))
    got = "" if isinstance(first["input"], (Mapping, BaseModel)) else f", but it is {first['input']!r:.80}"
    return f"{name} must be {wanted}{got}"


def _requirement(error: ErrorDetails) -> str:  # noqa: PLR0911  (one line for every kind of error)
    """Say what must hold."""
    limits: dict[str, Any] = error.get("ctx", {})
    match error["type"]:
        case "literal_error":
            return str(limits["expected"])
        case "greater_than":
            return f"above {limits['gt']}"
        case "greater_than_equal":
            return f"at least {limits['ge']}"
        case "less_than":
            return f"below {limits['lt']}"
        case "less_than_equal":
            return f"at most {limits['le']}"
        case "too_short" | "string_too_short":
            return f"of at least {limits['min_length']} items"
        case "too_long" | "string_too_long":
            return f"of at most {limits['max_length']} items"
        case "finite_number":
            return "a finite number"
        case "string_pattern_mismatch":
            return "written as cpu or cuda:1"
        case "int_from_float" | "int_parsing" | "int_parsing_size":
            return "a whole number"
        case kind:
            return KINDS.get(kind.partition("_")[0], "valid")


def _place(root: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Name the key, without the alternative of a union that pydantic tried."""
    field = _section(root, tuple(map(str, path[:1]))).model_fields.get(str(path[1])) if len(path) > 2 else None
    union = field is not None and get_origin(field.annotation) in (Union, UnionType)
    return [str(part) for part in (path[:2] if union else path)]


def _section(root: type[BaseModel], path: tuple[str, ...]) -> type[BaseModel]:
    for part in path:
        field = root.model_fields.get(part)
        kind = field.annotation if field else None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            root = kind
    return root
