"""Export a benchmark to other tools, as a folder that is created completely or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pflbed.benchmark import Benchmark
from pflbed.dataset import Dataset
from pflbed.errors import InputError, did_you_mean
from pflbed.files import hidden_beside

EXPORTS = {
    "folders": "a folder per client with train/<class>/<image>, as hard links to the images",
    "hf": "a Hugging Face dataset (parquet) with a column 'client'",
    "flower": "the same, with the manifest, for flwr-datasets",
    "blank": "predictions.csv, to be filled in for 'pflbed score'",
}


def export(
    benchmark: Benchmark,
    dataset: Dataset | None,
    to: str,
    out: Path,
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Write a benchmark for another tool to ``out``; return sentences on what was written and how to use it.

    ``dataset`` is what the benchmark was built from (``blank`` needs none), ``to`` one of ``EXPORTS``; ``progress`` is
    called with (rows done, rows in all). ``out`` must not exist or be empty. The images are never changed.
    """
    if to not in EXPORTS:
        raise InputError(f"An export must have a known kind, got {to!r}{did_you_mean(to, list(EXPORTS))}; choose one")

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(done, total)

    with _appearing(Path(out)) as folder:
        if to == "blank":
            from pflbed.export.blank import write_blank

            return write_blank(benchmark, folder, Path(out), report)
        if dataset is None:
            raise InputError(f"An export to {to} needs the images, got none; give the dataset they come from")
        if to == "folders":
            from pflbed.export.folders import write_folders

            return write_folders(benchmark, dataset, folder, Path(out), report)
        from pflbed.export.hf import write_hf

        return write_hf(benchmark, dataset, folder, Path(out), report, flower=to == "flower")


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """Yield a hidden folder next to ``out``; it is renamed to ``out`` on success and removed otherwise."""
    place = Path(os.path.realpath(out))  # an empty folder that is a link is replaced at its target
    _require_free(place, out)
    with hidden_beside(place) as folder:
        yield folder
        _require_free(place, out)  # again, as writing may have taken an hour
        if place.exists():
            place.rmdir()
        folder.rename(place)


def _require_free(place: Path, out: Path) -> None:
    """Nothing that is there already is ever mixed with an export or replaced by it."""
    try:
        with os.scandir(place) as entries:
            free = next(entries, None) is None
    except FileNotFoundError:
        free = True
    except OSError as error:
        if error.errno != errno.ENOTDIR:
            raise
        free = False
    if not free:
        raise InputError(f"An export needs a new or empty folder, but {out} exists already; name another or remove it")
