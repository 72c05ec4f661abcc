"""Follow a training in TensorBoard: the numbers of every round as scalars, beside the json lines of the run.

The json lines stay the record; this is a copy of them for a browser. It needs the extra ``fedbasis[tensorboard]``.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedbasis.training.events import ClientServed, Event, RoundEnded, RunStarted
from fedbasis.training.runs import Run, read_lines
from pflbed.errors import InputError

FOLDER = "tensorboard"
NO_SCALARS = ("round", "rounds")


class TensorBoardLog:
    """Listens to a run and writes what a round reports."""

    def __init__(self) -> None:
        self._open = _writer()
        self._writer: Any = None

    def __call__(self, event: Event) -> None:
        """Open the log with the run, write every round, close it with the last client."""
        match event:
            case RunStarted(folder=Path() as folder, rounds_done=rounds_done):
                place = folder / FOLDER  # a resumed run writes over what was written after its last checkpoint
                first_time = not place.exists()
                self._writer = self._open(str(place), purge_step=1 if first_time else rounds_done + 1)
                for line in read_lines(Run(folder).metrics) if first_time else ():  # what was done without it
                    self._write(line)
            case RoundEnded(record):
                self._write(record)
            case ClientServed(done, total) if done == total:
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
