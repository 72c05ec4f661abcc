"""Objects as bytes, on the way between this process and its own workers.

cloudpickle sends classes and functions of ``__main__`` by value, so a method, a network factory or a module that is
written in a script or a notebook works in every worker, and the script is never imported again. Tensors travel as
plain bytes: torch's own reducers for multiprocessing would share file descriptors, which run out.

Loading such bytes can run any code. So they are used between this process and the workers it started, and nowhere else:
never in files, artifacts or the messages of a federation.
"""

from typing import Any

import cloudpickle


def dumps(thing: Any) -> bytes:
    """Return an object as bytes for a worker of this process, or for the process whose worker this is."""
    data: bytes = cloudpickle.dumps(thing)
    return data


def loads(data: bytes) -> Any:
    """Return the object that ``dumps`` turned into bytes."""
    return cloudpickle.loads(data)
