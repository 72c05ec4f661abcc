"""Chapters as files: tables as markdown, csv and LaTeX, figures as svg and csv; the same bytes each time."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from fedbasis.report.chapter import Chapter
from fedbasis.report.svg import standalone
from fedbasis.report.tables import NOTHING, Cell, Grid
from pflbed.errors import InputError
from pflbed.files import replacing

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SPREAD = " ± "
"""Between a mean and its deviation; csv has a column for each."""
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"$|$",
    "Δ": r"$\Delta$", "α": r"$\alpha$", "τ": r"$\tau$", "±": r"$\pm$", "·": r"$\cdot$", "−": "$-$", "–": "--",
    "→": r"$\to$",
}  # fmt: skip
MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")


def write_files(sections: Sequence[Chapter], folder: Path) -> list[Path]:
    """Write ``tables/<name>.md|csv|tex`` and ``figures/<name>.svg|csv`` and return their paths.

    A section with several tables numbers those that have no name from 1.
    """
    written: dict[Path, str] = {}

    def put(kind: str, name: str, ending: str, text: str) -> None:
        path = folder / kind / f"{name}.{ending}"
        if not NAME.fullmatch(name) or path in written:
            raise InputError(
                f"Every table and figure needs a name of its own made of letters, digits, '.', '_' and '-', but there "
                f"is {name!r}{' twice' if path in written else ''}; rename its section or figure."
            )
        written[path] = text

    for section in sections:
        numbers = count(1)
        alone = sum(not grid.name for grid in section.tables) == 1
        for grid in section.tables:
            ending = grid.name or ("" if alone else str(next(numbers)))
            name = f"{section.name}-{ending}" if ending else section.name
            for kind, write in WRITERS.items():
                put("tables", name, kind, write(grid))
        for figure in section.figures:
            put("figures", figure.name, "svg", standalone(figure.svg))
            if figure.csv:
                put("figures", figure.name, "csv", figure.csv)
    for path, text in written.items():
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="replace", newline="")
    return list(written)


def markdown(grid: Grid) -> str:
    """Write a table as markdown, below its caption."""

    def shown(cell: Cell) -> str:
        text = escaped(cell.text)
        return f"**{text}**" if cell.best else text

    heads = [escaped(head) for head in _heads(grid)]
    lines = [heads, ["---", *["---:"] * len(grid.columns)]]
    lines += [[shown(cell) for cell in (head, *cells)] for head, cells in grid.rows]
    above = f"{grid.caption}. {grid.note}" if grid.note else grid.caption
    return f"{escaped(above)}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def comma_separated(grid: Grid) -> str:
    """Write a table as csv: a deviation has a column of its own, a missing number is empty."""
    rows = [[head.text, *(cell.text for cell in cells)] for head, cells in grid.rows]
    spread = [any(SPREAD in row[column] for row in rows) for column in range(1, len(grid.columns) + 1)]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    heads = _heads(grid)
    writer.writerow([heads[0], *(name for head, two in zip(heads[1:], spread, strict=True)
                                 for name in ([head, f"{head} deviation"] if two else [head]))])  # fmt: skip
    for row in rows:
        line = [row[0]]
        for text, two in zip(row[1:], spread, strict=True):
            mean, _, deviation = text.partition(SPREAD) if two else (text, "", "")
            line += ["" if mean == NOTHING else mean, *([deviation] if two else [])]
        writer.writerow(line)
    return buffer.getvalue()


def latex(grid: Grid) -> str:
    """Write a table as LaTeX; it needs the package booktabs."""

    def shown(cell: Cell) -> str:
        text = _latex(cell.text)
        return rf"\textbf{{{text}}}" if cell.best else text

    groups = [rf"\multicolumn{{{span}}}{{c}}{{{_latex(name)}}}" for name, span in grid.groups]
    lines = [
        rf"% {' '.join(grid.caption.split())}",
        rf"\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        r"\toprule",
        *([" & ".join(["", *groups]) + r" \\"] if any(name for name, _ in grid.groups) else []),
        " & ".join(_latex(name) for name in (grid.head, *grid.columns)) + r" \\",
        r"\midrule",
        *(" & ".join(shown(cell) for cell in (head, *cells)) + r" \\" for head, cells in grid.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


WRITERS: dict[str, Callable[[Grid], str]] = {"md": markdown, "csv": comma_separated, "tex": latex}


def _heads(grid: Grid) -> list[str]:
    """Name every column in one line: its group, without the word size, and itself."""
    groups = [name.removeprefix("size ") for name, span in grid.groups for _ in range(span)]
    groups += [""] * (len(grid.columns) - len(groups))
    return [grid.head, *(f"{group} {column}".strip() for group, column in zip(groups, grid.columns, strict=True))]


def escaped(text: str) -> str:
    """Write text so that markdown shows it as it is."""
    return MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))
