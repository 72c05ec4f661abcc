"""What a federation's server writes into its run folders, told line by line to whoever waits for it."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console

from fedbasis.cli.display import Live
from fedbasis.flower.settings import FederatedRun
from fedbasis.training.runs import read_lines


class FederationProgress:
    """Look into run folders now and then, and say what is new."""

    def __init__(self, console: Console, plans: Sequence[FederatedRun], out: Path) -> None:
        self._live, self._out = Live(console), out
        self._plans, self._seen = plans, dict.fromkeys((plan.name for plan in plans), 0)

    def __enter__(self) -> "FederationProgress":
        self._live.__enter__()
        self._observers = {plan.name: self._live.observer(plan.experiment.method_name) for plan in self._plans}
        for plan in self._plans:
            run, rounds = plan.run(self._out), plan.experiment.train.rounds
            self._seen[plan.name] = done = len(read_lines(run.metrics))
            self._observers[plan.name].started(run, plan.experiment.method_name, done, rounds, 0, 0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.look()
        self._live.__exit__(kind, error, at)

    def look(self) -> None:
        """Tell of the rounds that ended since the last look."""
        for plan in self._plans:
            lines = read_lines(plan.run(self._out).metrics)
            for record in lines[self._seen[plan.name] :]:
                count = int(record["clients"])
                self._observers[plan.name].client(int(record["round"]), count, count, float(record["loss"]))
                self._observers[plan.name].round(record)
            self._seen[plan.name] = len(lines)
