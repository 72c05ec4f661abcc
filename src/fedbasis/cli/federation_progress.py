"""Show the progress of a federation, from the logs that its server writes to run folders."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console

from fedbasis.cli.display import Live
from fedbasis.flower.settings import FederatedRun
from fedbasis.methods import find_method
from fedbasis.training.events import ClientTrained, RoundEnded, RunStarted
from fedbasis.training.runs import read_lines


class FederationProgress:
    """Shows new lines of the runs' logs at every ``update``, as a context manager."""

    def __init__(self, console: Console, plans: Sequence[FederatedRun], out: Path) -> None:
        self._live, self._out = Live(console), out
        self._plans, self._seen = plans, dict.fromkeys((plan.name for plan in plans), 0)

    def __enter__(self) -> "FederationProgress":
        self._live.__enter__()
        self._listeners = {}
        for plan in self._plans:
            title = find_method(plan.experiment.method_name).about.title
            self._listeners[plan.name] = emit = self._live.listener(title)
            run, rounds = plan.run(self._out), plan.experiment.train.rounds
            self._seen[plan.name] = done = len(read_lines(run.metrics))
            emit(RunStarted(run.folder, title, done, rounds, 0, 0, run.done))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.update()
        self._live.__exit__(kind, error, at)

    def update(self) -> None:
        """Show the rounds that ended since the last call."""
        for plan in self._plans:
            lines = read_lines(plan.run(self._out).metrics)
            for record in lines[self._seen[plan.name] :]:
                emit, count = self._listeners[plan.name], int(record["clients"])
                loss = float(record.get("loss", "nan"))  # not in the log with secret noise
                emit(ClientTrained(int(record["round"]), count, count, loss))
                emit(RoundEnded(record))
            self._seen[plan.name] = len(lines)
