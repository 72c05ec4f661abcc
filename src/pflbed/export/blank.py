"""A table of all test rows with an empty column for predictions, to score any framework."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable
from pathlib import Path

from pflbed.benchmark import Benchmark
from pflbed.errors import InputError

FILE = "predictions.csv"


def write_blank(benchmark: Benchmark, folder: Path, out: Path, report: Callable[[int, int], None]) -> list[str]:
    """List every client's test rows; a shared test image is listed once per client."""
    tested = [name for name in benchmark.client_ids if benchmark.held_weights(name, "test").sum()]
    if not tested:
        raise InputError("A benchmark must have test images to be predicted, got none; build it with a test share")
    total = sum(len(benchmark.held_rows(name, "test")) for name in tested)
    done = 0
    with (folder / FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "row", "path", "predicted"])
        for name in tested:
            rows = benchmark.held_rows(name, "test").tolist()
            writer.writerows((name, row, benchmark.table.paths[row], "") for row in rows)
            report(done := done + len(rows), total)
    lines = [f"Wrote {total:,} rows to predict for {len(tested):,} clients to {out / FILE}."]
    if missing := len(benchmark.client_ids) - len(tested):
        lines.append(f"{missing:,} clients have no test images of their classes and are not listed.")
    lines.append("Fill the column 'predicted' with class names or numbers; whole clients may be left out.")
    lines.append(f"Then: pflbed score BENCH {shlex.quote(str(out / FILE))}")
    return lines
