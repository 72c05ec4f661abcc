"""Folders are scanned by name, images decoded once, and whatever is broken is listed or rebuilt, never trusted."""

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers import MINUTES, wait_until
from pflbed import InputError, Spec, build, clients, decode, scan, scan_client
from pflbed.cache import cache_dir, read_images
from pflbed.folders import oddities
from pflbed.images import fit, open_file, read_image, reason


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBASIS_CACHE", str(tmp_path / "cache"))


def write_image(path: Path, color: tuple[int, int, int] = (200, 10, 10), size: tuple[int, int] = (12, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for domain in ("photo", "art"):
        for label in ("dog", "cat"):
            for i in range(3):
                write_image(folder / domain / label / f"{i}.png", color=(i * 80, 10, 10))
    return folder


def cached() -> Path:
    (place,) = (cache_dir() / "images").glob("*.npy")
    return place


def test_scan_reads_names_in_sorted_order(root: Path) -> None:
    (root / "photo" / "dog" / "notes.txt").write_text("not an image")
    (root / "photo" / "dog" / ".hidden.png").write_bytes(b"")
    (root / ".git").mkdir()
    (root / "empty").mkdir()
    table = scan(root)
    assert table.domain_names == ("art", "photo")
    assert table.class_names == ("cat", "dog")
    assert table.paths[0] == "art/cat/0.png"
    assert list(table.paths) == sorted(table.paths)
    assert len(table) == 12
    assert scan(root).digest == table.digest
    write_image(root / "photo" / "dog" / "9.png")
    assert scan(root).digest != table.digest


def test_scan_client_reads_one_folder_and_accepts_one_class(root: Path) -> None:
    assert scan_client(root / "photo").domain_names == ("client",)
    (root / "one").mkdir()
    (root / "photo" / "dog").rename(root / "one" / "dog")
    assert scan_client(root / "one").class_names == ("dog",)


def test_scan_says_what_is_wrong(tmp_path: Path, root: Path) -> None:
    with pytest.raises(InputError, match="must exist"):
        scan(tmp_path / "nowhere")
    with pytest.raises(InputError, match="must be a folder"):
        scan(root / "photo" / "dog" / "0.png")
    with pytest.raises(InputError, match="one folder deeper"):
        scan(root / "photo")
    (tmp_path / "void").mkdir()
    with pytest.raises(InputError, match="got none in"):
        scan(tmp_path / "void")
    with pytest.raises(InputError, match="got none in"):
        scan_client(tmp_path / "void")
    write_image(tmp_path / "single" / "photo" / "dog" / "0.png")
    with pytest.raises(InputError, match="at least two classes, got only 'dog'"):
        scan(tmp_path / "single")


def test_links_may_not_leave_the_folder(tmp_path: Path, root: Path) -> None:
    (root / "photo" / "dog" / "inside.png").symlink_to(root / "photo" / "cat" / "0.png")
    assert len(scan(root)) == 13
    write_image(tmp_path / "elsewhere.png")
    (root / "photo" / "dog" / "outside.png").symlink_to(tmp_path / "elsewhere.png")
    assert len(scan(root)) == 13  # one bad entry does not stop the scan
    (problem,) = oddities(root)
    assert (problem.kind, problem.paths) == ("skipped", ("photo/dog/outside.png",))
    assert "leaves the data folder" in problem.reason
    with pytest.raises(InputError, match="leaves the data folder"):
        scan_client(root / "photo")


def test_decode_fits_turns_and_flattens(root: Path) -> None:
    wide = Image.new("RGB", (30, 10), (255, 0, 0))
    wide.paste((0, 255, 0), (10, 0, 20, 10))
    wide.save(root / "art" / "cat" / "0.png")  # the green middle third is what a centre crop keeps
    turned = Image.new("RGB", (10, 10), (255, 0, 0))
    turned.paste((0, 0, 255), (0, 0, 5, 10))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(root / "art" / "cat" / "1.png", exif=exif)  # blue on the left is shown at the top
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(root / "art" / "cat" / "2.png")
    Image.new("P", (8, 8)).save(root / "art" / "dog" / "0.png", transparency=b"\x00\x80")
    Image.fromarray(np.full((8, 8), 65535, dtype=np.uint16)).save(root / "art" / "dog" / "1.png")
    steps: list[tuple[int, int]] = []
    decoded = decode(root, scan(root), 10, progress=lambda done, total: steps.append((done, total)))
    assert decoded.images.shape == (12, 10, 10, 3)
    assert decoded.images.dtype == np.uint8
    assert decoded.bad == []
    assert steps[-1] == (12, 12)
    assert decoded.images[0, 5, 5].tolist() == [0, 255, 0]
    assert decoded.images[1, 1, 5].tolist() == [0, 0, 255]
    assert decoded.images[1, 8, 5].tolist() == [255, 0, 0]
    assert decoded.images[2].min() == 255
    assert decoded.images[3].min() == 255
    assert decoded.images[4].min() == 255


def test_bad_images_are_listed_and_left_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.Generator(np.random.PCG64(0)).integers(0, 255, (48, 48, 3), dtype=np.uint8)
    Image.fromarray(noise).save(root / "art" / "cat" / "cut.jpg")
    whole = (root / "art" / "cat" / "cut.jpg").read_bytes()
    (root / "art" / "cat" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "art" / "dog" / "text.jpg").write_text("not an image")
    (root / "photo" / "dog" / "empty.png").write_bytes(b"")
    write_image(root / "photo" / "dog" / "bomb.png", size=(60, 60))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 3000)  # of the files only 60 x 60 is above
    table = scan(root)
    for _ in range(2):  # made, then read from the cache
        decoded = decode(root, table, 4)
        names = [path for path, _ in decoded.bad]
        assert names == ["art/cat/cut.jpg", "art/dog/text.jpg", "photo/dog/bomb.png", "photo/dog/empty.png"]
        reasons = ("truncated", "it is no PNG", "must have at most", "it is no PNG")
        assert all(word in reason for word, (_, reason) in zip(reasons, decoded.bad, strict=True))
        assert len(decoded.table) == len(decoded.images) == 12
        assert decoded.table.digest != table.digest
        assert decoded.images[-1, 0, 0].tolist() == [160, 10, 10]


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / "bad" / "d" / label).mkdir(parents=True)
        (tmp_path / "bad" / "d" / label / "x.png").write_text("no")
    with pytest.raises(InputError, match="At least one image must be readable"):
        decode(tmp_path / "bad", scan(tmp_path / "bad"), 8)
    assert not list((cache_dir() / "images").iterdir())


