"""Serve new clients by torch and without it, and compare the models on the same test images.

    fedbasis export BASES --to edge
    python benchmarks/edge_clients.py BASES --data PACS --clients 10

Every new client of a benchmark gets a folder of its images. ``fedbasis personalize`` and ``fedbasis-edge`` fit the same
bases to it, with the same seed; with ``--page RUNTIME`` so does the page in Chromium, RUNTIME being the folder of
onnxruntime-web, with bases that are coded to 4 bits. The models are scored on the test images of the client's domain,
weighted by its classes, as in the tables.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import fedbasis_edge
import pflbed
from fedbasis.methods.base import Adaptation
from fedbasis.serving.new_client import Predictor, bases_at, serve_folder, write_model
from pflbed import Images
from pflbed.dataset import find


def write_images(images: Images, classes: tuple[str, ...], folder: Path) -> Path:
    """Write images as PNG files, by class."""
    for number, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
        path = folder / classes[int(label)] / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


def in_browser(bases: Path, runtime: Path, root: Path, stack: contextlib.ExitStack) -> Callable[[Path, Path], Any]:
    """Write the page and open it; return a function that fits a folder of images and writes the model."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # they drive the page, too
    from fedbasis.edge.page import write_page
    from helpers.browser import Tab
    from helpers.edge_page import OFFLINE, choose, download, fit, start

    page = root / "fit.html"
    write_page(bases, page, runtime_folder=runtime)
    (root / "tab").mkdir()
    tab = stack.enter_context(Tab(root / "tab", OFFLINE))
    tab.call("DOM.enable")

    def personalize(images: Path, out: Path) -> Any:
        start(tab, page)
        choose(tab, "#folder", [images])
        result = fit(tab)
        (root / "download").mkdir(exist_ok=True)
        archive = download(tab, "model.zip", root / "download")
        with zipfile.ZipFile(archive) as members:
            members.extractall(out)
        archive.unlink()
        return result

    return personalize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bases", type=Path)
    parser.add_argument("--data", default="digits4", help="the dataset of which new clients are drawn")
    parser.add_argument("--part", default="tables", help="the part of the dataset; all: the whole")
    parser.add_argument("--clients", type=int, default=10, help="new clients of a domain")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path, metavar="RUNTIME", help="also the page, with this onnxruntime-web")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    bundle = fedbasis_edge.open_bundle(chosen.bases)
    dataset, _, _ = find(chosen.data).checked()
    part = {} if chosen.part == "all" else {"part": chosen.part}
    spec = pflbed.Spec(new_clients_per_domain=chosen.clients, seed=chosen.seed, **part)
    resolution = bundle.resolution[0] if bundle.resolution[0] == bundle.resolution[1] else bundle.resolution
    rows = []
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        page = in_browser(bases_at(chosen.bases), chosen.page, root, stack) if chosen.page else None
        pflbed.write(pflbed.build(dataset.table, spec), dataset, root / "bench")
        clients = pflbed.load(root / "bench", resolution=resolution, channels=bundle.channels)
        for number, (name, client) in enumerate(clients.new.items()):
            mine = write_images(client.train, clients.benchmark.table.class_names, root / str(number))
            began = time.perf_counter()
            plan = Adaptation(epochs=bundle.epochs, rate=bundle.rates[1], batch=bundle.batch)
            served = serve_folder(bases_at(chosen.bases), mine, None, plan, chosen.seed)
            write_model(served, root / f"torch-{number}")
            between = time.perf_counter()
            made = fedbasis_edge.personalize(bundle, mine, seed=chosen.seed, threads=1, trust=True)
            fedbasis_edge.write_model(made, root / f"edge-{number}")
            ended = time.perf_counter()
            test, pixels = client.test, torch.from_numpy(np.array(client.test.pixels))

            def score(guesses: Any, test: Images = test, weights: Any = client.test_weights) -> float:
                return round(100 * pflbed.weighted_accuracy(guesses, test.labels, weights), 2)

            row: dict[str, Any] = {
                "client": name, "images": len(client.train),
                "torch": score(Predictor.load(root / f"torch-{number}")(pixels).argmax(1).numpy()),
                "edge": score(fedbasis_edge.open_model(root / f"edge-{number}", 1, trust=True)(test.pixels).argmax(1)),
                "way": made.way, "seconds": [round(between - began, 2), round(ended - between, 2)],
            }  # fmt: skip
            if page is not None:
                page(mine, root / f"page-{number}")
                row["seconds"].append(round(time.perf_counter() - ended, 2))
                (found,) = (path.parent for path in (root / f"page-{number}").rglob("card.json"))
                row["page"] = score(Predictor.load(found)(pixels).argmax(1).numpy())
                row["page way"] = json.loads((found / "card.json").read_text())["provenance"]["personalized_by"]
            rows.append(row)
            print(json.dumps(row), flush=True)
    for key, way in (("edge", "way"), ("page", "page way")):
        personal = [row for row in rows if row.get(way, "none") != "none"]
        if not personal:
            continue
        theirs, ours = (np.array([row[one] for row in personal], dtype=float) for one in ("torch", key))
        print(
            f"{key}: {len(rows)} clients, {len(rows) - len(personal)} of them left with the model they came with; of "
            f"the others: torch {theirs.mean():.2f}, {key} {ours.mean():.2f}, mean difference "
            f"{(ours - theirs).mean():+.2f}, largest {np.abs(ours - theirs).max():.2f}"
        )


if __name__ == "__main__":
    main()
