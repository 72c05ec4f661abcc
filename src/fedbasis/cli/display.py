"""What a person sees in the terminal: live progress, or plain lines where there is no terminal; tables and bars."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedbasis.experiment import Observer
from fedbasis.methods import METHODS
from fedbasis.serving.evaluation import ResultRow
from fedbasis.serving.personalize import KEPT, label
from fedbasis.training.runs import Run

BLOCKS = " ▏▎▍▌▋▊▉█"


class Live:
    """Progress of one or more runs, each with a bar in a terminal, or with a line per round outside one."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("[bold]{task.fields[name]:<9}"), TextColumn("{task.description:<24}"), BarColumn(24),
            TextColumn("{task.fields[note]:<34}"), TimeElapsedColumn(), TextColumn("{task.fields[left]}"),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip

    def __enter__(self) -> "Live":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def observer(self, name: str) -> Observer:
        """Watch one run."""
        return _RunObserver(self, METHODS[name].title)


class _RunObserver(Observer):
    """One run's bar: first its rounds, then its new clients."""

    def __init__(self, live: Live, name: str) -> None:
        self._live, self._name = live, name
        self._task: TaskID = live.progress.add_task("waiting", total=None, name=name, note="", left="")
        self._rounds = 1
        self._clock = _TimeLeft()

    def _say(self, line: str) -> None:
        if not self._live.console.is_terminal:
            self._live.console.print(f"{self._name:<9} {line}", highlight=False, markup=False, soft_wrap=True)

    def _show(self, description: str, done: float, total: float, note: str) -> None:
        left = self._clock.left(done, total)
        self._live.progress.update(
            self._task, description=description, completed=done, total=total, note=note, left=left
        )

    def decoding(self, done: int, total: int) -> None:
        """Show how many images are decoded."""
        self._show(f"reading images {done}/{total}", done, total, "")
        if done == total:
            self._say(f"read {total} images")

    def bad_images(self, bad: list[tuple[str, str]]) -> None:
        """List what was left out."""
        print_bad(self._live.console, bad)

    def started(self, run: Run, method: str, rounds_done: int, rounds: int, jobs_done: int, jobs: int) -> None:
        """Show where the run begins or goes on."""
        self._rounds, self._clock = rounds, _TimeLeft()
        where = f"goes on after round {rounds_done}/{rounds}" if rounds_done else f"starts: {rounds} rounds"
        if run.done:
            where = "is done already, reading its results"
        self._say(f"{where}{f', {jobs} personalizations' if jobs else ''} ({run.folder})")

    def working(self, who: str) -> None:
        """Say who works where."""
        self._say(f"works with {who}")

    def client(self, number: int, client: int, clients: int, loss: float) -> None:
        """Move the bar by one client."""
        done = (number - 1) + client / clients
        self._show(f"round {number}/{self._rounds}", done, self._rounds, f"client {client}/{clients}  loss {loss:.3f}")

    def round(self, record: dict[str, Any]) -> None:
        """Say a line per round."""
        left = self._clock.left(record["round"], record["rounds"])
        score = record["validation"]
        loss = f"  loss {record['loss']:.3f}" if "loss" in record else ""
        epsilon = f"  ε {record['epsilon']:.2f}" if "epsilon" in record else ""
        accuracy = "" if score is None else f"  validation {100 * score:.1f} %"
        cosine = f"  cosine {record['cosine']['network']:.4f}" if "cosine" in record else ""
        left_out = {key: record.get(key) for key in ("refused", "absent")}
        refused = "".join(f"  {key} {', '.join(names)}" for key, names in left_out.items() if names)
        self._say(
            f"round {record['round']:>3}/{record['rounds']}  {record['clients']} clients{loss}"
            f"{accuracy}{cosine}{epsilon}  {record['seconds']:.1f} s{refused}  {left}"
        )
        if record["round"] == record["rounds"]:
            self._clock = _TimeLeft()

    def served(self, done: int, total: int, record: dict[str, Any]) -> None:
        """Move the bar by one personalization."""
        note = f"{record['client']} {record['how'].replace('coefficients', 'α')} {record['size']}"
        self._show(f"new clients {done}/{total}", done, total, note)
        if done == total or done % max(1, total // 8) == 0:
            self._say(f"new clients {done:>4}/{total}  {self._clock.left(done, total)}")


class ProgressShare(Observer):
    """Tell which share of a run is done; training and serving count half each."""

    def __init__(self, moved: Callable[[float], None]) -> None:
        self._moved, self._rounds = moved, 1

    def started(self, run: Run, method: str, rounds_done: int, rounds: int, jobs_done: int, jobs: int) -> None:
        """Begin where the run stands."""
        self._rounds = rounds
        self._moved(rounds_done / rounds / 2 + jobs_done / max(1, jobs) / 2)

    def client(self, number: int, client: int, clients: int, loss: float) -> None:
        """Move by one client."""
        self._moved((number - 1 + client / clients) / self._rounds / 2)

    def served(self, done: int, total: int, record: dict[str, Any]) -> None:
        """Move by one personalization."""
        self._moved(0.5 + done / total / 2)


class _TimeLeft:
    """Estimate the time left from what was done since the first look."""

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
    """List images that were left out, with their number."""
    counted = "1 image cannot be read and is" if len(bad) == 1 else f"{len(bad)} images cannot be read and are"
    console.print(f"[yellow]{counted} left out:[/yellow]")
    for path, reason in bad[:10]:
        console.print(f"  {path}: {reason}", highlight=False, markup=False, soft_wrap=True)
    if len(bad) > 10:
        console.print(f"  ... and {len(bad) - 10} more")


def results_title(config: Mapping[str, Any]) -> str:
    """Say whose accuracy a run's results are, by its configuration."""
    took_part = config.get("personalize", {}).get("whom", "new") == "participating"
    return f"Personalized accuracy (%) of the {'clients that took part' if took_part else 'new clients'}"


def results_table(rows: Sequence[ResultRow], sizes: Mapping[str, float], title: str) -> Table:
    """Lay out Last / Best / |Delta| of every method, size by size."""
    table = Table(title=title, title_justify="left", title_style="bold")
    names = [size for size in sorted(sizes, key=lambda size: sizes[size]) if any(row.size == size for row in rows)]
    table.add_column("method", no_wrap=True)
    for size in names:
        for column in ("Last", "Best", "|Δ|"):
            table.add_column(f"{size} {column}", justify="right", no_wrap=True)
    table.add_column("sec", justify="right")
    best = {size: max(row.last for row in rows if row.size == size) for size in names}
    found = {(row.method, row.how, row.size): row for row in rows}
    for method, how in dict.fromkeys((row.method, row.how) for row in rows):
        cells: list[str | Text] = [label(method, how)]
        seconds = []
        for size in names:
            row = found.get((method, how, size))
            if row is None:
                cells += ["-"] * 3
                continue
            learns = how not in ("none", KEPT)
            cells += [
                Text(f"{100 * row.last:.1f}", style="bold green" if row.last == best[size] else ""),
                f"{100 * row.best:.1f}" if learns else "-",
                f"{100 * row.delta:.1f}" if learns else "-",
            ]
            seconds.append(row.seconds)
        table.add_row(*cells, f"{sum(seconds) / len(seconds):.2f}")
    return table


def bar(share: float, width: int = 10) -> str:
    """Draw a share of one as a bar of eighths."""
    eighths = round(share * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (BLOCKS[rest] if rest else "")).ljust(width)


def coefficients_table(alpha: Mapping[str, Sequence[float]]) -> Table:
    """Draw the learned coefficients, a row per block and a bar per basis."""
    table = Table(title="What the client learned: how much of each basis, block by block", title_justify="left")
    table.add_column("block")
    count = len(next(iter(alpha.values())))
    width = max(2, min(10, 60 // count - 8))  # so that all bases fit into 80 columns
    for k in range(count):
        table.add_column(f"basis {k}", no_wrap=True)
    for block, shares in alpha.items():
        table.add_row(block, *(f"{bar(share, width)} {share:.2f}" for share in shares))
    return table


def methods_markdown() -> str:
    """Return the table of all methods, made from what their classes say."""
    heads = ("method", "name", "paper", "a client sends", "it keeps", "a new client gets", "ways by default")
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    for name, method in METHODS.items():
        ways = ", ".join(f"`{way}`" for way in method.ways)
        cells = (method.title, f"`{name}`", method.paper, method.sends, method.keeps, method.new_client, ways)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
