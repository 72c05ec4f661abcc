"""Files that somebody else may have written: one reader for each kind, bounded and checked before anything is used.

Only regular files are opened (a FIFO would wait, a device never ends), a file above its limit is refused before it is
read, text must be UTF-8, and JSON and TOML may be neither deep nor hold numbers that are none. What is wrong is one
sentence, an ``InputError``. No other module opens a file of these kinds; tables are in ``foreign_tables``, images in
``images``. A test looks for readers elsewhere.
"""

import json
import math
import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pflbed.errors import InputError

MAX_JSON = 64 * 2**20
"""Bytes of a JSON file."""
MAX_LOG = 2 * 2**30
"""Bytes of a log of JSON lines."""
MAX_LINE = 64 * 2**20
"""Bytes of one of its lines."""
MAX_TOML = 2**20
"""Bytes of a configuration."""
MAX_DEPTH = 64
"""Lists and objects within one another."""
MAX_INTEGER = 2**63
MAX_ARRAY = 2**40
"""Bytes of an array that is memory-mapped."""
MAX_HEADER = 10_000
"""Bytes of the header of an .npy file."""


def require_file(path: Path, what: str, limit: int) -> int:
    """Refuse what is not a regular file, or is larger than a limit; return its size.

    Args:
        path: The file; links are followed.
        what: What errors call it, such as "The card".
        limit: The most bytes it may have.

    Returns:
        Its size in bytes.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InputError(f"{what} {path} must exist, but it does not; check the path.") from None
    except (OSError, RuntimeError, ValueError) as error:  # no permission, a loop of links, a null byte
        raise InputError(f"{what} {path} must be readable, but it is not ({reason_of(error)}).") from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{what} {path} must be a regular file, but it is not.")
    if status.st_size > limit:
        raise InputError(f"{what} {path} must have at most {limit:,} bytes, but it has {status.st_size:,}.")
    return status.st_size


def read_bytes(path: Path, what: str, limit: int) -> bytes:
    """Read a whole file that must not be larger than a limit."""
    require_file(path, what, limit)
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise InputError(f"{what} {path} must be readable, but it is not ({reason_of(error)}).") from error
    if len(data) > limit:
        raise InputError(f"{what} {path} must have at most {limit:,} bytes, but it has more.")
    return data


def read_text(path: Path, what: str, limit: int) -> str:
    """Read a whole text file in UTF-8."""
    try:
        return read_bytes(path, what, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} must be text in UTF-8, but byte {error.start:,} is not.") from error


def read_json(path: Path, what: str, limit: int = MAX_JSON) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        what: What errors call it, such as "The card".
        limit: The most bytes it may have.

    Returns:
        Plain data: no number is infinite or NaN, no whole number exceeds 64 bits, nothing is nested too deep.
    """
    return parse_json(read_bytes(path, what, limit), f"{what} {path}")


