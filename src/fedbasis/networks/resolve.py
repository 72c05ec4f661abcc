"""From a name to an object: a built-in one, ``"package.module:Name"`` of the user's, or an entry point of a package.

The same rule holds for networks and for methods. Naming code in one's own configuration runs it; code that a published
artifact names is run only where the caller trusts it.
"""

import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pflbed.errors import InputError


def resolve(name: str, known: Mapping[str, Any], group: str, what: str) -> Any:
    """Find what a name means.

    Args:
        name: A key of ``known``, ``"module:attribute"``, or the name of an entry point.
        known: The built-in objects.
        group: The group of entry points that packages may register in, such as ``fedbasis.methods``.
        what: What errors call it, such as "method".

    Returns:
        The object.
    """
    if name in known:
        return known[name]
    where, colon, attribute = name.partition(":")
    if not colon:
        found = {point.name: point for point in entry_points(group=group)}
        if name in found:
            return found[name].load()
        raise InputError(
            f"The {what} must be one of {', '.join([*known, *found])}, or your own as 'module:name', but it is "
            f"'{name}'."
        )
    try:
        return getattr(importlib.import_module(where), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"The {what} '{name}' must be importable, but it is not ({error}); install it or set PYTHONPATH."
        ) from error


def reference_of(thing: Any) -> str:
    """Name an object so that ``resolve`` finds it again where its module can be imported.

    Something that was defined in a script is named by the script's file, as if it was imported from there.
    """
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    module = sys.modules.get(kind.__module__)
    for place in (module, sys.modules.get("__main__")):
        for attribute, value in list(vars(place).items()) if place is not None else ():
            if value is thing and place is not None:
                return f"{_importable(place.__name__)}:{attribute}"
    return f"{_importable(kind.__module__)}:{kind.__qualname__}"


def _importable(module: str) -> str:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(script).stem if module == "__main__" and script else module
