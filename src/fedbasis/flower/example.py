"""Data and an experiment for an example on one host: a node has a client of a benchmark, or a folder, as its data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pflbed
from fedbasis.methods import find_method
from pflbed.dataset import EMBEDDED, find
from pflbed.errors import InputError
from pflbed.folders import scan_client
from pflbed.manifest import CARD, load_manifest

MODEL_OPTIONS = {"cnn-small": {"norm": "group"}}
"""Group normalization: with few images on a node, batch statistics are inaccurate."""


@dataclass(frozen=True)
class ExampleNodes:
    """The data folder of every participating and every new node, by name, and the classes."""

    clients: dict[str, str]
    new: dict[str, str]
    classes: tuple[str, ...]


def nodes_of(data: str, count: int, folder: Path) -> ExampleNodes:
    """Return data for nodes, and for one new node if there are more data.

    Args:
        data: "digits4", which is split into a benchmark below ``folder``; a benchmark; or a folder
            ``<node>/<class>/<image>``.
        count: The number of participating nodes.
        folder: The federation's folder.
    """
    if data == EMBEDDED:
        dataset = find(EMBEDDED)
        spec = pflbed.Spec(clients_per_domain=max(1, -(-count // 4)), new_clients_per_domain=1)
        pflbed.write(pflbed.build(dataset.table, spec), dataset, folder / "bench")
        return _of_benchmark(folder / "bench", "bench", count)
    path = Path(data)
    if (path / CARD).is_file():
        return _of_benchmark(path, str(path.absolute()), count)
    if not path.is_dir():
        raise InputError(f"The data must be digits4 or a folder, but {data} is neither; check the path.")
    folders = [each for each in sorted(path.iterdir()) if each.is_dir() and not each.name.startswith(".")]
    _require(len(folders), count, data)
    classes = {name for each in folders[: count + 1] for name in scan_client(each).class_names}
    by_name = {each.name: str(each.absolute()) for each in folders}
    names = list(by_name)
    new = {name: by_name[name] for name in names[count : count + 1]}
    return ExampleNodes({name: by_name[name] for name in names[:count]}, new, tuple(sorted(classes)))


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
    """Return an experiment of a few rounds, with at most as many bases as nodes."""
    find_method(method)
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
