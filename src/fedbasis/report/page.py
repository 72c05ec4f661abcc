"""The page: runs in, one self-contained html file out, the same bytes for the same runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedbasis import __version__
from fedbasis.report import panels, tables
from fedbasis.report.data import RunData, read_runs, sizes_of
from fedbasis.report.headline import caveats, comparable, headline
from fedbasis.report.section import Section
from fedbasis.report.svg import Sheet, style
from fedbasis.runs import Run
from pflbed.errors import InputError
from pflbed.files import replacing


def write_report(runs: Sequence[Run], path: Path, sections: Sequence[Section] = ()) -> None:
    """Write the report of the runs, finished or not, as one page that needs nothing else."""
    if path.is_dir():
        raise InputError(f"The report must be a file, but {path} is a folder; add a name such as report.html.")
    page = _render(read_runs(runs))
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace", newline="\n")


def _render(runs: Sequence[RunData]) -> str:
    environment = Environment(
        loader=PackageLoader("fedbasis.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html.j2").render(_context(runs))


def _context(runs: Sequence[RunData]) -> dict[str, Any]:
    scored = [run for run in runs if run.rows]
    sizes, sheet = sizes_of(scored or runs), Sheet()
    smallest, largest = (next(iter(sizes)), list(sizes)[-1]) if sizes else ("", "")
    with style():
        drawn = {
            "accuracies": panels.accuracies(runs, sheet),
            "training": panels.training(runs, sheet),
            "adaptation": panels.adaptation(runs, smallest, sheet),
            "learned": panels.learned(runs, largest, sheet),
            "populations": panels.populations(runs, sheet),
        }
    return drawn | {
        "version": __version__,
        "runs": [(run, json.dumps(run.config, indent=2, sort_keys=True, ensure_ascii=False)) for run in runs],
        "headline": headline(runs),
        "caveats": caveats(runs),
        "marked": comparable(runs),
        "sizes": {size: f"{100 * share:g} %" for size, share in sizes.items()},
        "smallest": smallest,
        "largest": largest,
        "results": tables.results(runs) if scored else None,
        "by_domain": tables.by_domain(runs) if scored else None,
        "training_cost": tables.training_cost(runs),
        "personalization_cost": tables.personalization_cost(runs) if scored else None,
    }
