"""The registry of methods: adding one is a file beside this and a line here."""

import importlib
import pkgutil

from fedbasis.algorithms.base import Method

METHODS: dict[str, type[Method]] = {}
for _info in pkgutil.iter_modules(__path__):  # TEMPORARY while methods are being written
    try:
        _module = importlib.import_module(f"fedbasis.algorithms.{_info.name}")
    except Exception:
        continue
    for _value in vars(_module).values():
        if isinstance(_value, type) and issubclass(_value, Method) and "name" in _value.__dict__:
            METHODS[_value.name] = _value
