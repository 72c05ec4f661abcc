"""Convert any text to a file name that is safe on every system; a safe name is not changed.

A name that had to be changed ends with ``~`` and a digest of the original, so different names stay different.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

from pflbed.folders import SUFFIXES

LONGEST = 120
"""Bytes; half of what file systems allow, because three such names may follow each other in a path."""
_FORBIDDEN = frozenset('<>:"/\\|?*')
_RESERVED = re.compile(
    r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$) *(\..*)?", re.IGNORECASE | re.DOTALL
)
_MARKED = re.compile(r"~[0-9a-f]{10,64}")


def safe_name(name: str, taken: set[str] | None = None, of: str | None = None) -> str:
    """Make a name that holds no separator, is neither hidden nor reserved, and is at most ``LONGEST`` bytes long.

    ``taken`` collects the names given so far in one folder, and none is given twice, also where a system takes "Dog"
    and "dog" for the same. ``of`` is the original, such as a whole path, if ``name`` is only a part of it.
    """
    taken = set() if taken is None else taken
    clean = _clean(name)
    stem, suffix = _split(clean)
    marked = any(_MARKED.fullmatch(stem, at) for at in (len(stem) - 11, len(stem) - 65) if at >= 0)
    result = clean
    if clean != name or marked or len(clean.encode()) > LONGEST or _same(clean) in taken:
        digest = hashlib.sha256((name if of is None else of).encode("utf-8", "surrogatepass")).hexdigest()
        for length in (10, 64):
            result = f"{_cut(stem, LONGEST - length - 1 - len(suffix))}~{digest[:length]}{suffix}"
            if _same(result) not in taken:
                break
    taken.add(_same(result))
    return result


def _clean(name: str) -> str:
    text = "".join(sign if sign.isprintable() and sign not in _FORBIDDEN else "_" for sign in name)
    if text.startswith((".", " ")):  # hidden, the folder itself, its parent
        text = "_" + text[1:]
    text = text.rstrip(". ") or "_"  # some systems drop what is at the end
    return f"_{text}" if _RESERVED.fullmatch(text) else text


def _split(name: str) -> tuple[str, str]:
    """Split off the suffix of an image, which must stay at the end."""
    stem, dot, suffix = name.rpartition(".")
    return (stem, dot + suffix) if stem and f".{suffix.lower()}" in SUFFIXES else (name, "")


def _cut(text: str, size: int) -> str:
    return text.encode()[:size].decode(errors="ignore")


def _same(name: str) -> str:
    """What two names share if some system takes one for the other."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
