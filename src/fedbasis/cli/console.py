"""The console of all commands, and how much they print."""

from dataclasses import dataclass

from rich.console import Console

console = Console(emoji=False)
errors = Console(stderr=True, emoji=False)


@dataclass
class Shown:
    """What is printed besides results and errors; ``--quiet`` and ``--verbose`` change it."""

    progress: bool = True
    every_client: bool = False


shown = Shown()


def say(text: str, style: str = "", to: Console = console) -> None:
    """Print a text as it is: one line of it is one line of output, so that paths and commands can be copied."""
    to.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
