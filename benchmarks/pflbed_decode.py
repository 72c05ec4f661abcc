"""Decoding to the cache beside a plain loop over Pillow: one process, all cores, and the reuse of what is decoded.

    python benchmarks/pflbed_decode.py --data PACS [--source pacs] [--resolution 32]

Every way decodes the same files in the same run, into caches of its own; the arrays are compared.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from pflbed.cache import decode
from pflbed.dataset import Dataset, find
from pflbed.workers import cores


def plain(dataset: Dataset, resolution: int) -> np.ndarray:
    """What anyone would write; it checks nothing and keeps nothing."""
    images = []
    for path in dataset.table.paths:
        with Image.open(dataset.root / path) as image:
            images.append(np.asarray(ImageOps.fit(image.convert("RGB"), (resolution, resolution))))
    return np.stack(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--source")
    parser.add_argument("--resolution", type=int, default=32)
    given = parser.parse_args()
    dataset = find(given.data, given.source)
    plain(dataset, given.resolution)  # the files are in the system's cache for all
    start = time.perf_counter()
    expected = plain(dataset, given.resolution)
    base = time.perf_counter() - start
    print(f"{len(expected):,} images at {given.resolution} pixels, {cores()} cores\n")
    print("| way | seconds | ratio |\n| --- | ---: | ---: |")
    print(f"| a plain loop over Pillow, nothing kept | {base:.2f} | 1.00 |")
    for name, workers in (("one process", 1), ("all cores", None)):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["FEDBASIS_CACHE"] = folder
            for what in (name, f"the same again: reused, every digest checked ({name})"):
                start = time.perf_counter()
                decoded = decode(
                    dataset.root, dataset.table, given.resolution, None, dataset.source.open_image, workers
                )
                seconds = time.perf_counter() - start
                assert np.array_equal(decoded.images, expected)
                print(f"| {what} | {seconds:.2f} | {seconds / base:.2f} |")


if __name__ == "__main__":
    main()
