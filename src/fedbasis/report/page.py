"""Write the report as one self-contained html file; the same runs give the same bytes."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedbasis import __version__
from fedbasis.report import panels, tables, training
from fedbasis.report.answer import answer
from fedbasis.report.chapter import Chapter
from fedbasis.report.colors import method_styles
from fedbasis.report.groups import apart, grouped
from fedbasis.report.headline import caveats, headline
from fedbasis.report.runs import RunData, read_runs, sizes_of
from fedbasis.report.svg import Sheet, style
from fedbasis.report.testbeds import Testbed, by_testbed
from fedbasis.training.runs import Run
from pflbed.errors import InputError
from pflbed.files import replacing


def write_report(runs: Sequence[Run], path: Path, sections: Sequence[Chapter] = ()) -> None:
    """Write the report of the runs, finished or not; ``sections`` are placed before the runs' own results."""
    if path.is_dir():
        raise InputError(f"The report must be a file, but {path} is a folder; add a name such as report.html.")
    known = read_runs(runs) if runs or not sections else []  # a section may be about data alone
    page = _render(known, sections, path.resolve().parent)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace", newline="\n")


def table_sections(runs: Sequence[Run]) -> list[Chapter]:
    """Return the tables of the page as sections, to be written as files."""
    groups = grouped(read_runs(runs))
    tested = by_testbed(groups)
    found = {
        "results": [_titled(testbed, tables.results(testbed.groups)) for testbed in tested],
        "clients": [_titled(testbed, tables.by_client(testbed.groups)) for testbed in tested],
        "domains": [_titled(testbed, tables.by_domain(testbed.groups)) for testbed in tested],
        "cost": [tables.training_cost(groups)],
    }
    return [Chapter(name, name.capitalize(), tables=grids) for name, grids in found.items()]


def _render(runs: Sequence[RunData], sections: Sequence[Chapter], home: Path) -> str:
    environment = Environment(
        loader=PackageLoader("fedbasis.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html.j2").render(_context(runs, sections, home))


def _context(runs: Sequence[RunData], sections: Sequence[Chapter], home: Path) -> dict[str, Any]:
    groups, scored = grouped(runs), [run for run in runs if run.rows]
    tested, styles = by_testbed(groups), method_styles(groups)
    seeds = any(len(group.runs) > 1 for group in groups)
    sizes, sheet = sizes_of(scored or runs), Sheet()
    smallest, largest = (next(iter(sizes)), list(sizes)[-1]) if sizes else ("", "")
    with style():
        drawn = {
            "sections": [_placed(section, sheet) for section in sections],
            "clients": [
                (
                    panel,
                    _titled(testbed, tables.by_client(testbed.groups)),
                    _titled(testbed, tables.by_domain(testbed.groups)),
                )
                for testbed in tested
                if (panel := panels.accuracies(testbed.groups, testbed.title, sheet))
            ],
            "training": training.training(groups, sheet),
            "charts": training.charts(groups, sheet),
            "adaptation": panels.adaptation(groups, smallest, sheet),
            "learned": panels.learned(groups, largest, sheet),
            "populations": panels.populations(groups, sheet),
        }
    results = [
        (
            testbed.title,
            _titled(testbed, tables.results(testbed.groups)),
            tables.results(apart(testbed.groups)) if seeds else None,
        )
        for testbed in tested
    ]
    return drawn | {
        "version": __version__,
        "origins": [
            (group, [(run, _link(run.path, home)) for run in group.runs], _written(group.runs[0].config))
            for group in groups
        ],
        "answers": [answer(testbed, styles) for testbed in tested],
        "headline": headline(groups),
        "caveats": caveats(groups),
        "seeds": seeds,
        "sizes": {size: f"{100 * share:g} %" for size, share in sizes.items()},
        "smallest": smallest,
        "largest": largest,
        "results": results,
        "bold": any(cell.best for _, grid, _ in results for _, cells in grid.rows for cell in cells),
        "training_cost": tables.training_cost(groups),
    }


def _titled(testbed: Testbed, grid: tables.Grid) -> tables.Grid:
    """Name the data in a table's caption where the page has several."""
    return replace(grid, caption=f"{testbed.title}: {grid.caption}") if testbed.title else grid


def _placed(section: Chapter, sheet: Sheet) -> dict[str, Any]:
    figures = [(sheet.place(figure.svg, figure.caption or figure.name), figure.caption) for figure in section.figures]
    return {"title": section.title, "text": section.text, "tables": section.tables, "figures": figures}


def _link(folder: Path, home: Path) -> str:
    """Return the relative link from the page to a folder."""
    return quote(os.path.relpath(folder, home)) + "/"


def _written(config: Any) -> str:
    return json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
