"""A benchmark's folder: its manifest, its card and its picture; and where its images lie on this machine.

The last is remembered in the user's cache, not in the folder: a benchmark from elsewhere cannot point at anything here,
and its files are the same bytes everywhere. ``data`` says where the images lie if this machine does not know.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pflbed.benchmark import Benchmark
from pflbed.cache import Progress, cache_dir
from pflbed.client_data import Clients, clients
from pflbed.dataset import TABLES, Dataset, find, listed
from pflbed.errors import InputError
from pflbed.files import write_json
from pflbed.images import Resolution
from pflbed.manifest import load_manifest, read_card, save

PICTURE = "clients.png"
RESOLUTION = 32


def write(benchmark: Benchmark, dataset: Dataset, folder: Path | str) -> None:
    """Write everything; ``dataset`` is what the benchmark was made from, before anything was left out."""
    from pflbed.plots import save_bubbles

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_bubbles(benchmark, folder / PICTURE)
    save(benchmark, folder, source=dataset.source.name, data_digest=dataset.table.digest)
    write_json(_memory(read_card(folder)), dataset.place)


def located(folder: Path, data: Path | str | None = None) -> Dataset:
    """Find the images of a benchmark; names and sizes must be those it was built from."""
    card = read_card(folder)
    place = _place(Path(folder), card, data)
    if card.get("source") == "table":  # the manifest lists the images itself
        return listed(load_manifest(Path(folder)).table, Path(place["images"]), place)
    dataset = find(place["data"], place.get("source"))
    wanted = card.get("data_digest", card["digest"])
    if dataset.table.digest != wanted:
        raise InputError(
            f"the images in {place['data']} must be those the benchmark {folder} was built from (digest "
            f"{wanted[:12]}), but they differ (digest {dataset.table.digest[:12]}, {len(dataset.table):,} images); "
            "give their folder with --data or build the benchmark again"
        )
    return dataset


def load(
    folder: Path | str,
    data: Path | str | None = None,
    resolution: Resolution = RESOLUTION,
    progress: Progress | None = None,
    channels: int = 3,
) -> Clients:
    """Give the clients of a benchmark with their pixels, decoded once and memory-mapped from then on.

    >>> client = pflbed.load("bench/")["photo/n00"]
    >>> client.train.pixels, client.train.labels, client.test, client.label_distribution, client.domain
    """
    benchmark = load_manifest(Path(folder))
    dataset = located(Path(folder), data)
    decoded = dataset.decode(resolution, benchmark.table, progress, channels)
    if decoded.bad:
        path, reason = decoded.bad[0]
        raise InputError(
            f"every image of the benchmark {folder} must be readable, but {len(decoded.bad)} are not, the first being "
            f"{path} ({reason}); build the benchmark again without --names-only, which leaves them out"
        )
    return clients(benchmark, decoded.images)


def _place(folder: Path, card: dict[str, Any], data: Path | str | None) -> dict[str, Any]:
    """What ``find`` needs: as remembered since it was built, or with another folder in its place."""
    if data is not None:
        chosen = Path(data)
        images = chosen.parent if chosen.suffix.lower() in TABLES and not chosen.is_dir() else chosen
        source = card.get("source")
        return {"data": str(data), "source": None if source == "folder" else source, "images": str(images)}
    try:
        place = json.loads(_memory(card).read_text(encoding="utf-8"))
        if isinstance(place, dict) and all(isinstance(value, str | None) for value in place.values()):
            return {"images": str(Path(place["data"]).parent), **place}
    except (OSError, ValueError, KeyError, TypeError):
        pass  # forgotten or damaged: it is only a convenience
    raise InputError(
        f"this machine does not know where the images of the benchmark {folder} lie; give their folder with --data"
    )


def _memory(card: dict[str, Any]) -> Path:
    return cache_dir() / "benchmarks" / f"{card['manifest_sha256'][:32]}.json"
