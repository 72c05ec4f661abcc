"""Folders are scanned by name, images decoded once, and whatever is broken is listed or rebuilt, never trusted."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pflbed import InputError, Spec, build, clients, decode, scan, scan_client
from pflbed.cache import cache_dir


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
    with pytest.raises(InputError, match="links must stay inside"):
        scan(root)


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
        reasons = ("truncated", "UnidentifiedImageError", "DecompressionBombWarning", "UnidentifiedImageError")
        assert all(word in reason for word, (_, reason) in zip(reasons, decoded.bad, strict=True))
        assert len(decoded.table) == len(decoded.images) == 12
        assert decoded.table.digest != table.digest
        assert decoded.images[-1, 0, 0].tolist() == [160, 10, 10]


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / "bad" / "d" / label).mkdir(parents=True)
        (tmp_path / "bad" / "d" / label / "x.png").write_text("no")
    with pytest.raises(InputError, match="at least one image must be readable"):
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


def test_two_processes_may_decode_at_once(root: Path) -> None:
    code = "import sys, pathlib; from pflbed import decode, scan; root = pathlib.Path(sys.argv[1]); "
    code += "print(decode(root, scan(root), 6).images.sum())"
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    sums = {process.communicate(timeout=60)[0] for process in running}
    assert len(sums) == 1
    assert all(process.returncode == 0 for process in running)
    assert sorted(path.suffix for path in (cache_dir() / "images").iterdir()) == [".json", ".npy"]


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
