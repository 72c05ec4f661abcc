"""Error handling of the command lines: an input error is one sentence on stderr and exit code 2, no traceback."""

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from typer import Typer

from pflbed.errors import InputError

INTERRUPTED = 130


def run(app: Callable[[], object], name: str, stopped: str) -> None:
    """Run a typer application; ``stopped`` is printed after Ctrl-C."""
    errors = Console(stderr=True, emoji=False)
    try:
        app()
    except InputError as error:
        message = str(error)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer's exit code for Ctrl-C
            errors.print(f"\n{stopped}", soft_wrap=True)
        raise
    except BrokenPipeError:  # the reader of a pipe, such as head, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        message = (
            f"The system refused to read or write: {error.strerror or error}{where}; nothing half-written is left."
        )
    else:
        return
    sentence = " ".join(message.splitlines())
    errors.print(f"[bold red]{name}:[/bold red]", end=" ")
    errors.print(f"{sentence[0].upper()}{sentence[1:]}", highlight=False, markup=False, soft_wrap=True)
    sys.exit(2)


def writable(folder: Path) -> None:
    """Check before the work that its result can be written."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"Results go to {folder}, but {there} is not a folder that can be written to; choose another.")


def wrap_help(app: Typer) -> None:
    """Let help texts wrap at any width: typer keeps the line breaks of a docstring after its first paragraph."""
    for command in app.registered_commands:
        command.help = _joined(command.help or inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            wrap_help(group.typer_instance)
    if isinstance(app.info.help, str):
        app.info.help = _joined(app.info.help)


def _joined(text: str) -> str:
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if part.startswith((" ", "\b")) else part.replace("\n", " ") for part in paragraphs)
