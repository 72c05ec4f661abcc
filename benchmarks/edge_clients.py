"""Serve new clients by torch and without it, and compare the models on the same test images.

    fedbasis export BASES --to edge
    python benchmarks/edge_clients.py BASES --data PACS --clients 10

Every new client of a benchmark gets a folder of its images. ``fedbasis personalize`` and ``fedbasis-edge`` fit the same
bases to it, with the same seed. Both models are scored on the test images of the client's domain, weighted by its
classes, as in the tables.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bases", type=Path)
    parser.add_argument("--data", default="digits4", help="the dataset of which new clients are drawn")
    parser.add_argument("--part", default="tables", help="the part of the dataset; all: the whole")
    parser.add_argument("--clients", type=int, default=10, help="new clients of a domain")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    bundle = fedbasis_edge.open_bundle(chosen.bases)
    dataset, _, _ = find(chosen.data).checked()
    part = {} if chosen.part == "all" else {"part": chosen.part}
    spec = pflbed.Spec(new_clients_per_domain=chosen.clients, seed=chosen.seed, **part)
    resolution = bundle.resolution[0] if bundle.resolution[0] == bundle.resolution[1] else bundle.resolution
    rows = []
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        pflbed.write(pflbed.build(dataset.table, spec), dataset, root / "bench")
        clients = pflbed.load(root / "bench", resolution=resolution, channels=bundle.channels)
        for number, (name, client) in enumerate(clients.new.items()):
            mine = write_images(client.train, clients.benchmark.table.class_names, root / str(number))
            began = time.perf_counter()
            plan = Adaptation(epochs=bundle.epochs, rate=bundle.rates[1], batch=bundle.batch)
            served = serve_folder(bases_at(chosen.bases), mine, None, plan, chosen.seed)
            write_model(served, root / f"torch-{number}")
            between = time.perf_counter()
            made = fedbasis_edge.personalize(bundle, mine, seed=chosen.seed, threads=1)
            fedbasis_edge.write_model(made, root / f"edge-{number}")
            ended = time.perf_counter()
            test = client.test
            ours = fedbasis_edge.open_model(root / f"edge-{number}", 1)(test.pixels).argmax(1)
            theirs = Predictor.load(root / f"torch-{number}")(torch.from_numpy(np.array(test.pixels))).argmax(1).numpy()
            scores = [pflbed.weighted_accuracy(guess, test.labels, client.test_weights) for guess in (theirs, ours)]
            row = {
                "client": name, "images": len(client.train), "torch": round(100 * scores[0], 2),
                "edge": round(100 * scores[1], 2), "agree": round(100 * float((ours == theirs).mean()), 2),
                "way": made.way, "seconds": [round(between - began, 2), round(ended - between, 2)],
            }  # fmt: skip
            rows.append(row)
            print(json.dumps(row), flush=True)
    personal = [row for row in rows if row["way"] != "none"]
    by_torch, by_edge = (np.array([row[key] for row in personal], dtype=float) for key in ("torch", "edge"))
    print(
        f"{len(rows)} clients, {len(rows) - len(personal)} of them left with the model they came with; of the others: "
        f"torch {by_torch.mean():.2f}, without torch {by_edge.mean():.2f}, mean difference "
        f"{(by_edge - by_torch).mean():+.2f}, largest {np.abs(by_edge - by_torch).max():.2f}"
    )


if __name__ == "__main__":
    main()
