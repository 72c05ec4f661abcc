"""What both command lines print, and how they end. Everything that is printed goes through this module.

Text from files and messages may hold control sequences that clear the screen or forge lines, so ``printable`` writes
them out, in plain lines and in tables. What an output cannot show is replaced, so that no command fails after its work.
An input error is one sentence on stderr and exit code 2; a bug is one sentence, a file with the traceback and exit code
70; Ctrl-C gives 130.
"""

import codecs
import contextlib
import inspect
import io
import json
import logging
import os
import re
import sys
import tempfile
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from pflbed.errors import InputError, InputListError
from pflbed.plain_text import CONTROL, one_line, printable

INTERRUPTED = 130
MISTAKE = 2
BUG = 70
"""The exit code of sysexits.h for an internal error."""
LONGEST = 2_000
"""Characters of an error message; a file from somebody else may have made it longer."""
ERRORS = "pflbed-replace"
QUIET, NORMAL, VERBOSE = -1, 0, 1
_verbosity: ContextVar[int] = ContextVar("verbosity", default=NORMAL)
"""Not kept in the context of click: newer versions of typer come with a click of their own."""

_PLAIN = {
    "…": "...", "–": "-", "—": "-", "−": "-", "×": "x", "·": ".", "•": "*", "±": "+-", "≤": "<=", "≥": ">=", "→": "->",
    "α": "alpha", "Δ": "delta", "Σ": "sum", "‖": "||", "█": "#", "▏": "|", "‘": "'", "’": "'", "“": '"', "”": '"',
}  # fmt: skip


