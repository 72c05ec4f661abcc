"""A dataset is looked at once in full: which images cannot be read, and which are the same picture twice.

Two images are the same if their pixels are, upright and on white at their own size, whatever the files' names, formats
and bytes. The same picture in two splits would let a model be tested on what it was trained on, so rows that share one
get a group. What was found is kept beside the image cache for as long as the files stay as they are.
"""

import contextlib
import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflbed.benchmark import NEW, TEST, Benchmark
from pflbed.cache import CHUNK, Progress, cache_dir, stamp
from pflbed.errors import InputError
from pflbed.files import write_json
from pflbed.images import UNREADABLE, Opener, careful, flat, open_file, reason
from pflbed.table import Table
from pflbed.workers import Job, how_many, share_out

FORMAT = 1
FIRST_BAD, FIRST_GAPS = 5, 10


@dataclass(frozen=True)
class Findings:
    """What a dataset's images are like, by their paths."""

    bad: list[tuple[str, str]]
    """Unreadable ones, each with the reason, in the table's order."""
    duplicates: list[tuple[str, ...]]
    """Those with the same pixels, in the table's order."""


def check(
    root: Path,
    table: Table,
    open_image: Opener = open_file,
    progress: Progress | None = None,
    workers: int | None = None,
) -> Findings:
    """Read every image in full, unless that was done before and the files are unchanged."""
    root = Path(root)
    if not len(table):
        raise InputError("a table must have at least one row to be checked, got none; check how it was made")
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
    with contextlib.closing(share_out(look_at, open_image, jobs, processes)) as answers:
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
    found = {"bad": sorted(bad.items()), "duplicates": [rows for rows in alike.values() if len(rows) > 1]}
    write_json(place, {"format": FORMAT, "stamp": key, "found": found, "sha256": _digest(found)})
    return _findings(found, table)


def look_at(open_image: Opener, job: Job) -> Any:
    """Read a chunk of images, in whatever process; per image the digest of its pixels or, that empty, what is wrong."""
    root = Path(job["root"])
    answer: list[tuple[str, str]] = []
    for path in job["paths"]:
        try:
            with careful(), open_image(root, path) as opened:
                image = flat(opened)
            digest = hashlib.sha256(f"{image.width} {image.height} ".encode())
            digest.update(image.tobytes())
            answer.append((digest.hexdigest(), ""))
        except InputError:  # a path that must not be followed is no matter of one image
            raise
        except UNREADABLE as error:
            answer.append(("", reason(error, root)))
    return answer


def content_groups(table: Table, findings: Findings) -> tuple[str, ...] | None:
    """Name a group per row, so that copies within a domain share one; None if no row needs any.

    A group lies within one domain, so copies across domains stay apart. Where a table has groups, they are kept, and
    those that a copy connects become one.
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
    """Say in sentences what is wrong with a dataset; nothing if all is well."""
    said: list[str] = []
    if findings.bad:
        listed = [f"{path} ({why})" for path, why in findings.bad[:FIRST_BAD]]
        more = len(findings.bad) - len(listed)
        rest = f", and {more:,} more" if more else ""
        said.append(f"{_count(len(findings.bad), 'image', 'images')} cannot be read: {', '.join(listed)}{rest}")
    gaps = _gaps(table, findings)
    said += gaps[:FIRST_GAPS]
    if len(gaps) > FIRST_GAPS:
        said.append(f"and {len(gaps) - FIRST_GAPS:,} more classes that a domain lacks")
    if within := _within(table, findings):
        many = _count(len(within), "picture occurs", "pictures occur")
        said.append(f"{many} more than once within a domain, such as {within[0][0]} and {within[0][1]}")
    if across := _across(table, findings):
        many = _count(len(across), "picture occurs", "pictures occur")
        said.append(f"{many} in more than one domain, such as {across[0][0]} and {across[0][1]}")
    return said


def trained_and_tested(benchmark: Benchmark, findings: Findings) -> int:
    """Count the test images of which a client trains on a copy, which only copies across domains can be."""
    split = dict(zip(benchmark.table.paths, benchmark.split.tolist(), strict=True))
    leaks = 0
    for copies in findings.duplicates:
        places = [split[path] for path in copies if path in split]
        leaks += places.count(TEST) if any(place <= NEW for place in places) else 0
    return leaks


def _count(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def _gaps(table: Table, findings: Findings) -> list[str]:
    """Where a domain has no readable image of a class."""
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
    """The copies of each picture, by domain; of rows that are not in the table nothing is said."""
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
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _findings(found: Any, table: Table) -> Findings:
    bad = [(table.paths[row], str(why)) for row, why in found["bad"]]
    return Findings(bad, [tuple(table.paths[row] for row in rows) for rows in found["duplicates"]])


def _recall(place: Path, key: str, table: Table) -> Findings | None:
    """What was found before, or None if the images must be looked at (again)."""
    try:
        card = json.loads(place.read_text(encoding="utf-8"))
        if (card["format"], card["stamp"], card["sha256"]) != (FORMAT, key, _digest(card["found"])):
            return None
        return _findings(card["found"], table)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
