"""The folder of a benchmark: manifest, card and plot. The location of the images is stored in the user's cache.

The location is not in the folder itself: so a benchmark from another machine cannot refer to files of this one, and its
files are the same bytes everywhere. Pass ``data`` if the location is not known here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pflbed.benchmark import Benchmark
from pflbed.cache import Progress, cache_dir
from pflbed.client_data import Clients, clients
from pflbed.dataset import TABLES, Dataset, find, listed
from pflbed.errors import InputError
from pflbed.files import hidden_beside, write_json
from pflbed.foreign import read_json_object
from pflbed.images import Resolution
from pflbed.manifest import CARD, MANIFEST, load_manifest, read_card, save

PICTURE = "clients.png"
RESOLUTION = 32


def write(benchmark: Benchmark, dataset: Dataset, folder: Path | str) -> None:
    """Write a benchmark to a folder: ``manifest.parquet``, ``card.json`` and ``clients.png``.

    Args:
        benchmark: The benchmark.
        dataset: The dataset that it was built from, including images that were left out as unreadable.
        folder: Where to write, once everything is complete. Existing files of a benchmark are replaced.

    Example:
        >>> import tempfile
        >>> import pflbed
        >>> data = pflbed.find("digits4")
        >>> benchmark = pflbed.build(data.table, pflbed.Spec(clients_per_domain=2, new_clients_per_domain=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pflbed.write(benchmark, data, folder)
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['card.json', 'clients.png', 'manifest.parquet']
    """
    from pflbed.plots import save_bubbles

    place = Path(os.path.realpath(folder))
    with hidden_beside(place) as written:
        save_bubbles(benchmark, written / PICTURE)
        save(benchmark, written, source=dataset.source.name, data_digest=dataset.table.digest)
        write_json(_memory(read_card(written)), dataset.place)
        if not place.exists():
            written.rename(place)
            return
        for name in (PICTURE, MANIFEST, CARD):  # files of the user stay where they are
            (written / name).replace(place / name)


def located(folder: Path, data: Path | str | None = None) -> Dataset:
    """Find the dataset of a benchmark; the names and sizes of its images must not have changed."""
    card = read_card(folder)
    place = _place(Path(folder), card, data)
    if card.get("source") == "table":  # the manifest lists the images itself
        return listed(load_manifest(Path(folder)).table, Path(place["images"]), place)
    dataset = find(place["data"], place.get("source"))
    wanted = card.get("data_digest", card["digest"])
    if dataset.table.digest != wanted:
        raise InputError(
            f"The images in {place['data']} must be those the benchmark {folder} was built from (digest "
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
    """Load the clients of a benchmark folder. Images are decoded once, cached, and memory-mapped.

    Args:
        folder: A folder that ``pflbed build`` or ``write`` made.
        data: The folder or table of the images; None for the location known from when the benchmark was built.
        resolution: Images are scaled and cropped to this square, or to (height, width).
        progress: Called with (images done, images in all).
        channels: 3 for RGB, 1 for gray; those of an array.

    Returns:
        The clients by name.

    Example:
        >>> import tempfile
        >>> import pflbed
        >>> data = pflbed.find("digits4")
        >>> benchmark = pflbed.build(data.table, pflbed.Spec(clients_per_domain=2, new_clients_per_domain=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pflbed.write(benchmark, data, folder)
        ...     client = pflbed.load(folder, resolution=28)["photo/n00"]
        >>> client.domain, client.train.pixels.shape[1:]
        ('photo', (28, 28, 3))
    """
    benchmark = load_manifest(Path(folder))
    dataset = located(Path(folder), data)
    decoded = dataset.decode(resolution, benchmark.table, progress, channels)
    if decoded.bad:
        path, reason = decoded.bad[0]
        raise InputError(
            f"Every image of the benchmark {folder} must be readable, but {len(decoded.bad)} are not, the first being "
            f"{path} ({reason}); build the benchmark again without --names-only, which leaves them out"
        )
    return clients(benchmark, decoded.images, dataset.card.normalization)


def _place(folder: Path, card: dict[str, Any], data: Path | str | None) -> dict[str, Any]:
    """The arguments of ``find``: as stored when the benchmark was built, or for the folder that the user gives."""
    if data is not None:
        chosen = Path(data)
        images = chosen.parent if chosen.suffix.lower() in TABLES and not chosen.is_dir() else chosen
        source = card.get("source")
        return {"data": str(data), "source": None if source == "folder" else source, "images": str(images)}
    try:
        place = read_json_object(_memory(card), "The location of the images")
        if all(isinstance(value, str | None) for value in place.values()):
            return {"images": str(Path(place["data"]).parent), **place}
    except (InputError, KeyError, ValueError):
        pass  # removed or damaged: the user can still give the folder
    raise InputError(
        f"The location of the images of the benchmark {folder} is not known here; give their folder with --data"
    )


def _memory(card: dict[str, Any]) -> Path:
    return cache_dir() / "benchmarks" / f"{card['manifest_sha256'][:32]}.json"
