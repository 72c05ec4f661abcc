"""A folder per client, as image tools expect them: ``train/<class>/<image>``, as hard links.

    clients/<participating|new>/<client>/train/<class>/<image>    and client.json: its role, domain and sizes
    clients/<participating|new>/<client>/{val,test}/...           where clients are tested on images of their own
    shared/<domain>/{val,test}/<class>/<image>                    where the clients of a domain share them
    images.csv                                                    which row of the manifest every file is, and its label
    classes.json                                                  the classes in the order of their labels

Only links and new files are made: no existing file's content, mode or name is touched.
"""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pflbed.benchmark import MIXED, SPLITS, Benchmark
from pflbed.dataset import Dataset
from pflbed.export.names import safe_name
from pflbed.export.picture import Picture, picture
from pflbed.files import write_json
from pflbed.table import Rows

HELD = ("val", "test")
COLUMNS = ("row", "file", "split", "client", "class", "label", "domain", "size")
REFUSED = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
"""Another disk, somebody else's file, too many links, a file system without any: then the image is copied."""


@dataclass
class _Writer:
    benchmark: Benchmark
    dataset: Dataset
    folder: Path
    listing: Any
    report: Callable[[int, int], None]
    total: int
    made: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.classes = _names(self.benchmark.table.class_names)
        self.domains = _names(self.benchmark.table.domain_names)
        self.clients: set[str] = set()
        self.sizes = (*self.benchmark.spec.sizes, "")  # -1, the last, is no size

    def put(self, rows: Rows, where: str, client: str = "") -> dict[int, str]:
        """Write rows to ``where``/<class>/<image>; gives the part after ``where`` by row."""
        table, placed = self.benchmark.table, dict[int, str]()
        taken: defaultdict[int, set[str]] = defaultdict(set)
        for row in rows.tolist():
            label, image = int(table.labels[row]), picture(self.dataset, table.paths[row])
            file = f"{self.classes[label]}/{safe_name(image.name, taken[label], of=table.paths[row])}"
            target = self.folder / where / file
            target.parent.mkdir(parents=True, exist_ok=True)
            self.made[_place(image, target)] += 1
            placed[row] = file
            size = int(self.benchmark.smallest[row])
            self.listing.writerow(
                (row, f"{where}/{file}", SPLITS[self.benchmark.split[row]], client, table.class_names[label], label,
                 table.domain_names[table.domains[row]], self.sizes[size])
            )  # fmt: skip
            self.report(self.made.total(), self.total)
        return placed

    def client(self, name: str) -> None:
        """Write one client's images and its ``client.json``."""
        bench, role = self.benchmark, self.benchmark.role_of(name)
        where = f"clients/{role}/{safe_name(name.replace('/', '__'), self.clients, of=name)}"
        placed = self.put(bench.rows(name), f"{where}/train", name)
        sizes = list(bench.spec.sizes) if role == "new" else []
        about = {
            "id": name,
            "role": role,
            "domain": bench.domain_of(name),
            "label_distribution": _shares(bench.label_distribution(name), bench.table.class_names),
            "sizes": {size: [f"train/{placed[row]}" for row in bench.rows(name, size).tolist()] for size in sizes},
        }
        if about["domain"] == MIXED:
            counts = np.bincount(bench.table.domains[bench.rows(name)], minlength=len(bench.table.domain_names))
            about["domain_distribution"] = _shares(counts / counts.sum(), bench.table.domain_names)
        for split in HELD:
            about[split] = self.held(name, split, where)
        text = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
        (self.folder / where / "client.json").write_text(text, encoding="utf-8")

    def held(self, name: str, split: str, where: str) -> list[str]:
        """The folders of the client's validation or test images, relative to its folder; its own are written."""
        rows = self.benchmark.held_rows(name, split)
        if self.benchmark.spec.natural:
            self.put(rows, f"{where}/{split}", name)
            return [split] if len(rows) else []
        domains = np.unique(self.benchmark.table.domains[rows]).tolist()
        return [f"../../../shared/{self.domains[domain]}/{split}" for domain in domains]


def write_folders(
    benchmark: Benchmark, dataset: Dataset, folder: Path, out: Path, report: Callable[[int, int], None]
) -> list[str]:
    """Write every client and every shared set."""
    shared = {
        (domain, split): benchmark.shared_rows(name, split)
        for domain, name in enumerate(benchmark.table.domain_names)
        for split in HELD
    }
    total = sum(len(rows) for rows in shared.values()) + sum(len(benchmark.rows(name)) for name in benchmark.client_ids)
    if benchmark.spec.natural:
        total += sum(len(benchmark.held_rows(name, split)) for name in benchmark.client_ids for split in HELD)
    with (folder / "images.csv").open("w", newline="", encoding="utf-8") as file:
        listing = csv.writer(file)
        listing.writerow(COLUMNS)
        writer = _Writer(benchmark, dataset, folder, listing, report, total)
        for name in benchmark.client_ids:
            writer.client(name)
        for (domain, split), rows in shared.items():
            writer.put(rows, f"shared/{writer.domains[domain]}/{split}")
    write_json(folder / "classes.json", list(benchmark.table.class_names))
    return _told(benchmark, writer.made, out)


def _place(image: Picture, target: Path) -> str:
    """Make the file and say how; ``target`` is new, and what it is a link to stays as it is."""
    if image.file is None:
        with target.open("xb") as file:
            file.write(image.png)
        return "written as PNG"
    try:
        os.link(image.file, target)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        shutil.copyfile(image.file, target)
        return "copied"
    return "linked"


def _names(names: tuple[str, ...]) -> list[str]:
    taken: set[str] = set()
    return [safe_name(name, taken) for name in names]


def _shares(shares: Any, names: tuple[str, ...]) -> dict[str, float]:
    return {names[i]: float(shares[i]) for i in np.flatnonzero(shares)}


def _told(benchmark: Benchmark, made: Counter[str], out: Path) -> list[str]:
    how = ", ".join(f"{count:,} {what}" for what, count in made.most_common())
    lines = [f"Wrote {len(benchmark.participating):,} participating and {len(benchmark.new):,} new clients to {out}: "
             f"{how or 'no images'}."]  # fmt: skip
    if made["linked"]:
        lines.append("Links share their content with your images: editing one in place would edit the image itself.")
    held = "val/ and test/ in its folder" if benchmark.spec.natural else "the shared folders that client.json names"
    lines.append(f"A client trains on train/<class>/ in its folder and is tested on {held}; images.csv has every row.")
    lines.append("Number the classes by classes.json, not by a client's own folders: few clients have all classes.")
    lines.append(f"Use it: rows = csv.DictReader(open({str(out / 'images.csv')!r}))  # file, label, client, split ...")
    return lines
