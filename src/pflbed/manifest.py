"""A benchmark on disk: ``manifest.parquet``, a row per image, and ``card.json``, what made it and who has what."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from pflbed.benchmark import SPLITS, Benchmark
from pflbed.errors import InputError
from pflbed.files import replacing, sha256_of, write_json
from pflbed.spec import Spec
from pflbed.table import Table

FORMAT = 1
MANIFEST = "manifest.parquet"
CARD = "card.json"


def save(benchmark: Benchmark, folder: Path) -> None:
    """Write both files atomically and without a date, so that the same benchmark is the same bytes."""
    import pyarrow as pa
    from pyarrow import parquet

    table, ids = benchmark.table, benchmark.client_ids
    columns = {
        "path": list(table.paths),
        "domain": [table.domain_names[i] for i in table.domains],
        "class": [table.class_names[i] for i in table.labels],
        "split": benchmark.split.tolist(),
        "client": [ids[i] if i >= 0 else "" for i in benchmark.client],
        "size": benchmark.smallest.tolist(),
        "group": list(table.groups) if table.groups is not None else [None] * len(table),
    }
    arrow = pa.table({name: pa.array(values, type=pa.string()) for name, values in columns.items()})
    with replacing(Path(folder) / MANIFEST) as temporary:
        parquet.write_table(arrow, temporary, version="2.6", compression="zstd", compression_level=3)
    card = {
        "format": FORMAT,
        "version": _version(),
        "spec": benchmark.spec.as_json(),
        "seed": benchmark.spec.seed,
        "digest": table.digest,
        "manifest_sha256": sha256_of(Path(folder) / MANIFEST),
        "class_names": list(table.class_names),
        "domain_names": list(table.domain_names),
        "client_ids": list(ids),
        "label_distributions": {name: benchmark.label_distribution(name).tolist() for name in ids},
    }
    write_json(Path(folder) / CARD, card)


def load_manifest(folder: Path) -> Benchmark:
    """Read a benchmark back; a changed or foreign file is refused."""
    from pyarrow import parquet

    card = _card(Path(folder) / CARD)
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise InputError(f"a benchmark folder must hold {MANIFEST}, got none in {folder}; build the benchmark again")
    if sha256_of(path) != card["manifest_sha256"]:
        raise InputError(
            f"{path} must be the file its {CARD} was written for, but it differs; build the benchmark again"
        )
    columns = parquet.read_table(path).to_pydict()
    class_index = {name: i for i, name in enumerate(card["class_names"])}
    domain_index = {name: i for i, name in enumerate(card["domain_names"])}
    client_index = {name: i for i, name in enumerate(card["client_ids"])} | {"": -1}
    groups = columns["group"]
    table = Table(
        paths=tuple(columns["path"]),
        labels=np.array([class_index[name] for name in columns["class"]], dtype=np.int64),
        domains=np.array([domain_index[name] for name in columns["domain"]], dtype=np.int64),
        class_names=tuple(card["class_names"]),
        domain_names=tuple(card["domain_names"]),
        groups=None if any(group is None for group in groups) else tuple(groups),
        digest=card["digest"],
    )
    return Benchmark(
        table=table,
        spec=Spec.from_json(card["spec"]),
        split=np.array(columns["split"], dtype=f"<U{max(map(len, SPLITS))}"),
        client=np.array([client_index[name] for name in columns["client"]], dtype=np.int64),
        client_ids=tuple(card["client_ids"]),
        smallest=np.array(columns["size"], dtype=np.str_),
    )


def _card(path: Path) -> dict[str, Any]:
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            f"a benchmark folder must hold {CARD}, got none at {path}; build the benchmark first"
        ) from error
    except ValueError as error:
        raise InputError(f"{path} must be JSON, but it cannot be read ({error}); build the benchmark again") from error
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        got = card.get("format") if isinstance(card, dict) else card
        raise InputError(f"{path} must have format {FORMAT}, got {got!r}; build the benchmark again with this version")
    keys = {"spec", "digest", "manifest_sha256", "class_names", "domain_names", "client_ids"}
    if missing := sorted(keys - card.keys()):
        raise InputError(f"{path} must have the keys {sorted(keys)}, got none of {missing}; build the benchmark again")
    return card


def _version() -> str:
    try:
        return version("fedbasis")
    except PackageNotFoundError:
        return "unknown"
