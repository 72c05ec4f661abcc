"""Data and an experiment for a try on one host: every node is given a client of a benchmark, or a folder of its own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pflbed
from fedbasis.methods import METHODS
from pflbed.dataset import EMBEDDED, find
from pflbed.errors import InputError
from pflbed.folders import scan_client
from pflbed.manifest import CARD, load_manifest

MODEL_OPTIONS = {"cnn-small": {"norm": "group"}}
"""With few images on a node, statistics of a batch are poor."""


@dataclass(frozen=True)
class ExampleNodes:
    """Where the data of every node lie, by its name, and their classes."""

    clients: dict[str, str]
    new: dict[str, str]
    classes: tuple[str, ...]


def nodes_of(data: str, count: int, folder: Path) -> ExampleNodes:
    """Find data for so many nodes, and for one that comes later if there are more; digits4 is dealt out first."""
    if data == EMBEDDED:
        dataset = find(EMBEDDED)
        spec = pflbed.Spec(clients_per_domain=max(1, -(-count // 4)), new_clients_per_domain=1)
        pflbed.write(pflbed.build(dataset.table, spec), dataset, folder / "bench")
        return _of_benchmark(folder / "bench", "bench", count)
    place = Path(data)
    if (place / CARD).is_file():
        return _of_benchmark(place, str(place.absolute()), count)
    if not place.is_dir():
        raise InputError(f"The data must be digits4 or a folder, but {data} is neither; check the path.")
    folders = [path for path in sorted(place.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    _require(len(folders), count, data)
    classes = {name for path in folders[: count + 1] for name in scan_client(path).class_names}
    own = {path.name: str(path.absolute()) for path in folders}
    names = list(own)
    new = {name: own[name] for name in names[count : count + 1]}
    return ExampleNodes({name: own[name] for name in names[:count]}, new, tuple(sorted(classes)))


def _of_benchmark(folder: Path, place: str, count: int) -> ExampleNodes:
    benchmark = load_manifest(folder)
    domains = [
        [name for name in benchmark.participating if benchmark.domain_of(name) == domain]
        for domain in benchmark.table.domain_names
    ]
    mixed = [names[i] for i in range(max(map(len, domains), default=0)) for names in domains if i < len(names)]
    names = mixed or list(benchmark.participating)  # the first of every domain, the second of every domain ...
    _require(len(names), count, str(folder))
    new = dict.fromkeys(benchmark.new[:1], place)
    return ExampleNodes(dict.fromkeys(names[:count], place), new, benchmark.table.class_names)


def _require(there: int, wanted: int, where: str) -> None:
    if there < wanted:
        raise InputError(f"{wanted} nodes need as many clients, but {where} has {there}; lower --nodes.")


def short_experiment(method: str, model: str, nodes: int) -> dict[str, Any]:
    """Make an experiment of a few rounds; as many bases as there are nodes at most."""
    if method not in METHODS:
        raise InputError(f"There is no method '{method}'; the methods are {', '.join(METHODS)}.")
    settings: dict[str, Any] = {"name": method}
    if method == "fedbasis":
        settings |= {"bases": min(4, nodes), "coefficient_epochs": 1}
    return {
        "seed": 0,
        "data": {"resolution": 28},
        "model": {"name": model, "options": MODEL_OPTIONS.get(model, {})},
        "train": {"rounds": 6, "epochs": 2, "batch": 16},
        "method": settings,
    }