@pytest.mark.parametrize("damage", ["cut", "flip", "card", "no card"])
def test_a_damaged_cache_is_rebuilt(root: Path, damage: str) -> None:
    table = scan(root)
    before = np.array(decode(root, table, 6).images)
    place = cached()
    content = place.read_bytes()
    if damage == "cut":
        place.write_bytes(content[:-50])
    elif damage == "flip":
        place.write_bytes(content[:-1] + bytes([content[-1] ^ 255]))
    elif damage == "card":
        place.with_suffix(".json").write_text("{")
    else:
        place.with_suffix(".json").unlink()
    assert np.array_equal(decode(root, table, 6).images, before)
    assert place.read_bytes() == content


def test_a_whole_cache_is_reused_and_a_changed_image_is_not(root: Path) -> None:
    table = scan(root)
    decode(root, table, 6)
    steps: list[int] = []
    decode(root, table, 6, progress=lambda done, _: steps.append(done))
    assert steps == []
    write_image(root / "art" / "cat" / "0.png", color=(1, 2, 3))
    assert decode(root, table, 6).images[0, 0, 0].tolist() == [1, 2, 3]


def test_clients_share_their_domains_test_set(tmp_path: Path) -> None:
    for domain in ("a", "b"):
        for label in ("x", "y"):
            for i in range(40):
                write_image(tmp_path / "big" / domain / label / f"{i}.bmp", color=(i, 0, 0), size=(4, 4))
    decoded = decode(tmp_path / "big", scan(tmp_path / "big"), 4)
    bench = build(decoded.table, Spec(clients_per_domain=3, new_clients_per_domain=2))
    everyone = clients(bench, decoded.images)
    assert tuple(everyone) == bench.client_ids
    assert everyone["a/p00"].test is everyone["a/n01"].test
    assert everyone["a/p00"].test is not everyone["b/p00"].test
    for name, client in everyone.items():
        rows = bench.rows(name)
        assert np.array_equal(client.train.pixels, decoded.images[rows])
        assert np.array_equal(client.train.labels, decoded.table.labels[rows])
        assert type(client.train.pixels) is np.ndarray
        assert client.label_distribution.sum() == pytest.approx(1)
    new = everyone["a/n00"]
    assert new.sized("M") is new.train
    small = bench.rows("a/n00", "S")
    assert np.array_equal(new.sized("S").pixels, decoded.images[small])
    with pytest.raises(InputError, match=r"\(M\), got 'S'"):
        everyone["a/p00"].sized("S")
    with pytest.raises(InputError, match="one image per row"):
        clients(bench, decoded.images[:-1])


