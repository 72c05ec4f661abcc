"""Watch a training elsewhere: its numbers of every round as TensorBoard scalars, beside the json lines of the run.

The json lines stay the record; this is a copy of them for a browser. It needs the extra ``fedbasis[tensorboard]``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fedbasis.experiment import Observer
from fedbasis.training.runs import Run, read_lines
from pflbed.errors import InputError

FOLDER = "tensorboard"
NO_SCALARS = ("round", "rounds")


class Tracked(Observer):
    """Passes everything on to another observer, and writes what a round says of itself."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._open = _writer()
        self._writer: Any = None
        self.decoding = observer.decoding  # type: ignore[method-assign]
        self.bad_images = observer.bad_images  # type: ignore[method-assign]
        self.client = observer.client  # type: ignore[method-assign]

    def started(self, run: Run, method: str, rounds_done: int, rounds: int, jobs_done: int, jobs: int) -> None:
        """Open the log; a run that goes on writes over what an earlier process wrote after its last checkpoint."""
        self._observer.started(run, method, rounds_done, rounds, jobs_done, jobs)
        first_time = not (run.folder / FOLDER).exists()
        self._writer = self._open(str(run.folder / FOLDER), purge_step=1 if first_time else rounds_done + 1)
        for line in read_lines(run.metrics) if first_time else ():  # begin with what was done without it
            self._write(line)

    def round(self, record: dict[str, Any]) -> None:
        """Write a round's numbers."""
        self._observer.round(record)
        self._write(record)

    def served(self, done: int, total: int, record: dict[str, Any]) -> None:
        """Close the log with the last client."""
        self._observer.served(done, total, record)
        if done == total:
            self._writer.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        for name, value in scalars(record):
            self._writer.add_scalar(name, value, record["round"])
        self._writer.flush()


def scalars(record: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """List a round's numbers; those in groups are named ``group/name``."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{above}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and name not in NO_SCALARS:
            yield above + name, float(value)


def _writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            "--track tensorboard needs the package tensorboard, which is not installed; "
            "add it by 'pip install fedbasis[tensorboard]', or leave --track out."
        ) from error
    return SummaryWriter
