"""One server process that has imported everything, for all processes that tests fork from it.

Python has one such server in a process, and its first user decides what it imports. Another user's processes would then
import the rest again, each of them.
"""

import multiprocessing.forkserver

PRELOADED = [
    "fedbasis.engines.pool",
    "fedbasis.serving.evaluation",
    "fedbasis.experiment.jobs",
    "fedbasis.cli",
    "fedbasis.cli.display",
    "sklearn.cluster",
    "pyarrow.parquet",
]


def share_fork_server() -> None:
    """Decide what the server imports, whoever uses it first."""
    multiprocessing.forkserver.set_forkserver_preload(PRELOADED)
    setattr(multiprocessing.forkserver, "set_forkserver_preload", lambda names: None)  # noqa: B010
