"""From a name to an object: a built-in one, ``"package.module:Name"``, or an entry point of an installed package.

Networks and methods are resolved in the same way. Code that your own configuration names is imported and run; code
that a published artifact names is run only if the caller trusts the artifact.
"""

import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pflbed.errors import InputError


def resolve(name: str, known: Mapping[str, Any], group: str, what: str) -> Any:
    """Return the object that a name refers to.

    Args:
        name: A key of ``known``, ``"module:attribute"``, or the name of an entry point.
        known: The built-in objects.
        group: The group of entry points that packages may register in, such as ``fedbasis.methods``.
        what: The kind of object for error messages, such as "method".

    Returns:
        The object.
    """
    if name in known:
        return known[name]
    where, colon, attribute = name.partition(":")
    if not colon:
        for point in entry_points(group=group):
            if point.name == name:
                return point.load()
        names = ", ".join(all_names(known, group))
        raise InputError(f"The {what} must be one of {names}, or your own as 'module:name', but it is '{name}'.")
    try:
        return getattr(_module(where), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"The {what} '{name}' must be importable, but it is not ({error}); install it or set PYTHONPATH."
        ) from error


def all_names(known: Mapping[str, Any], group: str) -> list[str]:
    """List the names without a colon that ``resolve`` knows: the built-in ones and those of installed packages."""
    return list(dict.fromkeys([*known, *(point.name for point in entry_points(group=group))]))


def _module(name: str) -> ModuleType:
    """Import a module; a script that is running is not run again."""
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    if main is not None and script and name not in sys.modules and Path(script).stem == name:
        return main
    return importlib.import_module(name)


def reference_of(thing: Any) -> str:
    """Return a name of an object that ``resolve`` can import.

    Something that was defined in a script is named by the script's file, as if it was imported from there. An instance,
    such as a network of torch's own layers, is looked for in all modules; one that none holds is named by its class.
    """
    made = not hasattr(thing, "__qualname__")
    kind = type(thing) if made else thing
    places = [sys.modules.get(kind.__module__), sys.modules.get("__main__"), *(sys.modules.values() if made else ())]
    for place in places:
        for attribute, value in list(getattr(place, "__dict__", {}).items()):
            if value is thing and isinstance(place, ModuleType):
                return f"{_importable(place.__name__)}:{attribute}"
    return f"{_importable(kind.__module__)}:{kind.__qualname__}"


def _importable(module: str) -> str:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(script).stem if module == "__main__" and script else module
