"""Check all images of a dataset once: which cannot be read, and which are duplicates.

Two images are duplicates if their pixels are equal (upright, on white, at their own size), whatever the names, formats
and bytes of the files. Duplicates in two splits would leak training images into the test set, so they get the same
group. The result is cached until the files change.
"""

import contextlib
import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pflbed.benchmark import NEW, TEST, Benchmark
from pflbed.cache import CHUNK, Progress, cache_dir, stamp
from pflbed.errors import InputError
from pflbed.files import write_json
from pflbed.foreign import read_json_object
from pflbed.images import UNREADABLE, Opener, careful, flat, open_file, reason
from pflbed.parts import content_number, pixel_digest
from pflbed.problems import Problem, sentences
from pflbed.safe_paths import UnsafePathError
from pflbed.table import Contents, Table
from pflbed.workers import Job, how_many, run_jobs

FORMAT = 2
MAX_RESULT = 512 * 2**20


@dataclass(frozen=True)
class Findings:
    """The result of a check; images are named by their paths."""

    bad: list[tuple[str, str]]
    """Unreadable images, each with the reason, in the table's order."""
    duplicates: list[tuple[str, ...]]
    """Sets of images with the same pixels, in the table's order."""
    contents: Contents = field(default_factory=lambda: np.zeros(0, dtype=np.uint64), compare=False)
    """The content number of every row of the table; that of an unreadable image is 0 and means nothing."""


def check(
    root: Path,
    table: Table,
    open_image: Opener = open_file,
    progress: Progress | None = None,
    workers: int | None = None,
) -> Findings:
    """Read every image, or return the cached result if the files are unchanged."""
    root = Path(root)
    if not len(table):
        raise InputError("A table must have at least one row to be checked, got none; check how it was made")
    processes = how_many(workers, len(table))
    place = cache_dir() / "images" / f"{table.digest[:20]}-check.json"
    key = stamp(root, table, open_image)
    known = _recall(place, key, table)
    if known is not None:
        return known
    jobs = {
        first: {"root": str(root), "paths": table.paths[first : first + CHUNK]} for first in range(0, len(table), CHUNK)
    }
    bad: dict[int, str] = {}
    pixels: dict[int, str] = {}
    done = 0
    with contextlib.closing(run_jobs(check_chunk, open_image, jobs, processes)) as answers:
        for first, answer in answers:
            for row, (digest, why) in enumerate(answer, start=first):
                if digest:
                    pixels[row] = digest
                else:
                    bad[row] = why
            done += len(answer)
            if progress is not None:
                progress(done, len(table))
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for row in sorted(pixels):
        alike[pixels[row]].append(row)
    found = {
        "bad": sorted(bad.items()),
        "duplicates": [rows for rows in alike.values() if len(rows) > 1],
        "contents": [pixels.get(row, "")[:16] for row in range(len(table))],
    }
    write_json(place, {"format": FORMAT, "stamp": key, "found": found, "sha256": _digest(found)})
    return _findings(found, table)


def check_chunk(open_image: Opener, job: Job) -> Any:
    """Read a chunk of images, in any process; per image the digest of its pixels, or an empty digest and the error."""
    root = Path(job["root"])
    answer: list[tuple[str, str]] = []
    for path in job["paths"]:
        try:
            with careful(), open_image(root, path) as opened:
                image = flat(opened)
            answer.append((pixel_digest(image.width, image.height, image.tobytes()), ""))
        except InputError as error:
            if not isinstance(error, UnsafePathError):
                raise
            answer.append(("", reason(error, root)))
        except UNREADABLE as error:
            answer.append(("", reason(error, root)))
    return answer


def copies_in(table: Table, contents: Contents) -> Findings:
    """Return the findings of images that are an array, by their content numbers: all are readable."""
    alike: defaultdict[int, list[str]] = defaultdict(list)
    for path, number in zip(table.paths, contents.tolist(), strict=True):
        alike[number].append(path)
    return Findings([], [tuple(paths) for paths in alike.values() if len(paths) > 1], contents)


