"""A Hugging Face dataset without its library: parquet shards whose schema says what the columns are, and a README.

Rows of a split are sorted by client. Images are written in groups of a few hundred, so memory use does not grow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pflbed.benchmark import NEW, PARTICIPATING, TEST, VAL, Benchmark
from pflbed.dataset import Dataset
from pflbed.export.picture import picture
from pflbed.export.readme import code, flower_code, readme
from pflbed.table import Rows

SPLITS = {"participating": PARTICIPATING, "new": NEW, "validation": VAL, "test": TEST}
GROUP_ROWS, GROUP_BYTES = 500, 16 * 2**20
"""A row group ends with whichever comes first; an export then needs some 200 MB, however large it is."""
SHARD_BYTES = 500 * 2**20
MANIFEST = "benchmark"
"""The folder of the manifest in an export for Flower."""


def write_hf(
    benchmark: Benchmark, dataset: Dataset, folder: Path, out: Path, report: Callable[[int, int], None], flower: bool
) -> list[str]:
    """Write ``data/*.parquet`` and ``README.md``; for Flower also the manifest."""
    chosen = {name: rows for name in SPLITS if len(rows := split_rows(benchmark, name))}
    total = sum(map(len, chosen.values()))
    schema = _schema(benchmark)
    (folder / "data").mkdir()
    done = 0

    def counted(rows: Rows) -> Iterator[dict[str, Any]]:
        nonlocal done
        for row in rows.tolist():
            yield _record(benchmark, dataset, row)
            report(done := done + 1, total)

    for name, rows in chosen.items():
        _write_shards(counted(rows), schema, folder / "data", name)
    counts = {name: len(rows) for name, rows in chosen.items()}
    if flower:
        benchmark.save(folder / MANIFEST)
    (folder / "README.md").write_text(readme(benchmark, counts, Path(out.resolve().name), flower), encoding="utf-8")
    listed = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    lines = [f"Wrote {total:,} images to {out} ({listed})."]
    if set(str(out.absolute())) & set("*?[]"):
        lines.append("Move it before use: load_dataset takes a path with *, ?, [ or ] as a pattern and finds nothing.")
    return [*lines, "Use it:", *(flower_code if flower else code)(benchmark, out)]


def split_rows(benchmark: Benchmark, name: str) -> Rows:
    """The rows of a split, client by client; training rows that no client has are left out."""
    number = SPLITS[name]
    here = benchmark.split == number
    rows = np.flatnonzero(here & (benchmark.client >= 0) if number <= NEW else here)
    return rows[np.argsort(benchmark.client[rows], kind="stable")]


def _schema(benchmark: Benchmark) -> Any:
    """The columns, and what they mean to Hugging Face's library, which reads it from the metadata."""
    import pyarrow as pa

    text = {"dtype": "string", "_type": "Value"}
    features = {
        "image": {"_type": "Image"},
        "label": {"names": list(benchmark.table.class_names), "_type": "ClassLabel"},
        "client": text,
        "domain": text,
        "row": {"dtype": "int64", "_type": "Value"},
        "size": text,
    }
    types = {
        "image": pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        "label": pa.int64(),
        "client": pa.string(),
        "domain": pa.string(),
        "row": pa.int64(),
        "size": pa.string(),
    }
    return pa.schema(types, metadata={"huggingface": json.dumps({"info": {"features": features}})})


def _record(benchmark: Benchmark, dataset: Dataset, row: int) -> dict[str, Any]:
    table = benchmark.table
    client, smallest = int(benchmark.client[row]), int(benchmark.smallest[row])
    return {
        "image": {"bytes": picture(dataset, table.paths[row]).content(), "path": table.paths[row]},
        "label": int(table.labels[row]),
        "client": benchmark.client_ids[client] if client >= 0 else None,
        "domain": table.domain_names[table.domains[row]],
        "row": row,
        "size": list(benchmark.spec.sizes)[smallest] if smallest >= 0 else None,
    }


def _write_shards(records: Iterator[dict[str, Any]], schema: Any, folder: Path, split: str) -> None:
    """Write files of about ``SHARD_BYTES``; how many there are is known, and put in their names, at the end."""
    import pyarrow as pa
    from pyarrow import parquet

    shards: list[Path] = []
    writer, written = None, 0
    try:
        for group, size in _groups(records):
            if writer is None:
                shards.append(folder / f"{split}.{len(shards)}")
                small = [name for name in schema.names if name != "image"]  # images neither repeat nor have an order
                writer = parquet.ParquetWriter(shards[-1], schema, use_dictionary=small, write_statistics=small)
            writer.write_table(pa.Table.from_pylist(group, schema), row_group_size=GROUP_ROWS)
            written += size
            if written >= SHARD_BYTES:
                writer.close()
                writer, written = None, 0
    finally:
        if writer is not None:
            writer.close()
    for number, shard in enumerate(shards):
        shard.rename(folder / f"{split}-{number:05d}-of-{len(shards):05d}.parquet")


def _groups(records: Iterator[dict[str, Any]]) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Groups that fit into memory, each with its size in bytes."""
    group: list[dict[str, Any]] = []
    size = 0
    for record in records:
        group.append(record)
        size += len(record["image"]["bytes"])
        if len(group) >= GROUP_ROWS or size >= GROUP_BYTES:
            yield group, size
            group, size = [], 0
    if group:
        yield group, size
