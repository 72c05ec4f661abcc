"""A report as one Markdown page for a repository: all tables and figures, and how they were made.

It links to the figures in the folder ``figures`` beside it. Times are those in the runs' logs, so the same runs give
the same page.
"""

import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import fedbasis
from fedbasis.report.chapter import Chapter
from fedbasis.report.files import escaped, markdown
from fedbasis.report.runs import RunData, numbers
from pflbed.files import replacing


def write_text(
    sections: Sequence[Chapter], runs: Sequence[RunData], command: str, path: Path, missing: Sequence[str] = ()
) -> None:
    """Write the page; ``command`` is the command line that makes it, ``missing`` the names of results not on it."""
    parts = ["# Measured results", f"```\n{command}\n```", *_contents(sections, missing), *_provenance(runs)]
    for section in sections:
        parts += [f"## {escaped(section.title)}", *map(escaped, section.text)]
        parts += [markdown(grid).strip() for grid in section.tables]
        parts += [
            f"![{escaped(figure.caption)}](figures/{figure.name}.svg)\n\n*{escaped(figure.caption)}*"
            + (f" ([numbers](figures/{figure.name}.csv))" if figure.csv else "")
            for figure in section.figures
        ]
    with replacing(path) as temporary:
        temporary.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _contents(sections: Sequence[Chapter], missing: Sequence[str]) -> Iterator[str]:
    """List the results that are on the page, and those that are not."""
    yield f"{len(sections)} of {len(sections) + len(missing)} results are on this page:"
    yield "\n".join(f"- `{section.name}`: {escaped(section.title)}" for section in sections)
    if missing:
        yield f"Not on this page: {', '.join(f'`{name}`' for name in missing)}."


def _provenance(runs: Sequence[RunData]) -> Iterator[str]:
    """Name the versions and list every run with its time; a training that several runs share counts once."""
    versions = f"fedbasis {fedbasis.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    lines, total, trained = list[str](), 0.0, dict[str, str]()
    for run in sorted(runs, key=lambda run: run.folder):
        rounds, served = (sum(numbers(log, "seconds")) / 60 for log in (run.lines, run.records))
        first = trained.setdefault(run.training, run.folder)
        reused = first != run.folder
        total += served + (0.0 if reused else rounds)
        shown = f"as {first}" if reused else f"{rounds:.1f}"
        lines.append(f"| {run.folder} | {run.title} | {run.seed} | {shown} | {served:.1f} |")
    if lines:
        yield (
            f"By their logs the {len(lines)} runs took {total:.0f} minutes, one after another and without the scoring "
            f"of test images. {' '.join(_made_with(runs))} This page was made with {versions}."
        )
        head = "| run | method | seed | minutes to train | minutes to serve |\n| --- | --- | ---: | ---: | ---: |"
        yield "<details><summary>Runs</summary>\n\n" + "\n".join([head, *lines]) + "\n\n</details>"


def _made_with(runs: Sequence[RunData]) -> Iterator[str]:
    """Name the versions of the runs, most frequent first."""
    for found, count in Counter(escaped(run.versions) for run in runs).most_common():
        many = f"{count} run{'s' * (count > 1)}"
        yield (
            f"{many} {'were' if count > 1 else 'was'} made with {found}."
            if found
            else f"{many} {'do' if count > 1 else 'does'} not say with which versions."
        )