class SafeConsole(Console):
    """A console of rich that prints nothing but ``printable`` text, in strings, tables and everything else."""

    def __init__(self, stderr: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(stderr=stderr, file=file, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Clean a string before it is measured, so that columns stay straight."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Clean whatever was not a string; the codes of rich's own styles are added later."""
        for segment in super().render(renderable, options):
            if segment.control or not CONTROL.search(segment.text):
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)

    def out(self, *objects: Any, sep: str = " ", end: str = "\n", **_: Any) -> None:
        """Print without wrapping."""
        self.print(sep.join(map(str, objects)), end=end, markup=False, soft_wrap=True)


def say(text: object, stderr: bool = False) -> None:
    """Print a result: one line, which is not wrapped and has no markup, or a table of rich."""
    console = SafeConsole(stderr)
    if isinstance(text, str):
        console.print(one_line(text), markup=False, soft_wrap=True)
    else:
        console.print(text, soft_wrap=isinstance(text, Text))


def note(text: str) -> None:
    """Print what is good to know; --quiet leaves it out."""
    if verbosity() >= NORMAL:
        say(text)


def detail(text: str) -> None:
    """Print on stderr what only --verbose asks for."""
    if verbosity() >= VERBOSE:
        say(text, stderr=True)


def say_json(value: Any) -> None:
    """Print one JSON value for machines; what is not printable, or not in the output's encoding, is escaped."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "").replace("_", "")
    text = json.dumps(value, ensure_ascii=not encoding.startswith("utf"))
    sys.stdout.write(CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", text) + "\n")


def verbosity() -> int:
    """What --quiet and --verbose of the running command say; ``NORMAL`` outside of one."""
    return _verbosity.get()


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr; nothing if that is no terminal, or with --quiet."""
    errors = SafeConsole(stderr=True)
    bar = Progress(
        TextColumn(printable(what)), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=errors, transient=True, disable=not errors.is_terminal or verbosity() < NORMAL,
    )  # fmt: skip
    with bar:
        task = bar.add_task(printable(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show_version(wanted: bool) -> None:
    if wanted:
        from pflbed.manifest import installed_version

        say(installed_version())
        raise typer.Exit


def _set_verbosity(level: int) -> Callable[[typer.Context, bool], bool]:
    def store(ctx: typer.Context, chosen: bool) -> bool:
        if chosen:
            before = _verbosity.get()
            _verbosity.set(level)
            ctx.call_on_close(lambda: _verbosity.set(before))
        return chosen

    return store


VersionOption = Annotated[
    bool,
    typer.Option("-V", "--version", callback=_show_version, is_eager=True, help="Print the version and stop."),
]
QuietOption = Annotated[
    bool, typer.Option("-q", "--quiet", callback=_set_verbosity(QUIET), help="Print results and errors only.")
]
VerboseOption = Annotated[
    bool,
    typer.Option(
        "-v", "--verbose", callback=_set_verbosity(VERBOSE), help="Print more: every client, where things are kept."
    ),
]


def reflow(app: typer.Typer) -> None:
    """Join the lines of every paragraph of help, so that it wraps at the width of the terminal, not at the source's.

    Lines that begin with "- " stay lines of their own.
    """
    if isinstance(app.info.help, str):
        app.info.help = joined(app.info.help)
    for command in app.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        command.help = joined(text)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            reflow(group.typer_instance)


def joined(text: str) -> str:
    """Paragraphs as one line each.

    Example:
        >>> joined("One\\nline.\\n\\n- first\\n- second\\n  of two")
        'One line.\\n\\n- first\\n- second of two'
    """
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n\n".join(re.sub(r"\s*\n\s*(?!- )", " ", paragraph) for paragraph in paragraphs)


def run(app: Callable[[], object], name: str, stopped: str) -> None:
    """Run a typer application and turn every way in which it can fail into a sentence and an exit code.

    Args:
        app: The application.
        name: What the command is called.
        stopped: What to print after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ERRORS)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it reports a cache of its own that it cannot write
    try:
        app()
    except InputListError as error:
        _fail(name, error.heading, MISTAKE, error.problems)
    except InputError as error:
        _fail(name, str(error), MISTAKE)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer's exit code for Ctrl-C
            _stopped(stopped)
        raise
    except KeyboardInterrupt:
        _stopped(stopped)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe, such as head, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _fail(name, _refused(error), MISTAKE)
    except MemoryError:
        _fail(
            name, "There is not enough memory for this; close other programs, or use fewer images or workers.", MISTAKE
        )
    except Exception as error:  # noqa: BLE001 - the last resort of a command
        _fail(name, _bug(name, error), BUG)


def _stopped(sentence: str) -> None:
    for line in ("", sentence):  # the terminal shows ^C without an end of line
        say(line, stderr=True)


def _fail(name: str, message: str, code: int, problems: Sequence[str] = ()) -> None:
    errors = SafeConsole(stderr=True)
    errors.print(Text(f"{name}:", style="bold red"), end=" ")
    for line in (_bounded(message), *(f"  {_bounded(problem)}" for problem in problems)):
        errors.print(one_line(line), markup=False, soft_wrap=True)
    sys.exit(code)


def _bounded(text: str) -> str:
    sentence = " ".join(text.split())
    return sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]} ..."


def _refused(error: OSError) -> str:
    """The sentence for an error of the system."""
    from pflbed.cache import cache_dir

    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    sentence = f"The system refused to read or write: {error.strerror or error}{f' ({where})' if where else ''}"
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        if where and Path(where).absolute().is_relative_to(cache_dir().absolute()):
            return f"{sentence}; this is the cache, and FEDBASIS_CACHE can name another folder for it."
    return f"{sentence}; make that possible and run the command again."


def _bug(name: str, error: BaseException) -> str:
    """Write the traceback, without values of variables, to a file of this user alone; the sentence says where."""
    lines = "".join(traceback.format_exception(error))
    what = f"{name} met a bug ({type(error).__name__})"
    for folder in _places():
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, place = tempfile.mkstemp(  # mode 600
                dir=folder, prefix=f"{name}-{datetime.now():%Y%m%d-%H%M%S}-", suffix=".txt"
            )
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(lines)
        except OSError:
            continue
        return f"{what}; the details are in {place}, please report them with your command."
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{what} in line {frame.lineno} of {Path(frame.filename).name}; please report it with the command that you ran."
    )


def _places() -> Iterator[Path]:
    from pflbed.cache import cache_dir

    with contextlib.suppress(OSError, RuntimeError):  # no home folder
        yield cache_dir() / "tracebacks"
    with contextlib.suppress(OSError):
        yield Path(tempfile.gettempdir())


def writable(folder: Path) -> None:
    """Check before the work that its result can be written."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"Results go to {folder}, but {there} is not a folder that can be written to; choose another.")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that an output's encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain_letters, error.object[error.start : error.end])), error.end


def _plain_letters(letter: str) -> str:
    if letter in _PLAIN:
        return _PLAIN[letter]
    if "\u2500" <= letter <= "\u257f":  # box drawing
        return "-" if letter in "─━═╌╍" else "|" if letter in "│┃║╎╏" else "+"
    if "\u2580" <= letter <= "\u259f":  # bars
        return "#"
    return unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode() or "?"


codecs.register_error(ERRORS, _replaced)
