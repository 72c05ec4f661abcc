"""``python -m fuzz --count N --seed S --only pflbed``: every target in a child process with a limit of memory."""

import argparse
import json
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

from fuzz import load_targets, run_target
from fuzz.runner import LONG, RESIDENT, limited_memory, peak_memory

SLOW = ("fedbasis run folder", "pflbed command line", "pflbed folder")
"""Targets that do much with every mutant: they get a tenth of the mutants."""


WHOLE = 4 * 3600
"""Seconds for all mutants of a target."""


def in_child(name: str, count: int, seed: int) -> dict[str, object]:
    """Run one target in a process of its own and return its counts."""
    argv = [sys.executable, "-m", "fuzz", "--child", name, "--count", str(count), "--seed", str(seed)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=WHOLE)
    except subprocess.TimeoutExpired:  # a reader that holds the interpreter cannot be interrupted from within
        return {"died": f"it ran for more than {WHOLE // 3600} hours"}
    last = done.stdout.strip().splitlines()[-1:] or [""]
    if done.returncode or not last[0].startswith("{"):
        return {"died": f"exit code {done.returncode}: {done.stderr[-2000:]}"}
    found: dict[str, object] = json.loads(last[0])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="mutants per target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="targets whose name begins so, such as pflbed")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        (chosen,) = (target for target in load_targets() if target.name == given.child)
        with limited_memory():
            outcome = run_target(chosen, given.count, given.seed, LONG)
        found = {"counts": outcome.counts, "tracebacks": outcome.tracebacks, "slowest": outcome.slowest}
        found["peak"] = peak_memory()
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    table = Table(title=f"{given.count:,} mutants per target, seed {given.seed}")
    table.add_column("target")
    for heading in ("mutants", "ok", "refused", "tracebacks", "hangs", "slowest (s)", "peak (MB)"):
        table.add_column(heading, justify="right")
    problems: list[str] = []
    total, began = 0, time.monotonic()
    for chosen in load_targets(given.only):
        count = -(-given.count // 10) if chosen.name in SLOW else given.count
        found = in_child(chosen.name, count, given.seed)
        if "died" in found:
            problems.append(f"{chosen.name}: {found['died']}")
            table.add_row(chosen.name, "-", "-", "-", "died", "-", "-", "-")
            continue
        counts = found["counts"]
        assert isinstance(counts, dict)
        numbers = [sum(counts.values()), *(counts.get(kind, 0) for kind in ("ok", "refused", "traceback", "hang"))]
        total += numbers[0]
        slowest, peak = float(str(found["slowest"])), int(str(found["peak"]))
        table.add_row(chosen.name, *(f"{number:,}" for number in numbers), f"{slowest:.1f}", f"{peak / 1e6:,.0f}")
        sys.stderr.write(f"{chosen.name}: {counts}, {peak / 1e6:,.0f} MB\n")
        if peak > RESIDENT:
            problems.append(f"{chosen.name}: {peak:,} bytes of memory, more than {RESIDENT:,}")
        tracebacks = found["tracebacks"]
        assert isinstance(tracebacks, list)
        problems += [f"{chosen.name}, {text}" for text in tracebacks]
    Console(width=120).print(table)
    sys.stdout.write(f"{total:,} mutants in {(time.monotonic() - began) / 60:.0f} minutes\n")
    for text in problems:
        sys.stdout.write(f"\n{text.encode('ascii', 'backslashreplace').decode()}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
