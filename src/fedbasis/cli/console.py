"""The console of all commands: text from files is printed without control sequences, in any encoding."""

from rich.console import Console

from pflbed.plain_text import one_line
from pflbed.terminal import NORMAL, VERBOSE, SafeConsole, verbosity

console = SafeConsole()
errors = SafeConsole(stderr=True)


def say(text: str, style: str = "", to: Console = console) -> None:
    """Print one line that is not wrapped, so that paths and commands can be copied."""
    to.print(one_line(text), style=style, highlight=False, markup=False, soft_wrap=True)


def shows_progress() -> bool:
    """Whether progress is printed: not with ``--quiet``."""
    return verbosity() >= NORMAL


def shows_clients() -> bool:
    """Whether every client gets a line: only with ``--verbose``."""
    return verbosity() >= VERBOSE
