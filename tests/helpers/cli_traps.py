"""Steps after a run that go wrong; processes find them by name."""

import os
import signal

from fedbasis.experiment import Prepared
from fedbasis.training.runs import Run


def die(prepared: Prepared, run: Run) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stumble(prepared: Prepared, run: Run) -> None:
    raise ZeroDivisionError("nobody foresaw this")
