"""A dataset is looked at in full: what cannot be read, what is missing, and what is there twice."""

import itertools
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pflbed import InputError, Table, scan
from pflbed.cache import cache_dir
from pflbed.check import Findings, check, content_groups, describe
from pflbed.images import open_file

OPENED: list[str] = []


def open_logged(root: Path, path: str) -> Image.Image:
    OPENED.append(path)
    return open_file(root, path)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBASIS_CACHE", str(tmp_path / "cache"))
    OPENED.clear()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two domains of two classes of four pictures, all different."""
    generator = np.random.Generator(np.random.PCG64(0))
    for domain in ("art", "photo"):
        for label in ("cat", "dog"):
            for i in range(4):
                path = tmp_path / "data" / domain / label / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(generator.integers(0, 255, (6, 9, 3), dtype=np.uint8)).save(path)
    return tmp_path / "data"


def table_of(paths: list[str], groups: tuple[str, ...] | None = None) -> Table:
    """A table of ``<domain>/<class>/<image>`` without files."""
    domains, classes = (tuple(sorted({path.split("/")[i] for path in paths})) for i in (0, 1))
    return Table(
        paths=tuple(paths),
        labels=np.array([classes.index(path.split("/")[1]) for path in paths]),
        domains=np.array([domains.index(path.split("/")[0]) for path in paths]),
        class_names=classes,
        domain_names=domains,
        digest="0" * 64,
        groups=groups,
    )


def test_nothing_is_said_of_a_dataset_without_fault(root: Path) -> None:
    table = scan(root)
    findings = check(root, table)
    assert findings == Findings([], [])
    assert content_groups(table, findings) is None
    assert describe(table, findings) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_images_and_copies_are_found(root: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pflbed.check.CHUNK", 3)
    with Image.open(root / "art" / "cat" / "0.png") as first:
        first.save(root / "art" / "dog" / "copy.bmp")
        first.convert("RGBA").save(root / "photo" / "cat" / "copy.webp", lossless=True)
        exif = Image.Exif()
        exif[0x0112] = 6
        first.transpose(Image.Transpose.ROTATE_90).save(root / "photo" / "dog" / "turned.png", exif=exif)
        flat = np.asarray(first)
    Image.fromarray(flat.reshape(9, 6, 3)).save(root / "art" / "cat" / "other shape.png")
    (root / "photo" / "dog" / "1.png").write_bytes(b"no image")
    cut = (root / "photo" / "dog" / "2.png").read_bytes()
    (root / "photo" / "dog" / "2.png").write_bytes(cut[: len(cut) // 2])
    table = scan(root)
    steps: list[tuple[int, int]] = []
    findings = check(root, table, progress=lambda *step: steps.append(step), workers=workers)
    assert findings.duplicates == [
        ("art/cat/0.png", "art/dog/copy.bmp", "photo/cat/copy.webp", "photo/dog/turned.png"),
    ]
    assert [path for path, _ in findings.bad] == ["photo/dog/1.png", "photo/dog/2.png"]
    assert "it is no PNG" in findings.bad[0][1]
    assert str(root) not in findings.bad[0][1]
    assert steps == sorted(steps)
    assert len(steps) == 7
    assert steps[-1] == (20, 20)
    groups = content_groups(table, findings)
    assert groups is not None
    group = dict(zip(table.paths, groups, strict=True))
    assert group["art/cat/0.png"] == group["art/dog/copy.bmp"]
    assert group["photo/cat/copy.webp"] == group["photo/dog/turned.png"]
    assert len(set(groups)) == len(table) - 2
    assert describe(table, findings)[1:] == [
        "2 pictures occur more than once within a domain, such as art/cat/0.png and art/dog/copy.bmp",
        "1 picture occurs in more than one domain, such as art/cat/0.png and photo/cat/copy.webp",
    ]


def test_unreadable_images_and_missing_classes_are_described() -> None:
    paths = [f"{domain}/class {i:02}/x.png" for domain in ("art", "photo") for i in range(15)]
    table = table_of([path for path in paths if path != "art/class 14/x.png"])
    assert describe(table, Findings([], [])) == ["class 'class 14' has no image in domain 'art'"]
    bad = [(path, "cut") for path in paths[2:13]] + [("photo/class 02/x.png", "cut")]
    said = describe(table, Findings(bad, []))
    five = ", ".join(f"art/class {i:02}/x.png (cut)" for i in range(2, 7))
    assert said[0] == f"12 images cannot be read: {five}, and 7 more"
    assert said[1] == "class 'class 02' has no image in any domain"
    assert said[2] == "class 'class 03' has no image in domain 'art'"
    assert said[10] == "class 'class 11' has no image in domain 'art'"
    assert said[11:] == ["and 2 more classes that a domain lacks"]
    assert describe(table, Findings(bad[:1], []))[0] == "1 image cannot be read: art/class 02/x.png (cut)"


ROWS = [f"{domain}/{label}/{i}.png" for domain in "ab" for label in "xy" for i in range(4)]


@given(
    st.permutations(ROWS), st.lists(st.integers(1, 4), max_size=6), st.none() | st.lists(st.integers(0, 3), min_size=16)
)
def test_groups_join_exactly_what_copies_connect(order: list[str], sizes: list[int], old: list[int] | None) -> None:
    cuts = np.cumsum([0, *sizes])
    copies = [tuple(order[a:b]) for a, b in itertools.pairwise(cuts) if len(order[a:b]) > 1]
    before = None if old is None else tuple(f"{path[0]}{g}" for path, g in zip(ROWS, old, strict=False))
    table = table_of(ROWS, before)
    groups = content_groups(table, Findings([], copies))
    linked: dict[str, set[str]] = {path: {path} for path in ROWS}
    pairs = [(a, b) for same in copies for a in same for b in same if a[0] == b[0]]
    if before is not None:
        pairs += [
            (a, b) for a, x in zip(ROWS, before, strict=True) for b, y in zip(ROWS, before, strict=True) if x == y
        ]
    for a, b in pairs:
        union = linked[a] | linked[b]
        for path in union:
            linked[path] = union
    if groups is None:
        assert before is None
        assert all(len(union) == 1 for union in linked.values())
        return
    members: defaultdict[str, set[str]] = defaultdict(set)
    for path, group in zip(ROWS, groups, strict=True):
        members[group].add(path)
    assert all(members[group] == linked[path] for path, group in zip(ROWS, groups, strict=True))
    assert before is None or set(groups) <= set(before)


def test_groups_ignore_rows_that_are_not_in_the_table() -> None:
    table = table_of(["a/x/0.png", "a/y/1.png"])
    gone = Findings([("a/x/9.png", "cut")], [("a/x/0.png", "a/x/7.png"), ("a/x/8.png", "a/x/9.png")])
    assert content_groups(table, gone) is None
    assert describe(table, gone)[1:] == []
    kept = table_of(["a/x/0.png", "a/y/1.png"], groups=("g", "h"))
    assert content_groups(kept, gone) == ("g", "h")


def test_what_was_found_is_kept_until_something_changes(root: Path) -> None:
    (root / "photo" / "dog" / "1.png").write_bytes(b"no image")
    (root / "photo" / "dog" / "0.png").write_bytes((root / "photo" / "cat" / "0.png").read_bytes())
    table = scan(root)
    found = check(root, table, open_image=open_logged)
    assert len(OPENED) == 16
    assert (len(found.bad), len(found.duplicates)) == (1, 1)
    assert check(root, table, open_image=open_logged) == found
    assert len(OPENED) == 16
    (card,) = (cache_dir() / "images").iterdir()
    assert card.name == f"{table.digest[:20]}-check.json"
    content = card.read_text()
    for damaged in (
        "{",
        "[]",
        content.replace('"format": 2', '"format": 1'),
        content.replace("it is no PNG", "it is a PNG"),
        json.dumps({**json.loads(content), "found": {"bad": [], "duplicates": []}}),
    ):
        OPENED.clear()
        card.write_text(damaged)
        assert check(root, table, open_image=open_logged) == found
        assert len(OPENED) == 16
        assert card.read_text() == content
    Image.new("RGB", (6, 9)).save(root / "photo" / "dog" / "1.png")
    assert check(root, table, open_image=open_logged).bad == []
    assert check(root, table).bad == []
    assert len(OPENED) == 32


def test_what_cannot_be_checked_is_refused(root: Path, tmp_path: Path) -> None:
    table = scan(root)
    with pytest.raises(InputError, match="at least one row"):
        check(root, table.take([]))
    with pytest.raises(InputError, match="at least 1 process"):
        check(root, table, workers=0)
    (root / "photo" / "dog" / "1.png").rename(tmp_path / "moved.png")
    (root / "photo" / "dog" / "1.png").symlink_to(tmp_path / "moved.png")
    ((path, why),) = check(root, table).bad
    assert path == "photo/dog/1.png"
    assert "must stay inside the data folder" in why
