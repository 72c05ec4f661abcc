"""Run all benchmarks, one after another in processes of their own; tables go to docs/explanation/performance.md.

python benchmarks/all.py            (about half an hour on 2 idle cores)
python benchmarks/all.py --quick    (some minutes; prints and changes no page)
python benchmarks/all.py --only overhead,memory
"""

import os
import subprocess
import sys
from pathlib import Path

from measure import options, put

NAMES = ("cost", "basis_round", "overhead", "throughput", "population", "new_clients", "memory")
HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "explanation" / "performance.md"


def output_of(name: str, quick: bool) -> str:
    """Run one benchmark and return what it printed."""
    command = [sys.executable, str(HERE / f"{name}.py"), *(["--quick"] if quick else [])]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    given = options(__doc__, only={"default": ",".join(NAMES), "help": "names, separated by commas"})
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    for name in given.only.split(","):
        text = output_of(name, given.quick)
        print(f"## {name}\n\n{text}", flush=True)
        if not given.quick:
            PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), name, text), encoding="utf-8")


if __name__ == "__main__":
    main()
