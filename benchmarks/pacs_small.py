"""Every method on a small PACS: 16 participating and 8 new clients, 32 pixels, a small pretrained ResNet, 6 rounds.

    python benchmarks/pacs_small.py --data PACS --weights tiny-imagenet --out runs/pacs-small \
        --page docs/results/pacs-small.md [--methods fedavg,fedbasis] [--jobs 2]

Writes one table: methods and ways of personalizing x {S, M} x {Last, Best, |Delta|}, with seconds and bytes. Runs that
are done are only read, so a stopped command goes on.
"""

import argparse
import json
import multiprocessing
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch

from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.methods import METHODS
from fedbasis.serving.personalize import label
from fedbasis.training.runs import Run, read_lines
from pflbed import InputError

SETTINGS: dict[str, dict[str, Any]] = {
    "fedbasis": {"bases": 4},
    "ifca": {},
}


def experiment(method: str, data: str, weights: str, seed: int) -> dict[str, Any]:
    """The same for every method."""
    return {
        "seed": seed,
        "data": {"source": data, "resolution": 32, "clients": 4, "new_clients": 2},
        "model": {"name": "resnet10", "options": {"width": 16}, "weights": weights},
        "train": {"rounds": 6, "epochs": 1, "batch": 16, "rate": 0.01},
        "personalize": {"epochs": 10, "rates": [0.005, 0.01, 0.05]},
        "method": {"name": method, **SETTINGS.get(method, {})},
    }


def carry_out(job: tuple[str, dict[str, Any], Path]) -> tuple[str, str, str]:
    """Run one method; return its run folder or what went wrong."""
    method, raw, out = job
    torch.set_num_threads(1)
    try:
        return method, str(execute(prepare(parse(raw)), out).folder), ""
    except InputError as error:
        return method, "", str(error)


def table(runs: dict[str, Run]) -> list[str]:
    """Markdown, best first by M Last."""
    heads = ["S Last", "S Best", "S \\|Δ\\|", "M Last", "M Best", "M \\|Δ\\|", "rate S / M", "s to train"]
    heads += ["s a new client", "KB up", "KB down"]
    lines = [f"| method | {' | '.join(heads)} |", f"| --- | {' | '.join('---:' for _ in heads)} |"]
    rows: list[tuple[float, str]] = []
    for method, run in runs.items():
        rounds = read_lines(run.metrics)
        seconds = sum(line["seconds"] for line in rounds)
        up, down = (rounds[-1][key] / 1000 for key in ("bytes_up", "bytes_down"))
        found = json.loads(run.results.read_text(encoding="utf-8"))
        for how in dict.fromkeys(row["how"] for row in found):
            by_size = {row["size"]: row for row in found if row["how"] == how}
            cells = [f"{100 * by_size[s][k]:.1f}" for s in ("S", "M") for k in ("last", "best", "delta")]
            rates = " / ".join(f"{by_size[s]['rate']:g}" for s in ("S", "M"))
            unfitted = " (not fitted)" if how == "none" and METHODS[method].ways.own else ""
            line = [label(method, how) + unfitted, *cells, rates if how != "none" else "-", f"{seconds:.0f}"]
            line += [f"{by_size['M']['seconds']:.1f}", f"{up:.0f}", f"{down:.0f}"]
            rows.append((-by_size["M"]["last"], "| " + " | ".join(line) + " |"))
    return lines + [line for _, line in sorted(rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/pacs-small"))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--methods")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    names = given.methods.split(",") if given.methods else list(METHODS)
    jobs = [(name, experiment(name, given.data, given.weights, given.seed), given.out) for name in names]
    prepare(parse(jobs[0][1]))  # decoded once, before several look for it
    runs: dict[str, Run] = {}
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for method, folder, wrong in pool.imap_unordered(carry_out, jobs):
            took = f"{time.perf_counter() - started:6.0f} s"
            print(f"{took}  {len(runs) + 1}/{len(jobs)}  {method:<14} {wrong or folder}", file=sys.stderr, flush=True)
            if folder:
                runs[method] = Run(Path(folder))
    lines = table({name: runs[name] for name in names if name in runs})
    print("\n".join(lines))
    if given.page is not None:
        text = given.page.read_text(encoding="utf-8") if given.page.exists() else "<!-- table -->\n<!-- end -->\n"
        head, rest = text.split("<!-- table -->")
        tail = rest.split("<!-- end -->")[1]
        made = f"torch {torch.__version__.split('+')[0]}, Python {platform.python_version()}, seed {given.seed}"
        body = "\n".join(["", *lines, "", f"Made with {made}.", ""])
        given.page.write_text(f"{head}<!-- table -->{body}<!-- end -->{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
