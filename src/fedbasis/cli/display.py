"""Terminal output: progress bars (plain lines if the output is not a terminal), tables and bars."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedbasis.cli.console import say, shows_clients, shows_progress
from fedbasis.methods import METHODS
from fedbasis.methods.base import ValueTable
from fedbasis.serving.evaluation import ResultRow
from fedbasis.serving.personalize import UNTRAINED
from fedbasis.training.events import (
    ClientServed,
    ClientTrained,
    Emit,
    Event,
    ImagesDecoded,
    ImagesSkipped,
    RoundEnded,
    RunStarted,
    WorkersStarted,
)
from pflbed.terminal import SafeConsole

if TYPE_CHECKING:
    from fedbasis.report.tables import Grid

BLOCKS = " ▏▎▍▌▋▊▉█"
LEGEND = (
    "Sizes: shares of a new client's images, S the smallest. Last: after the last epoch. Best: at the epoch chosen on "
    "validation images. |Δ|: their difference. LP: linear probe (classifier only). FT: fine-tuning. sec: seconds to "
    "personalize one client. Bold: the best Last and rows that are not significantly worse (paired t-test, Holm)."
)
"""What the columns and rows of a table of results mean."""


class Live:
    """The progress of one or more runs: a bar for each in a terminal, else a line per round."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("[bold]{task.fields[name]:<9}"), TextColumn("{task.description:<24}"), BarColumn(24),
            TextColumn("{task.fields[note]:<34}"), TimeElapsedColumn(), TextColumn("{task.fields[left]}"),
            console=console, transient=True, disable=not (shows_progress() and console.is_terminal),
        )  # fmt: skip

    def __enter__(self) -> "Live":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def listener(self, title: str) -> Emit:
        """Return an event listener that shows the progress of one run."""
        return _RunDisplay(self, title)


def show_progress() -> Emit:
    """Return an event listener that shows the progress of ``train`` or ``evaluate``: a bar, or a line per round.

    Returns:
        A function to pass as ``on_event``.

    Example:
        >>> import fedbasis as fb
        >>> callable(fb.show_progress())
        True
    """
    live = Live(SafeConsole(stderr=True))
    show = live.listener("")

    def listen(event: Event) -> None:
        if isinstance(event, RunStarted):
            live.progress.start()
        show(event)
        ended = isinstance(event, RoundEnded) and event.record["round"] == event.record["rounds"]
        if ended or (isinstance(event, ClientServed) and event.done == event.total):
            live.progress.stop()

    return listen


