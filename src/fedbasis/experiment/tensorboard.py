"""Write the numbers of every round as TensorBoard scalars, in addition to the json lines of the run.

It needs the extra ``tensorboard``.
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
    """An event listener that writes the numbers of every round."""

    def __init__(self) -> None:
        self._open = _writer()
        self._writer: Any = None

    def __call__(self, event: Event) -> None:
        """Open the log when the run starts, write every round, close it after the last client."""
        match event:
            case RunStarted(folder=Path() as folder, rounds_done=rounds_done):
                log = folder / FOLDER  # a resumed run overwrites what was written after its last checkpoint
                first_time = not log.exists()
                self._writer = self._open(str(log), purge_step=1 if first_time else rounds_done + 1)
                for line in read_lines(Run(folder).metrics) if first_time else ():  # rounds before --track was used
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
    """Yield a round's numbers by name; those in groups are named ``group/name``."""
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
            "--track tensorboard needs the package tensorboard, but it is not installed; "
            "run pip install -e '.[tensorboard]' in the checkout, or remove --track."
        ) from error
    return SummaryWriter
