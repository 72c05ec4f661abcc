"""Try a stranger's graphs in a process of their own, before this one opens them.

A graph of the right form can still hold numbers that end the runtime: onnxruntime aborts on some shapes that cannot be.
So another process, with a limit of memory and time, opens the graphs first and runs them once. What ends it is an
``InputError`` here. The other process reads the files itself; that they are the same is checked by their digests.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from pflbed.errors import InputError

SECONDS = 300.0
SPARE = 3 * 2**30
"""Bytes of address space for the interpreter and the runtime."""

CODE = "import sys; from fedbasis_edge.probe import main; sys.exit(main())"


def probe(kind: str, folder: Path, digest: str, memory: int = 0) -> None:
    """Raise an ``InputError`` unless the graphs of a folder can be opened and run.

    Args:
        kind: "bundle" or "model".
        folder: The folder.
        digest: The sha256 of its description, as this process read it.
        memory: Bytes that the graphs need.
    """
    place = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, place))}
    command = [sys.executable, "-c", CODE, kind, str(folder), str(memory + SPARE)]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            f"The graphs of {folder} must run, but they did not end within {SECONDS:.0f} seconds; get them again."
        ) from None
    if ended.returncode == 2 and ended.stderr.startswith("refused: "):
        raise InputError(ended.stderr.removeprefix("refused: ").strip())
    if ended.returncode or ended.stdout.strip() != digest:
        raise InputError(
            f"The graphs of {folder} must run, but they ended the process that tried them (exit code "
            f"{ended.returncode}); get them again from where they come from."
        )


def main() -> int:
    """Open what the arguments name, run it on empty images, and print the digest of its description."""
    kind, folder, memory = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        description = _try_bundle(folder) if kind == "bundle" else _try_model(folder)
    except InputError as error:
        sys.stderr.write(f"refused: {error}")
        return 2
    sys.stdout.write(hashlib.sha256(description).hexdigest())
    return 0


def _try_bundle(folder: Path) -> bytes:
    from fedbasis_edge.bundle import ABOUT, open_bundle
    from fedbasis_edge.fit import Learner

    bundle = open_bundle(folder)
    pixels = np.zeros((2, *bundle.resolution, bundle.channels), dtype=np.uint8)
    learner = Learner(bundle, pixels, np.array([0, 1]), threads=1)
    for _ in learner.learn(1, 2, None, 0):
        pass
    learner.accuracy(pixels, np.array([0, 1]), learner.unpersonalized())
    return (bundle.folder / ABOUT).read_bytes()


def _try_model(folder: Path) -> bytes:
    from fedbasis_edge.bundle import CARD
    from fedbasis_edge.model import open_model

    model = open_model(folder, 1, trust=True)
    model(np.zeros((1, *model.resolution, model.channels), dtype=np.uint8))
    return (folder / CARD).read_bytes()
