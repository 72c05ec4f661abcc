"""A benchmark on disk: ``manifest.parquet`` (one row per image) and ``card.json`` (settings, digests, clients)."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pflbed.benchmark import NEW, SPLITS, Benchmark
from pflbed.errors import InputError
from pflbed.files import replacing, sha256_of, write_json
from pflbed.foreign import read_json_object, require_file
from pflbed.foreign_tables import LOGICAL, MAX_TABLE, MAX_VALUE, TEXT, UNIQUE, Kinds, read_table
from pflbed.safe_paths import check_relative
from pflbed.spec import Spec
from pflbed.table import Rows, Table

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 2
MANIFEST = "manifest.parquet"
CARD = "card.json"
COLUMNS = ("path", "domain", "class", "user", "split", "client", "size", "group", "official_test")
MAX_CARD = 512 * 2**20
"""Bytes; a hundred thousand clients have some hundred megabytes of label distributions."""
KEYS = {"spec", "digest", "manifest_sha256", "class_names", "domain_names", "client_ids"}


def save(benchmark: Benchmark, folder: Path, **more: Any) -> None:
    """Write both files atomically and without a date, so that the same benchmark gives the same bytes.

    ``more`` is added to the card, such as the name of the source.
    """
    import pyarrow as pa
    from pyarrow import parquet

    table = benchmark.table
    columns = {
        "path": pa.array(table.paths, type=pa.string()),
        "domain": _named(table.domains, table.domain_names),
        "class": _named(table.labels, table.class_names),
        "user": _named(table.users, table.user_names) if table.users is not None else pa.nulls(len(table), pa.string()),
        "split": _named(benchmark.split, SPLITS),
        "client": _named(benchmark.client, benchmark.client_ids),
        "size": _named(benchmark.smallest, tuple(benchmark.spec.sizes)),
        "group": pa.array(table.groups, type=pa.string()) if table.groups else pa.nulls(len(table), pa.string()),
        "official_test": (
            pa.array(table.official_test) if table.official_test is not None else pa.nulls(len(table), pa.bool_())
        ),
    }
    with replacing(Path(folder) / MANIFEST) as temporary:
        parquet.write_table(pa.table(columns), temporary, version="2.6", compression="zstd", compression_level=3)
    card = {
        **more,
        "format": FORMAT,
        "version": installed_version(),
        "spec": benchmark.spec.as_json(),
        "seed": benchmark.spec.seed,
        "digest": table.digest,
        "manifest_sha256": sha256_of(Path(folder) / MANIFEST),
        "class_names": list(table.class_names),
        "domain_names": list(table.domain_names),
        "user_names": list(table.user_names),
        "client_ids": list(benchmark.client_ids),
        "label_distributions": {name: _shares(benchmark, name) for name in benchmark.client_ids},
    }
    write_json(Path(folder) / CARD, {**card, "card_sha256": _self_digest(card)})


def load_manifest(folder: Path) -> Benchmark:
    """Read a benchmark from a folder. Changed files and paths that leave the data folder are refused.

    Args:
        folder: A folder with ``manifest.parquet`` and ``card.json``.

    Returns:
        The benchmark, without pixels.

    Example:
        >>> import tempfile
        >>> import pflbed
        >>> clients = pflbed.from_arrays(np.zeros((80, 8, 8), dtype=np.uint8), np.arange(80) % 2, clients=3, new=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     clients.benchmark.save(Path(folder))
        ...     load_manifest(Path(folder)).new
        ('data/n00', 'data/n01')
    """
    card = read_card(folder)
    path = Path(folder) / MANIFEST
    if not path.exists():
        raise InputError(f"A benchmark folder must hold {MANIFEST}, got none in {folder}; build the benchmark again")
    require_file(path, "The manifest", MAX_TABLE)
    if sha256_of(path) != card["manifest_sha256"]:
        raise InputError(
            f"The file {path} must be the one its {CARD} was written for, but it differs; build the benchmark again"
        )
    read = read_table(path, "The manifest", partial(_chosen, path))
    spec = Spec.from_json(card["spec"])
    if read["path"].null_count:
        raise InputError(
            f"Every row of {path} must have a path, but {read['path'].null_count} have none; build it again"
        )
    paths = _texts(read["path"])
    check_relative(paths)

    def numbers(column: str, names: list[str] | tuple[str, ...], optional: bool = False) -> Rows:
        return _numbered(read[column], names, column, path, optional)

    def filled(column: str) -> bool:
        if read[column].null_count not in (0, len(read)):
            raise InputError(
                f"The column {column!r} of {path} must be full or empty, but it is neither; build it again"
            )
        return bool(read[column].null_count < len(read))

    table = Table(
        paths=paths,
        labels=numbers("class", card["class_names"]),
        domains=numbers("domain", card["domain_names"]),
        class_names=tuple(card["class_names"]),
        domain_names=tuple(card["domain_names"]),
        digest=card["digest"],
        groups=_texts(read["group"]) if filled("group") else None,
        users=numbers("user", card.get("user_names", [])) if filled("user") else None,
        user_names=tuple(card.get("user_names", [])),
        official_test=np.asarray(read["official_test"]) if filled("official_test") else None,
    )
    benchmark = Benchmark(
        table=table,
        spec=spec,
        split=numbers("split", SPLITS).astype(np.int8),
        client=numbers("client", card["client_ids"], optional=True),
        client_ids=tuple(card["client_ids"]),
        smallest=numbers("size", tuple(spec.sizes), optional=True).astype(np.int8),
    )
    if not benchmark.client_ids:
        raise InputError(f"A benchmark must have at least one client, but {path} has none; build it again")
    trained = benchmark.client[(benchmark.split <= NEW) & (benchmark.client >= 0)]
    if len(set(benchmark.client_ids)) != len(benchmark.client_ids) or len(np.unique(trained)) != len(
        benchmark.client_ids
    ):
        raise InputError(
            f"Every client of {path} must be named once and have training rows, but not all do; build it again"
        )
    return benchmark


def read_card(folder: Path) -> dict[str, Any]:
    """Read and check ``card.json``."""
    path = Path(folder) / CARD
    if not path.exists():
        raise InputError(f"A benchmark folder must hold {CARD}, got none at {path}; build the benchmark first")
    card = read_json_object(path, "The card", MAX_CARD)
    if card.get("format") != FORMAT:
        raise InputError(
            f"The file {path} must have format {FORMAT}, got {card.get('format')!r:.80}; build it again with "
            "this version"
        )
    if missing := sorted(KEYS - card.keys()):
        raise InputError(
            f"The file {path} must have the keys {sorted(KEYS)}, got none of {missing}; build the benchmark again"
        )
    if card.get("card_sha256") != _self_digest(card):
        raise InputError(f"The file {path} must be as it was written, but it was edited; build the benchmark again")
    for key in ("digest", "data_digest", "manifest_sha256", "source"):
        if not isinstance(card.get(key, ""), str):
            raise InputError(f"{key} of {path} must be text, got {card[key]!r:.80}; build the benchmark again")
    for key in ("class_names", "domain_names", "client_ids", "user_names"):
        names = card.get(key, [])
        if not isinstance(names, list) or not all(isinstance(name, str) and len(name) <= MAX_VALUE for name in names):
            raise InputError(f"{key} of {path} must be a list of names, got {names!r:.80}; build the benchmark again")
    return card


def _chosen(path: Path, names: list[str]) -> Kinds:
    if missing := [name for name in COLUMNS if name not in names]:
        raise InputError(
            f"The file {path} must have the columns {', '.join(COLUMNS)}, got none of {missing}; build it again"
        )
    kinds: dict[str, tuple[str, ...]] = dict.fromkeys(COLUMNS, (TEXT,))
    return kinds | {"path": (TEXT, UNIQUE), "official_test": (LOGICAL,)}


def _texts(column: Any) -> tuple[str, ...]:
    return tuple(column.to_numpy(zero_copy_only=False).tolist())


def _self_digest(card: dict[str, Any]) -> str:
    """Hash everything except the hash itself, to detect edits."""
    rest = {key: value for key, value in card.items() if key != "card_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _named(numbers: NDArray[Any], names: tuple[str, ...]) -> pa.Array:
    """Convert numbers to names; -1 becomes null."""
    import pyarrow as pa

    indices = pa.array(numbers, type=pa.int32(), mask=np.asarray(numbers) < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, type=pa.string())).cast(pa.string())


def _numbered(column: Any, names: list[str] | tuple[str, ...], what: str, path: Path, optional: bool) -> Rows:
    """Convert names to numbers; null becomes -1 where it is allowed."""
    import pyarrow as pa
    from pyarrow import compute

    numbers = compute.index_in(column, value_set=pa.array(list(names), type=pa.large_string()))
    known = compute.is_null(column) if optional else False
    wrong = compute.and_(compute.is_null(numbers), compute.invert(known) if optional else True)
    if compute.any(wrong).as_py():
        value = column.filter(wrong)[0].as_py()
        raise InputError(
            f"The column {what!r} of {path} must hold names that {CARD} lists, got {value!r:.80}; build it again"
        )
    return np.asarray(compute.fill_null(numbers, -1)).astype(np.int64)


def _shares(benchmark: Benchmark, name: str) -> dict[str, float]:
    """P_m(y) of the client's classes, by name."""
    shares, names = benchmark.label_distribution(name), benchmark.table.class_names
    return {names[i]: float(shares[i]) for i in np.flatnonzero(shares)}


def installed_version() -> str:
    """The version of the installed distribution that contains this package."""
    for name in ("fedbasis", "pflbed"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"
