"""What processes that work for another one have in common."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing.connection import wait


def end_with_parent(leave: Callable[[], None] | None = None) -> None:
    """From now on, when the parent is gone, however it ended, so is this process; ``leave`` is called before."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            wait([parent.sentinel])
            if leave is not None:
                leave()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
