"""Serialize objects between this process and the workers that it started.

cloudpickle sends classes and functions of ``__main__`` by value, so a method, a network factory or a module that is
defined in a script or a notebook works in every worker, and the script is never imported again. Tensors are sent as
plain bytes: torch's own reducers for multiprocessing would share file descriptors, which run out.

Loading such bytes can run any code. So they are used only between this process and the workers that it started: never
in files, artifacts or the messages of a federation.
"""

from typing import Any

import cloudpickle

from pflbed.errors import InputError


def dumps(thing: Any) -> bytes:
    """Return an object as bytes."""
    data: bytes = cloudpickle.dumps(thing)
    return data


def loads(data: bytes) -> Any:
    """Return the object of bytes that ``dumps`` made."""
    try:
        return cloudpickle.loads(data)
    except ImportError as error:
        raise InputError(
            f"Workers must be able to import the modules of a method and its network, but they cannot ({error}); "
            "install them where the workers run, or set PYTHONPATH there."
        ) from error