class _RunDisplay:
    """The bar of one run: first its rounds, then its new clients."""

    def __init__(self, live: Live, title: str) -> None:
        self._live, self._title = live, title
        self._task: TaskID = live.progress.add_task("waiting", total=None, name=title, note="", left="")
        self._rounds = 1
        self._clock = _TimeLeft()

    def _say(self, line: str) -> None:
        if shows_clients() or (shows_progress() and not self._live.console.is_terminal):
            say(f"{self._title:<9} {line}", to=self._live.console)

    def _show(self, description: str, done: float, total: float, note: str) -> None:
        left = self._clock.left(done, total)
        self._live.progress.update(
            self._task, description=description, completed=done, total=total, note=note, left=left
        )

    def __call__(self, event: Event) -> None:
        """Show an event: update the bar, or print a line if the output is not a terminal."""
        match event:
            case ImagesDecoded(done, total):
                self._show(f"reading images {done}/{total}", done, total, "")
                if done == total:
                    self._say(f"read {total} images")
            case ImagesSkipped(bad):
                print_bad(self._live.console, bad)
            case RunStarted():
                self._started(event)
            case WorkersStarted(description):
                self._say(f"works with {description}")
            case ClientTrained(number, client, clients, loss):
                note = f"client {client}/{clients}  loss {loss:.3f}"
                self._show(f"round {number}/{self._rounds}", number - 1 + client / clients, self._rounds, note)
                if shows_clients():
                    self._say(f"round {number:>3}/{self._rounds}  {note}")
            case RoundEnded(record):
                self._round(record)
            case ClientServed(done, total, record):
                note = f"{record['client']} {record['how']} {record['size']}"
                self._show(f"new clients {done}/{total}", done, total, note)
                if shows_clients():
                    self._say(f"new clients {done:>4}/{total}  {note}  {record['seconds']:.2f} s")
                elif done == total or done % max(1, total // 8) == 0:
                    self._say(f"new clients {done:>4}/{total}  {self._clock.left(done, total)}")

    def _started(self, event: RunStarted) -> None:
        self._rounds, self._clock = event.rounds, _TimeLeft()
        where = f"starts: {event.rounds} rounds"
        if event.rounds_done:
            where = f"resumes after round {event.rounds_done}/{event.rounds}"
        if event.done:
            where = "is already done, reading its results"
        served = f", {event.served} personalizations" if event.served else ""
        self._say(f"{where}{served}{f' ({event.folder})' if event.folder else ''}")

    def _round(self, record: dict[str, Any]) -> None:
        left = self._clock.left(record["round"], record["rounds"])
        score = record["validation"]
        loss = f"  loss {record['loss']:.3f}" if "loss" in record else ""
        epsilon = f"  ε {record['epsilon']:.2f}" if "epsilon" in record else ""
        accuracy = "" if score is None else f"  validation {100 * score:.1f} %"
        phase = f"  {record['phase']}" if "phase" in record else ""
        left_out = {key: record.get(key) for key in ("refused", "absent")}
        refused = "".join(f"  {key} {', '.join(names)}" for key, names in left_out.items() if names)
        self._say(
            f"round {record['round']:>3}/{record['rounds']}  {record['clients']} clients{loss}"
            f"{accuracy}{phase}{epsilon}  {record['seconds']:.1f} s{refused}  {left}"
        )
        if record["round"] == record["rounds"]:
            self._clock = _TimeLeft()


class ProgressShare:
    """An event listener that reports the completed share of a run; training and personalization are half each."""

    def __init__(self, moved: Callable[[float], None]) -> None:
        self._moved, self._rounds = moved, 1

    def __call__(self, event: Event) -> None:
        """Update the share after a client or a personalization."""
        match event:
            case RunStarted(_, _, rounds_done, rounds, served_done, served):
                self._rounds = rounds
                self._moved(rounds_done / rounds / 2 + served_done / max(1, served) / 2)
            case ClientTrained(number, client, clients):
                self._moved((number - 1 + client / clients) / self._rounds / 2)
            case ClientServed(done, total):
                self._moved(0.5 + done / total / 2)


class _TimeLeft:
    """Estimates the remaining time from the progress since the first call."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def left(self, done: float, total: float) -> str:
        """Return a text such as ``2:05 left``."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, done)
        then, before = self._first
        if done <= before or done >= total:
            return ""
        seconds = round((now - then) / (done - before) * (total - done))
        return f"{seconds // 60}:{seconds % 60:02d} left"


def print_bad(console: Console, bad: Sequence[tuple[str, str]]) -> None:
    """Print the images that were skipped, with their number."""
    counted = "1 image cannot be read and is" if len(bad) == 1 else f"{len(bad)} images cannot be read and are"
    console.print(f"[yellow]{counted} skipped:[/yellow]")
    for path, reason in bad[:10]:
        say(f"  {path}: {reason}", to=console)
    if len(bad) > 10:
        console.print(f"  ... and {len(bad) - 10} more")


def results_title(config: Mapping[str, Any]) -> str:
    """Return the title of a run's results table, by its configuration."""
    participating = config.get("personalize", {}).get("whom", "new") == "participating"
    return f"Personalized accuracy (%) of the {'participating' if participating else 'new'} clients"


def results_table(rows: Sequence[ResultRow], sizes: Mapping[str, float], title: str) -> Table:
    """Return a table with Last / Best / |Delta| of every method, size by size."""
    table = Table(title=title, title_justify="left", title_style="bold")
    names = [size for size in sorted(sizes, key=lambda size: sizes[size]) if any(row.size == size for row in rows)]
    table.add_column("method", no_wrap=True)
    for size in names:
        for column in ("Last", "Best", "|Δ|"):
            table.add_column(f"{size} {column}", justify="right", no_wrap=True)
    table.add_column("sec", justify="right")
    best = _leading(rows, names)
    by_key = {(row.method, row.how, row.size): row for row in rows}
    for method, how, label in dict.fromkeys((row.method, row.how, row.label) for row in rows):
        cells: list[str | Text] = [label]
        seconds = []
        for size in names:
            row = by_key.get((method, how, size))
            if row is None:
                cells += ["-"] * 3
                continue
            learns = how not in UNTRAINED
            cells += [
                Text(f"{100 * row.last:.1f}", style="bold green" if (method, how, size) in best else ""),
                f"{100 * row.best:.1f}" if learns else "-",
                f"{100 * row.delta:.1f}" if learns else "-",
            ]
            seconds.append(row.seconds)
        table.add_row(*cells, f"{sum(seconds) / len(seconds):.2f}")
    return table


def _leading(rows: Sequence[ResultRow], sizes: Sequence[str]) -> set[tuple[str, str, str]]:
    """Return the rows with the best Last of a size, and those that are not significantly worse."""
    from fedbasis.report.paired import bold  # scipy: half a second that commands without such a table need not wait

    found = set()
    for size in sizes:
        mine = [row for row in rows if row.size == size]
        marks = bold([row.per_client for row in mine])
        found |= {(row.method, row.how, size) for row, mark in zip(mine, marks, strict=True) if mark}
    return found


def bar(share: float, width: int = 10) -> str:
    """Return a bar for a share of one, drawn with block characters of an eighth."""
    eighths = round(share * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (BLOCKS[rest] if rest else "")).ljust(width)


def value_table(table: ValueTable) -> Table:
    """Return a terminal table of numbers; shares of one have bars."""
    shown = Table(title=table.title, title_justify="left")
    named = any(table.rows)
    if named:
        shown.add_column("")
    width = max(2, min(10, 60 // max(1, len(table.columns)) - 8))  # so that all columns fit into 80 characters
    for column in table.columns:
        shown.add_column(column, no_wrap=True, justify="left" if table.shares else "right")
    for name, row in table.rows.items():
        cells = [f"{bar(value, width)} {value:.2f}" if table.shares else f"{value:.4f}" for value in row]
        shown.add_row(*([name] if named else []), *cells)
    return shown


def grid_table(grid: "Grid") -> Table:
    """Draw a table of a report: one heading per column, the best cells bold; the paper's columns are in the report."""
    table = Table(title=grid.caption[:1].upper() + grid.caption[1:], title_justify="left", title_style="bold")
    groups = [name.removeprefix("size ") for name, span in grid.groups for _ in range(span)]
    groups += [""] * (len(grid.columns) - len(groups))
    table.add_column(grid.head, no_wrap=True)
    shown = [i for i, (g, c) in enumerate(zip(groups, grid.columns, strict=True)) if "*" not in f"{g}{c}"]
    for i in shown:
        table.add_column(f"{groups[i]} {grid.columns[i]}".strip(), justify="right", no_wrap=True)
    for head, cells in grid.rows:
        styled = [Text(cells[i].text, style="bold green" if cells[i].best else "") for i in shown]
        table.add_row(head.text, *styled)
    return table


def methods_markdown() -> str:
    """Return a Markdown table of all methods, from their ``About`` and ``Ways``."""
    heads = ("method", "name", "paper", "a client sends", "it keeps", "a new client gets", "ways by default")
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    for name, method in METHODS.items():
        about, ways = method.about, ", ".join(f"`{way}`" for way in method.ways.default)
        cells = (about.title, f"`{name}`", about.paper, about.sends, about.keeps, about.new_client, ways)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
