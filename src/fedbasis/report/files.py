"""The tables and figures of sections as files: markdown and csv, svg."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from fedbasis.report.section import Section
from fedbasis.report.tables import Grid
from pflbed.files import replacing


def write_files(sections: Sequence[Section], folder: Path) -> None:
    """Write tables/<section>.md and .csv and figures/<figure>.svg."""
    for section in sections:
        if section.tables:
            text = "\n\n".join([f"# {section.title}", *section.text, *map(_markdown, section.tables)])
            _write(folder / "tables" / f"{section.name}.md", text + "\n")
            _write(folder / "tables" / f"{section.name}.csv", "\n".join(map(_csv, section.tables)))
        for figure in section.figures:
            svg = str(figure.svg).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
            _write(folder / "figures" / f"{figure.name}.svg", svg)


def _heads(grid: Grid) -> list[str]:
    groups = [name for name, width in grid.groups for _ in range(width)]
    return [f"{group} {column}".strip() for group, column in zip(groups, grid.columns, strict=True)]


def _markdown(grid: Grid) -> str:
    heads = ["", *_heads(grid)]
    lines = [grid.caption, "", heads, ["---", *["---:"] * (len(heads) - 1)]]
    lines += [[name.text, *(cell.text for cell in cells)] for name, cells in grid.rows]
    return "\n".join(
        line if isinstance(line, str) else "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )


def _csv(grid: Grid) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow([grid.caption, *_heads(grid)])
    writer.writerows([name.text, *(cell.text for cell in cells)] for name, cells in grid.rows)
    return buffer.getvalue()


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