def test_cache_dir_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("FEDBASIS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert cache_dir() == tmp_path / "xdg" / "fedbasis"


def test_importing_pflbed_is_light() -> None:
    heavy = "('torch', 'matplotlib', 'sklearn', 'mlxtend', 'pyarrow', 'fedbasis')"
    code = f"import sys, pflbed; sys.exit(', '.join(name for name in {heavy} if name in sys.modules) or None)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Resuming, checking and sharing out. Most of these decode in this process, with chunks of 4 rows.

OPENED: list[str] = []
"""What ``open_logged`` was asked for."""
PATIENCE: list[int] = []
"""After so many images ``open_logged`` is interrupted."""


def open_logged(root: Path, path: str) -> Image.Image:
    if PATIENCE and len(OPENED) >= PATIENCE[0]:
        raise KeyboardInterrupt
    OPENED.append(path)
    return open_file(root, path)


@pytest.fixture
def forty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten chunks of four images; of the third one row is bad, of the fifth all but one."""
    monkeypatch.setattr("pflbed.cache.CHUNK", 4)
    OPENED.clear()
    PATIENCE.clear()
    folder = tmp_path / "forty"
    for i in range(40):
        path = folder / "dom" / "ab"[i // 20] / f"{i:02}.bmp"
        write_image(path, color=(i, 2 * i, 255 - i), size=(5, 4))
        if i in {9, 16, 17, 19}:
            path.write_bytes(b"BM")
    return folder


def interrupted(root: Path, after: int) -> None:
    """Decode until the opener has had enough."""
    PATIENCE[:] = [after]
    with pytest.raises(KeyboardInterrupt):
        decode(root, scan(root), 6, open_image=open_logged)
    PATIENCE.clear()
    OPENED.clear()


def clean(root: Path) -> np.ndarray:
    """What one serial decode in memory gives."""
    return read_images(root, scan(root), 6).images


def rows(paths: list[str]) -> list[int]:
    return [int(Path(path).stem) for path in paths]


def beside() -> list[str]:
    return sorted(path.name.partition(".")[2] for path in (cache_dir() / "images").iterdir())


def test_an_interrupted_decode_goes_on_where_it_stood(forty: Path) -> None:
    interrupted(forty, after=22)  # five chunks and a half
    assert beside() == ["npy.journal", "npy.part"]
    steps: list[tuple[int, int]] = []
    decoded = decode(forty, scan(forty), 6, lambda *step: steps.append(step), open_image=open_logged)
    assert rows(OPENED) == list(range(20, 40))
    assert steps == [(done, 40) for done in range(20, 41, 4)]
    assert np.array_equal(decoded.images, clean(forty))
    assert rows([path for path, _ in decoded.bad]) == [9, 16, 17, 19]
    assert rows(list(decoded.table.paths)) == [i for i in range(40) if i not in {9, 16, 17, 19}]
    assert beside() == ["json", "npy"]


@pytest.mark.parametrize(
    ("damage", "again"),
    [
        ("flip", [4, 5, 6, 7]),
        ("no part", range(20)),
        ("torn line", [16, 17, 18, 19]),
        ("no journal", range(20)),
        ("other format", range(20)),
        ("nonsense", [16, 17, 18, 19]),
        ("changed image", range(20)),
    ],
)
def test_what_is_damaged_of_a_part_is_done_again(forty: Path, damage: str, again: Sequence[int]) -> None:
    interrupted(forty, after=20)
    (part,) = (cache_dir() / "images").glob("*.part")
    (journal,) = (cache_dir() / "images").glob("*.journal")
    lines = journal.read_text().splitlines(keepends=True)
    assert len(lines) == 6
    if damage == "flip":
        content = bytearray(part.read_bytes())
        content[128 + 5 * 108] ^= 1  # in row 5
        part.write_bytes(content)
    elif damage == "no part":
        part.unlink()
    elif damage == "torn line":
        journal.write_text("".join(lines)[:-9])
    elif damage == "no journal":
        journal.unlink()
    elif damage == "other format":
        journal.write_text("".join([lines[0].replace('"format": 2', '"format": 1'), *lines[1:]]))
    elif damage == "nonsense":
        journal.write_text("".join([*lines[:5], lines[5].replace("[16,", "[3,")]))
    else:
        write_image(forty / "dom" / "a" / "00.bmp", color=(9, 9, 9), size=(5, 4))
    decoded = decode(forty, scan(forty), 6, open_image=open_logged)
    assert rows(OPENED) == [*again, *range(20, 40)]
    assert np.array_equal(decoded.images, clean(forty))


def test_only_the_damaged_chunk_of_a_finished_cache_is_done_again(forty: Path) -> None:
    whole = np.array(decode(forty, scan(forty), 6, open_image=open_logged).images)
    place = cached()
    content = place.read_bytes()
    for position, again in ((128 + 20 * 108, range(24, 28)), (128, range(4)), (len(content) - 1, range(36, 40))):
        OPENED.clear()
        place.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        assert np.array_equal(decode(forty, scan(forty), 6, open_image=open_logged).images, whole)
        assert rows(OPENED) == list(again)
        assert place.read_bytes() == content
    OPENED.clear()
    place.write_bytes(content[:60] + b"9" + content[61:])  # the header alone
    assert np.array_equal(decode(forty, scan(forty), 6, open_image=open_logged).images, whole)
    place.write_bytes(content + b"more")
    assert np.array_equal(decode(forty, scan(forty), 6, open_image=open_logged).images, whole)
    assert OPENED == []
    assert place.read_bytes() == content
    assert beside() == ["json", "npy"]


@pytest.mark.parametrize("step", ["the card is written", "the part is renamed"])
def test_a_decode_killed_at_its_very_end_loses_little(forty: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    replace = Path.replace

    def killed(path: Path, target: Path) -> Path:
        if (path.suffix == ".part") == (step == "the part is renamed"):
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            decode(forty, scan(forty), 6, open_image=open_logged)
    OPENED.clear()
    assert np.array_equal(decode(forty, scan(forty), 6, open_image=open_logged).images, clean(forty))
    assert rows(OPENED) == list(range(12, 40))  # what was not moved to close a gap is not done again
    assert beside() == ["json", "npy"]


def test_reasons_do_not_depend_on_where_the_data_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for root in (Path("data"), tmp_path / "data", tmp_path / "link"):
        error = OSError(f"broken data stream in '{root.resolve()}/a.jpg'")
        assert reason(error, root) == "broken data stream in 'a.jpg'"


def test_a_cache_is_of_one_way_to_open_images(forty: Path) -> None:
    decode(forty, scan(forty), 6)
    decode(forty, scan(forty), 6, open_image=open_logged)
    assert len(OPENED) == 40


def test_without_locks_each_process_makes_its_own(forty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr("fcntl.flock", no_locks)
    interrupted(forty, after=9)
    assert beside() == ["npy.lock"]
    assert np.array_equal(decode(forty, scan(forty), 6).images, clean(forty))
    assert beside() == ["json", "npy", "npy.lock"]


def test_errors_of_an_opener_are_raised_as_they_are(forty: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        with pytest.raises(LookupError, match="24"):
            decode(forty, scan(forty), 6, open_image=open_wrongly, workers=workers)
    (forty / "dom" / "a" / "00.bmp").unlink()
    table = scan(forty)
    write_image(tmp_path / "secret.bmp")
    (forty / "dom" / "a" / "01.bmp").unlink()
    (forty / "dom" / "a" / "01.bmp").symlink_to(tmp_path / "secret.bmp")
    for workers in (1, 2):
        bad = dict(decode(forty, table, 6, workers=workers).bad)
        assert "must stay inside the data folder" in bad["dom/a/01.bmp"]


def open_wrongly(root: Path, path: str) -> Image.Image:
    if path.endswith("24.bmp"):
        raise LookupError(path)
    return open_file(root, path)


def test_numbers_that_make_no_sense_are_refused(forty: Path) -> None:
    table = scan(forty)
    with pytest.raises(InputError, match="at least one row"):
        decode(forty, table.take([]), 6)
    with pytest.raises(InputError, match="at least 1 pixel"):
        decode(forty, table, 0)
    with pytest.raises(InputError, match="at least 1 process"):
        decode(forty, table, 6, workers=0)
    few = decode(forty, table.take([3, 1, 39]), 6, workers=8)
    assert few.images[:, 0, 0].tolist() == [[3, 6, 252], [1, 2, 254], [39, 78, 216]]


def test_any_number_of_processes_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ünï — 画像"
    noise = np.random.Generator(np.random.PCG64(0)).integers(0, 255, (70, 20, 16, 3), dtype=np.uint8)
    for i, pixels in enumerate(noise):
        path = folder / "фото" / ("犬" if i % 2 else "猫 '\"") / f"é {i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        if i in {0, 31, 69}:
            path.write_bytes(path.read_bytes()[:-100])
    monkeypatch.setattr("pflbed.cache.CHUNK", 8)
    found = {}
    for workers in (1, 3):
        monkeypatch.setenv("FEDBASIS_CACHE", str(tmp_path / f"cache {workers}"))
        steps: list[tuple[int, int]] = []
        decoded = decode(folder, scan(folder), 9, progress=lambda *step: steps.append(step), workers=workers)  # noqa: B023
        assert steps == sorted(steps)
        assert len(steps) == 9
        assert steps[-1] == (70, 70)
        found[workers] = (cached().read_bytes(), decoded.bad, decoded.table.digest)
    assert found[1] == found[3]
    assert len(found[1][1]) == 3
    assert all("truncated" in why for _, why in found[1][1])


def test_huge_images_are_refused_by_their_header(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (10_000, 10_000)).save(root / "art" / "cat" / "huge.png")

    def never(*_: object) -> None:
        pytest.fail("a huge image was decoded")

    for limit, words in ((Image.MAX_IMAGE_PIXELS, "at most 67,108,864 pixels"), (None, "at most 67,108,864 pixels")):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        monkeypatch.setenv("FEDBASIS_CACHE", str(root.parent / f"cache {limit}"))
        ((path, why),) = decode(root, scan(root), 8).bad
        assert path == "art/cat/huge.png"
        assert words in why
    with open_file(root, "art/cat/huge.png") as opened:
        monkeypatch.setattr(type(opened), "load", never)
        with pytest.raises(Image.DecompressionBombError, match="scale it down"):
            fit(opened, 8)


def test_sizes_and_channels_have_a_cache_each_and_a_square_keeps_its_own(root: Path) -> None:
    table = scan(root)
    pixels = {
        size: decode(root, table, size, channels=channels).images.shape[1:]
        for size, channels in ((8, 3), ((8, 12), 3), ((12, 8), 1))
    }
    assert pixels == {8: (8, 8, 3), (8, 12): (8, 12, 3), (12, 8): (12, 8, 1)}
    names = {path.name.removeprefix(table.digest[:20]) for path in (cache_dir() / "images").glob("*.npy")}
    assert names == {"-8.npy", "-8x12.npy", "-12x8-gray.npy"}
    assert np.array_equal(decode(root, table, (8, 8)).images, decode(root, table, 8).images)
    assert len(list((cache_dir() / "images").glob("*.npy"))) == 3
    gray = decode(root, table, 8, channels=1).images
    assert np.array_equal(gray, read_images(root, table, 8, channels=1).images)
    colors = decode(root, table, 8).images[..., :1].astype(int) * 0.299 + 10 * (0.587 + 0.114)
    assert np.abs(gray - colors).max() < 1


def test_a_gray_file_keeps_its_values(tmp_path: Path) -> None:
    values = np.arange(256, dtype=np.uint8).reshape(16, 16)
    Image.fromarray(values).save(tmp_path / "gray.png")
    with Image.open(tmp_path / "gray.png") as opened:
        assert np.array_equal(fit(opened, 16, channels=1)[..., 0], values)
    assert read_image(tmp_path / "gray.png", (16, 8)).shape == (16, 8, 3)


@pytest.mark.parametrize("size", [0, (8, 0), (8,), (8, 8, 3), True, 1.5])
def test_a_size_that_is_none_is_refused(root: Path, size: Any) -> None:
    with pytest.raises(InputError, match="at least 1 pixel"):
        decode(root, scan(root), size)


def test_only_gray_and_rgb_are_decoded_to(root: Path) -> None:
    with pytest.raises(InputError, match="channels must be 3"):
        decode(root, scan(root), 8, channels=4)


# A decode of its own, in a script without the guard that multiprocessing needs, with two workers.

OPENER = """
import os, pathlib, time
from pflbed.images import open_file
seen, MANY = 0, 5 * 32  # of 20 chunks every worker does 5, and waits
def open_image(root, path):
    with open(os.environ["OPENED"], "a") as file:
        file.write(f"{os.getpid()} {path}\\n")
    global seen
    seen += 1
    while seen > MANY and not os.path.exists(os.environ["GO"]):
        time.sleep(0.01)
    return open_file(root, path)
"""
SCRIPT = """
import pathlib, sys, opener
from pflbed import decode, scan
root = pathlib.Path(sys.argv[1])
print(decode(root, scan(root), 6, open_image=opener.open_image, workers=2).images.sum())
assert "torch" not in sys.modules
"""


@pytest.fixture
def opener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the script's opener writes what it was asked for."""
    (tmp_path / "opener.py").write_text(OPENER)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OPENED", str(tmp_path / "opened.txt"))
    monkeypatch.setenv("GO", str(tmp_path / "go"))
    return tmp_path / "opened.txt"


@pytest.fixture
def slowly(tmp_path: Path, opener: Path) -> Iterator["subprocess.Popen[str]"]:
    """The script at work on 640 images, when it has done some."""
    for i in range(640):
        path = tmp_path / "many" / "ab"[i % 2] / "xy"[i // 2 % 2] / f"{i:03}.bmp"
        write_image(path, color=(i % 256, 0, 9), size=(4, 4))
    (tmp_path / "many" / "a" / "x" / "100.bmp").write_bytes(b"")
    script = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "many")]
    process = subprocess.Popen(script, stdout=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: any(len(path.read_text().splitlines()) > 4 for path in journals()) and len(pids(opener)) == 2)
    with process:
        yield process
        process.kill()


