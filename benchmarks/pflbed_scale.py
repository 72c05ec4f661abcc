"""How large a benchmark can be: PACS's counts, and 5 million rows for 100,000 clients, built and written.

    python benchmarks/pflbed_scale.py [--rows 5000000] [--clients 100000] [--partition dirichlet]

Prints seconds of every step and the peak memory of the process. Reading the table from a parquet file is a step too.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pflbed import Spec, Table, build, load_manifest
from pflbed.spec import NATURAL, PARTITIONS
from pflbed.table_file import read_table

PACS = {
    "art_painting": (379, 255, 285, 184, 201, 295, 449),
    "cartoon": (389, 457, 346, 135, 324, 288, 405),
    "photo": (189, 202, 182, 186, 199, 280, 432),
    "sketch": (772, 740, 753, 608, 816, 80, 160),
}


def pacs() -> Table:
    """PACS's real counts without its images."""
    cells = [(d, label, n) for d, counts in enumerate(PACS.values()) for label, n in enumerate(counts)]
    return Table(
        paths=tuple(f"{d}/{label}/{i}.jpg" for d, label, n in cells for i in range(n)),
        labels=np.concatenate([np.full(n, label) for _, label, n in cells]),
        domains=np.concatenate([np.full(n, d) for d, _, n in cells]),
        class_names=tuple("abcdefg"),
        domain_names=tuple(PACS),
        digest="0" * 64,
    )


def write_rows(path: Path, rows: int, domains: int, classes: int, users: int) -> None:
    """A table of so many rows: domains alike, classes as skewed as Zipf's law, users of chance."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    weights = 1 / (np.arange(classes) + 10)
    labels = rng.choice(classes, rows, p=weights / weights.sum())
    number = pa.array(np.arange(rows)).cast(pa.string())
    table = {
        "path": pa.compute.binary_join_element_wise("images", number, "/"),
        "class": pa.array(labels).cast(pa.string()),
        "domain": pa.array(rng.integers(0, domains, rows)).cast(pa.string()),
        "user": pa.array(rng.integers(0, users, rows)).cast(pa.string()),
    }
    parquet.write_table(pa.table(table), path)


@contextmanager
def timed(what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform != "darwin" else 1024**3)
    print(f"{what:<40} {time.perf_counter() - start:7.2f} s   peak so far {peak:5.2f} GB", flush=True)


def main() -> None:
    import pyarrow.compute  # noqa: F401  (makes pa.compute)

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--domains", type=int, default=4)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--partition", default="dirichlet", choices=PARTITIONS)
    given = parser.parse_args()
    table = pacs()
    with timed("PACS: build"):
        build(table, Spec())
    new = given.clients // (3 * given.domains)
    some = {"clients_per_domain": given.clients // given.domains - new, "new_clients_per_domain": new}
    base = NATURAL if given.partition == "natural" else Spec(partition=given.partition)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        users = 2 * given.clients // given.domains
        write_rows(path, given.rows, given.domains, given.classes, users)
        start = time.perf_counter()
        with timed(f"{given.rows:,} rows: read the table"):
            table = read_table(path)
        with timed(f"{given.clients:,} clients, {given.partition}: build"):
            benchmark = build(table, base.changed({**some, "min_rows": 1}, 0))
        with timed("write manifest and card"):
            benchmark.save(Path(folder) / "bench")
        total = time.perf_counter() - start
        with timed("read them back"):
            back = load_manifest(Path(folder) / "bench")
        assert back.client_ids == benchmark.client_ids
        print(f"table to benchmark on disk: {total:.1f} s")


if __name__ == "__main__":
    main()
