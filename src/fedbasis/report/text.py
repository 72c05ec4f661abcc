"""A report as one page of text that a repository can hold: all tables and figures, and how they were made.

It lies beside the folders ``tables`` and ``figures``, whose pictures it shows. Times are those that the runs wrote
down, so the page of the same runs is the same, whenever it is made.
"""

import json
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import fedbasis
from fedbasis.report.chapter import Chapter
from fedbasis.report.files import escaped, markdown
from fedbasis.serving.personalize import label
from fedbasis.training.runs import Run, read_lines
from pflbed.files import replacing


def write_text(sections: Sequence[Chapter], runs: Sequence[Run], command: str, path: Path) -> None:
    """Write the page; ``command`` is what to type to get it."""
    parts = ["# Measured results", f"```\n{command}\n```", *_made(runs)]
    for section in sections:
        parts += [f"## {escaped(section.title)}", *map(escaped, section.text)]
        parts += [markdown(grid).strip() for grid in section.tables]
        parts += [
            f"![{escaped(figure.caption)}](figures/{figure.name}.svg)\n\n*{escaped(figure.caption)}*"
            for figure in section.figures
        ]
    with replacing(path) as temporary:
        temporary.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _made(runs: Sequence[Run]) -> Iterator[str]:
    """Say with what, and list every run with its time; a training that a run took over is counted once."""
    versions = f"fedbasis {fedbasis.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    lines, total, trained = list[str](), 0.0, dict[str, str]()
    for run in sorted(runs, key=lambda run: run.folder.name):
        config = json.loads(run.config.read_text(encoding="utf-8"))
        training = json.loads((run.folder / "done").read_text(encoding="utf-8"))["training"]
        rounds, served = (sum(line["seconds"] for line in read_lines(p)) / 60 for p in (run.metrics, run.evaluation))
        before = trained.setdefault(training, run.folder.name)
        borrowed = before != run.folder.name
        total += served + (0.0 if borrowed else rounds)
        shown = f"as {before}" if borrowed else f"{rounds:.1f}"
        method = label(config["method"]["name"], "none")
        lines.append(f"| {run.folder.name} | {method} | {config['seed']} | {shown} | {served:.1f} |")
    if lines:
        yield (
            f"Made with {versions}. By their own clocks the {len(lines)} runs took {total:.0f} minutes, one after "
            "another and without the scoring of test images."
        )
        head = "| run | method | seed | minutes to train | minutes to serve |\n| --- | --- | ---: | ---: | ---: |"
        yield "<details><summary>Runs</summary>\n\n" + "\n".join([head, *lines]) + "\n\n</details>"
