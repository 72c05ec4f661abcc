"""Good files to damage: small, real, and made in a moment."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from pflbed import Benchmark, Spec, Table, build
from pflbed.images import FORMATS

CLASSES = ("cat", "dog", "emu")
DOMAINS = ("art", "photo")


def table(rows: int = 120) -> Table:
    """Two domains and three classes."""
    numbers = np.arange(rows)
    domains, labels = numbers % 2, numbers // 2 % 3
    return Table(
        paths=tuple(f"{DOMAINS[d]}/{CLASSES[c]}/{i:03d}.png" for i, d, c in zip(numbers, domains, labels, strict=True)),
        labels=labels,
        domains=domains,
        class_names=CLASSES,
        domain_names=DOMAINS,
        digest="0" * 64,
        users=numbers % 5,
        user_names=tuple(f"user{i}" for i in range(5)),
    )


def benchmark() -> Benchmark:
    """Six clients."""
    return build(table(), Spec(clients_per_domain=2, new_clients_per_domain=1))


def predictions(bench: Benchmark) -> pa.Table:
    """Right predictions for every client."""
    rows = [(name, int(row)) for name in bench.client_ids for row in bench.held_rows(name, "test")]
    labels = bench.table.labels[[row for _, row in rows]]
    return pa.table(
        {
            "client": [name for name, _ in rows],
            "row": pa.array([row for _, row in rows], pa.int64()),
            "predicted": [bench.table.class_names[label] for label in labels],
        }
    )


def listed() -> pa.Table:
    """A table of a dataset: path, class, domain, user, split."""
    rows = table(40)
    return pa.table(
        {
            "path": list(rows.paths),
            "class": [CLASSES[i] for i in rows.labels],
            "domain": [DOMAINS[i] for i in rows.domains],
            "user": [f"user{i % 5}" for i in range(len(rows))],
            "split": ["train" if i % 4 else "test" for i in range(len(rows))],
        }
    )


def as_csv(of: pa.Table) -> str:
    """The text of a table."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(of.column_names)
    writer.writerows(zip(*(column.to_pylist() for column in of.columns), strict=True))
    return file.getvalue()


def images() -> dict[str, bytes]:
    """A small image in every format, and a few odd modes, by name."""
    rng = np.random.default_rng(0)
    pixels = Image.fromarray(rng.integers(0, 255, (12, 10, 3), dtype=np.uint8))
    made: dict[str, bytes] = {}
    for name in FORMATS:
        made[name] = _saved(pixels, name)
    for mode in ("L", "1", "P", "CMYK", "I", "F", "LA", "RGBA"):
        made[f"TIFF {mode}"] = _saved((pixels.convert("L") if mode in ("I", "F") else pixels).convert(mode), "TIFF")
    made["TIFF I;16"] = _saved(Image.fromarray(np.arange(120, dtype=np.uint16).reshape(12, 10)), "TIFF")
    exif = Image.Exif()
    exif[0x0112] = 6
    made["JPEG EXIF"] = _saved(pixels, "JPEG", exif=exif)
    return made


def _saved(image: Image.Image, name: str, **more: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, name, **more)
    return file.getvalue()


def write_folder(root: Path) -> None:
    """A folder <domain>/<class>/<image> of two images per class."""
    content = images()["PNG"]
    for domain in DOMAINS:
        for label in CLASSES:
            (root / domain / label).mkdir(parents=True)
            for i in range(2):
                (root / domain / label / f"{i}.png").write_bytes(content)