def pids(log: Path) -> set[int]:
    return {int(line.split()[0]) for line in log.read_text().splitlines()}


def journals() -> list[Path]:
    return list((cache_dir() / "images").glob("*.journal"))


def alive(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform == "win32", reason="there each makes its own")
def test_two_processes_may_decode_at_once_and_one_does_the_work(root: Path, tmp_path: Path, opener: Path) -> None:
    script = [sys.executable, str(tmp_path / "script.py"), str(root)]
    running = [subprocess.Popen(script, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    sums = {process.communicate(timeout=MINUTES)[0] for process in running}
    assert len(sums) == 1
    assert all(process.returncode == 0 for process in running)
    assert len(opener.read_text().splitlines()) == 12
    assert beside() == ["json", "npy"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_decode_leaves_its_work_and_no_process(
    slowly: "subprocess.Popen[str]",
    opener: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: signal.Signals,
) -> None:
    if how == signal.SIGINT:
        os.killpg(slowly.pid, how)  # as a terminal does
    else:
        slowly.send_signal(how)
    workers = pids(opener)
    assert slowly.pid not in workers
    slowly.wait(timeout=MINUTES)
    (tmp_path / "go").touch()
    wait_until(lambda: not any(alive(worker) for worker in workers))
    (journal,) = journals()
    assert journal.with_suffix(".part").exists()
    done = {json.loads(line)["chunk"] for line in journal.read_text().splitlines()[1:]}
    assert 4 <= len(done) <= 10
    opener.unlink()
    steps: list[int] = []
    table = scan(tmp_path / "many")
    open_image = importlib.import_module("opener").open_image
    decoded = decode(tmp_path / "many", table, 6, lambda n, _: steps.append(n), open_image=open_image, workers=2)
    again = sorted(line.split()[1] for line in opener.read_text().splitlines())
    assert again == sorted(path for row, path in enumerate(table.paths) if row // 32 not in done)
    assert steps == list(range(32 * len(done), 641, 32))
    assert np.array_equal(decoded.images, read_images(tmp_path / "many", table, 6).images)
    assert [path for path, _ in decoded.bad] == ["a/x/100.bmp"]
    assert beside() == ["json", "npy"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks for threads in /proc")
def test_only_the_main_thread_receives_ctrl_c(forty: Path) -> None:
    blocked = []

    def look(done: int, _: int) -> None:
        threads = [thread for thread in threading.enumerate() if "_drive" in thread.name]
        for thread in threads if done < 40 else []:
            status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
            signals = int(status.partition("SigBlk:")[2].split()[0], 16)
            blocked.append(bool(signals >> (signal.SIGINT - 1) & 1))

    decode(forty, scan(forty), 6, look, workers=2)
    assert blocked
    assert all(blocked)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_worker_that_is_killed_is_told_of(forty: Path) -> None:
    with pytest.raises(InputError, match="ended by signal 9; run the same again"):
        decode(forty, scan(forty), 6, open_image=open_and_die, workers=2)
    assert np.array_equal(decode(forty, scan(forty), 6).images, clean(forty))


def open_and_die(root: Path, path: str) -> Image.Image:
    if path.endswith("21.bmp"):
        os.kill(os.getpid(), signal.SIGKILL)
    print("whatever this prints does not garble the answers", file=sys.stdout)
    return open_file(root, path)