def parse_json(data: bytes | str, where: str) -> Any:
    """Parse JSON that somebody else wrote; ``where`` is what errors call it."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data  # json itself would also take UTF-16
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_key_twice)
    except RecursionError:
        raise InputError(f"{where} must be nested at most {MAX_DEPTH} deep, but it is nested deeper.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{where} must be text in UTF-8, but byte {error.start:,} is not.") from error
    except ValueError as error:
        raise InputError(f"{where} must be JSON, but it is not ({reason_of(error)}).") from error
    _require_plain(value, where)
    return value


def read_json_object(path: Path, what: str, limit: int = MAX_JSON) -> dict[str, Any]:
    """Read a JSON file that holds one object."""
    value = read_json(path, what, limit)
    if not isinstance(value, dict):
        raise InputError(f"{what} {path} must be a JSON object, but it is {type(value).__name__}.")
    return value


def read_json_lines(path: Path, what: str, limit: int = MAX_LOG) -> Iterator[dict[str, Any]]:
    """Read a log of JSON lines up to the first line that is not whole, as a killed process or a full disk leaves it.

    Args:
        path: The file; one that does not exist has no lines.
        what: What errors call it, such as "The log".
        limit: The most bytes it may have.

    Yields:
        One object per line.
    """
    if not path.exists() and not path.is_symlink():
        return
    require_file(path, what, limit)
    try:
        opened = path.open("rb")
    except OSError as error:
        raise InputError(f"{what} {path} must be readable, but it is not ({reason_of(error)}).") from error
    with opened as file:
        while line := file.readline(MAX_LINE):
            if not line.endswith(b"\n"):
                return
            try:
                value = parse_json(line, f"A line of {what.lower()} {path}")
            except InputError:
                return
            if not isinstance(value, dict):
                return
            yield value


def read_toml(path: Path, what: str, hint: str, limit: int = MAX_TOML) -> dict[str, Any]:
    """Read a TOML file; if there is none, the hint says where one comes from."""
    if not path.exists():
        raise InputError(f"{what} {path} must exist, but it does not; {hint}.")
    text = read_text(path, what, limit)
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise InputError(f"{what} {path} must be nested at most {MAX_DEPTH} deep, but it is nested deeper.") from None
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise InputError(f"{what} {path} must be TOML, but it is not ({reason_of(error)}).") from error
    _require_plain(value, f"{what} {path}")
    return value


def map_array(path: Path, what: str, shape: tuple[int | None, ...]) -> NDArray[np.uint8]:
    """Memory-map an .npy file of bytes, read-only; its header is checked before, and nothing is ever unpickled.

    Args:
        path: The file.
        what: What errors call it, such as "The cached array".
        shape: The shape that it must have; None where any length is right.

    Returns:
        The array, of dtype uint8.
    """
    size = require_file(path, what, MAX_ARRAY)
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"version {version} of the format")
            found, by_column, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=MAX_HEADER)
            offset = file.tell()
    except (OSError, ValueError, TypeError, EOFError, SyntaxError, RecursionError, MemoryError) as error:
        raise InputError(f"{what} {path} must be an .npy file, but it is not ({reason_of(error)}).") from error
    fits = len(found) == len(shape) and all(want in (None, got) for got, want in zip(found, shape, strict=True))
    if dtype != np.uint8 or by_column or not fits:
        raise InputError(f"{what} {path} must hold bytes of shape {shape}, but it holds {dtype} of shape {found}.")
    if min(found, default=0) < 0 or offset + math.prod(found) != size:
        raise InputError(f"{what} {path} must be as long as its header says, but it is not.")
    if not math.prod(found):
        return np.zeros(found, dtype=np.uint8)
    return np.memmap(path, dtype=np.uint8, mode="r", offset=offset, shape=found)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {max(keys, key=keys.count)[:80]!r} occurs twice in one object")
    return value


def _require_plain(value: Any, where: str) -> None:
    """Refuse deep nesting, infinite numbers, numbers beyond 64 bits, and text that is not Unicode."""
    stack = [([value], 0)]
    while stack:
        items, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise InputError(f"{where} must be nested at most {MAX_DEPTH} deep, but it is nested deeper.")
        for item in items:
            if isinstance(item, dict):
                stack.append(([*item.keys(), *item.values()], depth + 1))
            elif isinstance(item, list):
                stack.append((item, depth + 1))
            else:
                _require_plain_value(item, where)


def _require_plain_value(item: Any, where: str) -> None:
    if isinstance(item, float) and not math.isfinite(item):
        raise InputError(f"{where} must hold finite numbers, but one is {item}.")
    if isinstance(item, int) and not -MAX_INTEGER <= item < MAX_INTEGER:
        raise InputError(f"{where} must hold whole numbers of at most 64 bits, but one is larger.")
    if isinstance(item, str) and not item.isascii():
        try:
            item.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(f"{where} must hold Unicode text, but a text has half a character.") from error


def reason_of(error: BaseException) -> str:
    """The first line of what an exception says, short and without its last full stop."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (text.splitlines() or [type(error).__name__])[0][:200].rstrip(".").replace(os.sep * 2, os.sep)