def content_groups(table: Table, findings: Findings) -> tuple[str, ...] | None:
    """Name a group per row, so that duplicates within a domain share one; None if there are no groups.

    A group belongs to one domain, so duplicates across domains get different groups. Groups that the table has are
    kept; those that contain duplicates of each other are merged.
    """
    # Names in the order of the rows, so that a copy elsewhere does not change how the other rows are drawn.
    width = len(str(len(table)))
    names = tuple(f"row {i:0{width}d}" for i in range(len(table))) if table.groups is None else table.groups
    row_of = {path: row for row, path in enumerate(table.paths)}
    parent = {name: name for name in names}

    def head(name: str) -> str:
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    joined = False
    for copies in _within(table, findings):
        first, *others = (row_of[path] for path in copies)
        for other in others:
            parent[head(names[other])] = head(names[first])
            joined = True
    if table.groups is None and not joined:
        return None
    return tuple(head(name) for name in names)


def describe(table: Table, findings: Findings) -> list[str]:
    """Describe the problems of a dataset for people, one sentence per kind."""
    return sentences(problems_of(table, findings))


def problems_of(table: Table, findings: Findings) -> list[Problem]:
    """List every problem of a dataset."""
    found = [Problem("unreadable", f"{path} cannot be read ({why})", (path,), why) for path, why in findings.bad]
    found += [Problem("missing class", gap) for gap in _gaps(table, findings)]
    for kind, copies, where in (
        ("duplicate in domain", _within(table, findings), "within a domain"),
        ("duplicate across domains", _across(table, findings), "in more than one domain"),
    ):
        found += [
            Problem(kind, f"{' and '.join(paths)} are the same picture {where}", tuple(paths)) for paths in copies
        ]
    return found


def trained_and_tested(benchmark: Benchmark, findings: Findings) -> int:
    """Count the test images of which a client trains on a duplicate; only duplicates across domains can be."""
    split = dict(zip(benchmark.table.paths, benchmark.split.tolist(), strict=True))
    leaks = 0
    for copies in findings.duplicates:
        places = [split[path] for path in copies if path in split]
        leaks += places.count(TEST) if any(place <= NEW for place in places) else 0
    return leaks


def _gaps(table: Table, findings: Findings) -> list[str]:
    """The classes of which a domain has no readable image."""
    unreadable = {path for path, _ in findings.bad}
    rows = zip(table.paths, table.labels.tolist(), table.domains.tolist(), strict=True)
    found = {(label, domain) for path, label, domain in rows if path not in unreadable}
    gaps: list[str] = []
    for label, name in enumerate(table.class_names):
        lacking = [domain for i, domain in enumerate(table.domain_names) if (label, i) not in found]
        if len(lacking) == len(table.domain_names):
            gaps.append(f"class {name!r} has no image in any domain")
        else:
            gaps += [f"class {name!r} has no image in domain {domain!r}" for domain in lacking]
    return gaps


def _by_domain(table: Table, findings: Findings) -> list[dict[int, list[str]]]:
    """The duplicates of each picture by domain; paths that are not in the table are left out."""
    domain_of = dict(zip(table.paths, table.domains.tolist(), strict=True))
    sorted_out: list[dict[int, list[str]]] = []
    for copies in findings.duplicates:
        split: defaultdict[int, list[str]] = defaultdict(list)
        for path in copies:
            if path in domain_of:
                split[domain_of[path]].append(path)
        sorted_out.append(split)
    return sorted_out


def _within(table: Table, findings: Findings) -> list[list[str]]:
    return [paths for split in _by_domain(table, findings) for paths in split.values() if len(paths) > 1]


def _across(table: Table, findings: Findings) -> list[list[str]]:
    return [[paths[0] for paths in split.values()] for split in _by_domain(table, findings) if len(split) > 1]


def _digest(found: Any) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _findings(found: Any, table: Table) -> Findings:
    bad = [(table.paths[row], str(why)) for row, why in found["bad"]]
    contents = np.array([content_number(text) if text else 0 for text in found["contents"]], dtype=np.uint64)
    if contents.shape != (len(table),):
        raise ValueError("there must be one content number per row")
    return Findings(bad, [tuple(table.paths[row] for row in rows) for rows in found["duplicates"]], contents)


def _recall(place: Path, key: str, table: Table) -> Findings | None:
    """The cached result, or None if there is none for these files."""
    try:
        card = read_json_object(place, "The result of the check", MAX_RESULT)
        if (card["format"], card["stamp"], card["sha256"]) != (FORMAT, key, _digest(card["found"])):
            return None
        return _findings(card["found"], table)
    except (InputError, ValueError, KeyError, TypeError, IndexError):
        return None
