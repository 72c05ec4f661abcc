"""A benchmark's folder: its manifest and card, its picture, and where its images lie on this machine.

``location.json`` is a convenience of this machine and no part of the benchmark: manifest and card are the same bytes
everywhere, and ``data=`` says where the images lie elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pflbed.benchmark import Benchmark
from pflbed.cache import Progress
from pflbed.dataset import Dataset, find
from pflbed.errors import InputError
from pflbed.files import write_json
from pflbed.load import Clients, clients
from pflbed.manifest import load_manifest, read_card, save

LOCATION = "location.json"
PICTURE = "clients.png"
RESOLUTION = 32


def write(benchmark: Benchmark, dataset: Dataset, folder: Path) -> None:
    """Write everything; ``dataset`` is what the benchmark was made from, before anything was left out."""
    from pflbed.plots import save_bubbles

    Path(folder).mkdir(parents=True, exist_ok=True)
    save_bubbles(benchmark, Path(folder) / PICTURE)
    write_json(Path(folder) / LOCATION, dataset.place)
    save(benchmark, folder, source=dataset.source.name, data_digest=dataset.table.digest)


def located(folder: Path, data: Path | str | None = None) -> Dataset:
    """Find the images of a benchmark, and make sure that they are the ones it was built from."""
    card = read_card(folder)
    place = _place(Path(folder), data)
    dataset = find(place["data"], place.get("source"), place.get("images"))
    wanted = card.get("data_digest", card["digest"])
    if dataset.table.digest != wanted:
        raise InputError(
            f"the images in {place['data']} must be those the benchmark {folder} was built from (digest "
            f"{wanted[:12]}), but they differ (digest {dataset.table.digest[:12]}, {len(dataset.table):,} images); "
            "give their folder with --data or build the benchmark again"
        )
    return dataset


def load(
    folder: Path | str, data: Path | str | None = None, resolution: int = RESOLUTION, progress: Progress | None = None
) -> Clients:
    """Give the clients of a benchmark with their pixels, decoded once and memory-mapped from then on.

    >>> client = pflbed.load("bench/")["photo/n00"]
    >>> client.train.pixels, client.train.labels, client.test, client.label_distribution, client.domain
    """
    benchmark = load_manifest(Path(folder))
    dataset = located(Path(folder), data)
    decoded = dataset.decode(resolution, benchmark.table, progress)
    if decoded.bad:
        path, reason = decoded.bad[0]
        raise InputError(
            f"every image of the benchmark {folder} must be readable, but {len(decoded.bad)} are not, the first being "
            f"{path} ({reason}); build the benchmark again without --names-only, which leaves them out"
        )
    return clients(benchmark, decoded.images)


def _place(folder: Path, data: Path | str | None) -> dict[str, Any]:
    """What ``find`` needs: as written when it was built, or with another folder in its place."""
    path = folder / LOCATION
    try:
        place = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        place = {"data": None, "source": read_card(folder).get("source")}
    except ValueError as error:
        raise InputError(f"{path} must be JSON, but it cannot be read ({error}); give --data") from error
    if not isinstance(place, dict) or not all(isinstance(value, str | None) for value in place.values()):
        raise InputError(f"{path} must map names to texts, got {place!r:.80}; remove it and give --data")
    if place.get("source") in ("table", "folder"):
        place["source"] = None
    if data is not None:
        place = {"data": str(data), "source": place.get("source")}
    if place.get("data") is None:
        raise InputError(f"{folder} must say where its images lie, but has no {LOCATION}; give the folder with --data")
    return place
