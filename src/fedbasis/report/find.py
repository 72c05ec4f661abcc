"""Find runs below paths: a path is a run folder or a folder with run folders below it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedbasis.training.runs import Run
from pflbed.errors import InputError

DEPTH = 4
"""Runs are searched up to so many folders below a path."""


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """Return every run at or below the paths, each once, in the order of paths and names."""
    found: dict[Path, Run] = {}
    for path in paths:
        if not path.is_dir():
            raise InputError(f"A run is a folder, but there is no folder {path}; check the path.")
        below = {run.folder.resolve(): run for run in _below(path, DEPTH)}
        if not below:
            raise InputError(
                f"{path} must be a run, or hold runs, but there is no config.json in it or below it; "
                "name the folder that 'fedbasis train' wrote."
            )
        found |= below
    return list(found.values())


def _below(folder: Path, depth: int) -> Iterator[Run]:
    run = Run(folder)
    if run.config.is_file():
        yield run
    elif depth:
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.name.startswith("."):
                yield from _below(child, depth - 1)
