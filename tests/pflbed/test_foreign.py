"""The readers of foreign files: bounded before they read, and one sentence for whatever is wrong."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from pflbed import InputError, foreign_tables
from pflbed.folders import oddities, scan, scan_client
from pflbed.foreign import map_array, parse_json, read_json, read_json_lines
from pflbed.foreign_tables import TEXT, UNIQUE, WHOLE, Kinds, read_table
from pflbed.images import FORMATS, UNREADABLE, read_image
from pflbed.plots import save_bubbles
from pflbed.problems import sentences
from pflbed.spec import Spec
from pflbed.split import build
from pflbed.table import Table

CHILD_MEMORY = 3 * 2**30


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (CHILD_MEMORY, CHILD_MEMORY))


def both(_: list[str]) -> Kinds:
    return {"a": (TEXT,), "b": (WHOLE,)}


def only_a(_: list[str]) -> Kinds:
    return {"a": (TEXT,)}


def write(path: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


# JSON


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        ("[" * 65 + "]" * 65, "nested at most 64 deep"),
        ("[" * 100_000, "nested at most 64 deep"),
        ("-Infinity", "no JSON number"),
        ("[1e400]", "finite"),
        ("1" * 30, "64 bits"),
        ("1" * 5000, "must be JSON"),
        ('["\\ud800"]', "Unicode"),
        ('{"\\udfff": 1}', "Unicode"),
    ],
)
def test_json_that_is_not_plain_is_refused(text: str, sentence: str) -> None:
    for data in (text, text.encode()):
        with pytest.raises(InputError, match=sentence):
            parse_json(data, "The card")


def test_json_must_be_utf_8_and_a_regular_file(tmp_path: Path) -> None:
    place = tmp_path / "card.json"
    for data in ("{}".encode("utf-16"), b"\xff", b"\xef\xbb\xbf{}"):
        place.write_bytes(data)
        with pytest.raises(InputError, match="must be"):
            read_json(place, "The card")
    place.unlink()
    os.mkfifo(place)
    for reader in (read_json, lambda path, what: list(read_json_lines(path, what))):
        with pytest.raises(InputError, match="regular file"):
            reader(place, "The card")
    place.unlink()
    place.symlink_to(place)
    with pytest.raises(InputError, match="must be readable"):
        read_json(place, "The card")


def test_a_log_ends_at_its_first_damaged_line(tmp_path: Path) -> None:
    place = tmp_path / "log.jsonl"
    place.write_bytes(b'{"a": 1}\n{"a": 2}\n\xff\n{"a": 3}\n')
    assert [line["a"] for line in read_json_lines(place, "The log")] == [1, 2]


# Arrays


def test_arrays_are_mapped_only_if_their_header_fits(tmp_path: Path) -> None:
    place = tmp_path / "a.npy"
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.save(place, values)
    assert np.array_equal(map_array(place, "The array", (None, 3, 4)), values)
    with pytest.raises(InputError, match="of shape"):
        map_array(place, "The array", (None, 4, 3))
    whole = place.read_bytes()
    place.write_bytes(whole[:-1])
    with pytest.raises(InputError, match="as long as its header says"):
        map_array(place, "The array", (None, 3, 4))
    np.save(place, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="must hold bytes"):
        map_array(place, "The array", (None,))
    for data in (b"", b"\x93NUMPY\x01\x00\xff\xff{", b"x" * 200, whole.replace(b"(2, 3, 4)", b"(2**60,)  ")):
        place.write_bytes(data)
        with pytest.raises(InputError):
            map_array(place, "The array", (None, 3, 4))


# Tables


def test_columns_must_have_their_type(tmp_path: Path) -> None:
    good = read_table(write(tmp_path / "t.parquet", a=["x", None], b=[1, 2]), "The table", both)
    assert good["a"].to_pylist() == ["x", None]
    for a in ([1.5], [[1]], [{"x": 1}], [b"\xff"], [True]):
        with pytest.raises(InputError, match="The column 'a' must hold text, got"):
            read_table(write(tmp_path / "t.parquet", a=a, b=[1]), "The table", both)
    for b in (["1"], [1.0], [None, "x"]):
        with pytest.raises(InputError, match="The column 'b' must hold whole numbers, got"):
            read_table(write(tmp_path / "t.parquet", a=["x"] * len(b), b=b), "The table", both)
    (tmp_path / "t.csv").write_text("a,b\nx,1.5\n")
    with pytest.raises(InputError, match="whole csv or parquet file"):
        read_table(tmp_path / "t.csv", "The table", both)


def test_a_column_may_not_occur_twice(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,a\nx,1,y\n")
    table = pa.Table.from_arrays([pa.array(["x"]), pa.array([1]), pa.array(["y"])], names=["a", "b", "a"])
    parquet.write_table(table, tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        with pytest.raises(InputError, match="must have one column 'a'"):
            read_table(tmp_path / name, "The table", both)


def test_dictionaries_and_plain_text_read_the_same(tmp_path: Path) -> None:
    values = [f"name {i % 7}" for i in range(1000)] + [None]
    plain = pa.array(values)
    for column in (plain, plain.dictionary_encode(), plain.cast(pa.large_string()), plain.cast(pa.string_view())):
        for use in (True, False):
            parquet.write_table(pa.table({"a": column}), tmp_path / "t.parquet", use_dictionary=use, row_group_size=300)
            read = read_table(tmp_path / "t.parquet", "The table", only_a)
            assert read["a"].type == pa.large_string()
            assert read["a"].to_pylist() == values


def test_limits_are_read_from_the_footer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "t.parquet", a=["x"] * 11)
    with pytest.raises(InputError, match="at most 10 rows, but it has 11"):
        read_table(file, "The table", only_a, rows=10)
    (tmp_path / "t.csv").write_text("a\n" + "x\n" * 11)
    with pytest.raises(InputError, match="at most 10 rows, but it has 11"):
        read_table(tmp_path / "t.csv", "The table", only_a, rows=10)
    wide = write(tmp_path / "w.parquet", **{f"c{i}": [1] for i in range(1001)})
    with pytest.raises(InputError, match="at most 1,000 columns"):
        read_table(wide, "The table", only_a)
    (tmp_path / "w.csv").write_text(",".join(f"c{i}" for i in range(1001)) + "\n")
    with pytest.raises(InputError, match="at most 1,000 columns"):
        read_table(tmp_path / "w.csv", "The table", only_a)
    monkeypatch.setattr(foreign_tables, "MAX_TABLE", 100)
    with pytest.raises(InputError, match="at most 100 bytes"):
        read_table(file, "The table", only_a)


def test_a_long_text_that_occurs_in_every_row_is_refused_without_writing_it_out(tmp_path: Path) -> None:
    """A million rows of a megabyte each, in a file of a megabyte: read as text it would be a terabyte."""
    indices = pa.array(np.zeros(1_000_000, dtype=np.int32))
    bomb = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 1_000_000]))
    parquet.write_table(pa.table({"a": bomb}), tmp_path / "bomb.parquet")
    code = f"""
import sys
from pathlib import Path
from pflbed import InputError
from pflbed.foreign_tables import read_table
try:
    read_table(Path({str(tmp_path / "bomb.parquet")!r}), "The table", lambda _: {{"a": ("text",)}})
except InputError as error:
    sys.exit(0 if "bytes without compression" in str(error) else str(error))
sys.exit("it was read")
"""
    done = subprocess.run([sys.executable, "-c", code], preexec_fn=limited, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    values = pa.array(["y" * 100 + str(i) for i in range(50)])
    parquet.write_table(
        pa.table({"a": values}), tmp_path / "d.parquet", use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"
    )
    with pytest.raises(InputError, match="whole csv or parquet file"):  # its texts may share a long beginning
        read_table(tmp_path / "d.parquet", "The table", only_a)


def test_equal_rows_end_the_reading_where_rows_must_differ(tmp_path: Path) -> None:
    def differ(_: list[str]) -> Kinds:
        return {"b": (WHOLE,), "a": (TEXT, UNIQUE)}

    good = write(tmp_path / "t.parquet", a=["x", "y", None, None], b=[1, 2, 3, 4], c=[0, 0, 0, 0])
    assert read_table(good, "The table", differ).column_names == ["b", "a"]
    for values in (["x", "x"], pa.array(["x"] * 5).dictionary_encode(), ["a", "b", "a"]):
        file = write(tmp_path / "t.parquet", a=values, b=list(range(len(values))))
        with pytest.raises(InputError, match="but one occurs twice"):
            read_table(file, "The table", differ)


def test_damaged_tables_get_a_sentence(tmp_path: Path) -> None:
    whole = write(tmp_path / "t.parquet", a=["x"] * 100).read_bytes()
    for data in (b"", b"PAR1", whole[:-1], whole[4:], whole[:-8] + b"\xff\xff\xff\x7fPAR1", b"x" * 50 + b"PAR1"):
        (tmp_path / "t.parquet").write_bytes(data)
        with pytest.raises(InputError):
            read_table(tmp_path / "t.parquet", "The table", only_a)
    for data in (b"", b"\n", b"\xff\n", b"a\n\xff\n", b'a\n"', b"a,b\n1\n", b"a\n" + b"x" * 3_000_000):
        (tmp_path / "t.csv").write_bytes(data)
        with pytest.raises(InputError):
            read_table(tmp_path / "t.csv", "The table", both)


# Images


def test_only_image_formats_are_opened_whatever_a_file_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "gs"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    place = tmp_path / "e.png"
    place.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    with pytest.raises(UNREADABLE, match="cannot identify image file"):
        read_image(place, 8)
    assert not (tmp_path / "started").exists()
    Image.new("RGB", (4, 4)).save(tmp_path / "x.ico")
    with pytest.raises(UNREADABLE):
        read_image(tmp_path / "x.ico", 8)
    for name in FORMATS:
        Image.new("RGB", (4, 4), "white").save(tmp_path / "x.png", name)
        assert read_image(tmp_path / "x.png", 4).min() > 250, name
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(UNREADABLE, match="regular file"):
        read_image(place, 8)


def test_images_of_32_bit_numbers_are_never_silently_black(tmp_path: Path) -> None:
    ramp = np.linspace(0, 1, 4096).reshape(64, 64)

    def saved(values: Any) -> Any:
        Image.fromarray(values).save(tmp_path / "x.tiff")
        return read_image(tmp_path / "x.tiff", 64)[:, :, 0]

    expected = np.rint(ramp * 255)
    assert np.abs(saved(ramp.astype(np.float32)) - expected).max() <= 1
    assert np.abs(saved((ramp * 3000 - 1000).astype(np.float32)) - expected).max() <= 1
    assert np.abs(saved((ramp * 1_000_000).astype(np.int32)) - expected).max() <= 1
    assert np.abs(saved((ramp * 65535).astype(np.uint16)) - expected).max() <= 1
    kept = np.arange(4096).reshape(64, 64) % 256
    assert np.array_equal(saved(kept.astype(np.int32)), kept)
    assert np.array_equal(saved(kept.astype(np.float32)), kept)
    assert saved(np.zeros((64, 64), np.float32)).max() == 0
    for wrong in (np.full((8, 8), np.nan), np.full((8, 8), np.inf), np.full((8, 8), 1000.0)):
        with pytest.raises(UNREADABLE, match="convert it to 8 or 16 bits"):
            saved(wrong.astype(np.float32))
    (tmp_path / "x.ppm").write_bytes(b"P5 2 1 65535 " + bytes([0, 255, 128, 0]))
    assert read_image(tmp_path / "x.ppm", (1, 2))[0, :, 0].tolist() == [0, 128]


# Folders


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for i, name in enumerate(("d/a/1.png", "d/b/1.png", "e/a/1.png", "e/b/1.png")):
        place = tmp_path / "data" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (i, 0, 0)).save(place)
    return tmp_path / "data"


def test_one_bad_entry_is_listed_and_the_scan_goes_on(root: Path, tmp_path: Path) -> None:
    before = scan(root)
    (root / "d" / "a" / "loop.png").symlink_to("pool.png")
    (root / "d" / "a" / "pool.png").symlink_to("loop.png")
    (root / "d" / "a" / "gone.png").symlink_to("nothing.png")
    (root / "d" / "a" / "out.png").symlink_to(tmp_path)
    (root / "d" / "a" / "new\nline.png").write_text("x")
    (root / "d" / "own").symlink_to("own")
    (root / "away").symlink_to(tmp_path)
    Path(os.fsdecode(os.fsencode(root) + b"/d/a/\xff.png")).write_text("x")
    os.mkfifo(root / "d" / "b" / "pipe.png")
    assert scan(root).digest == before.digest
    found = {problem.paths[0]: problem for problem in oddities(root)}
    assert {problem.kind for problem in found.values()} == {"skipped"}
    assert set(found) == {
        "d/a/loop.png", "d/a/pool.png", "d/a/gone.png", "d/a/out.png", "d/a/new\nline.png", "d/own", "away",
        "d/a/\\udcff.png", "d/b/pipe.png",
    }  # fmt: skip
    for path, reason in (
        ("d/a/loop.png", "loop"), ("d/a/gone.png", "link to nothing"), ("away", "leaves the data folder"),
        ("d/a/\\udcff.png", "not text in UTF-8"), ("d/a/new\nline.png", "control character"),
        ("d/b/pipe.png", "not a regular file"),
    ):  # fmt: skip
        assert reason in found[path].reason
    (sentence,) = sentences(oddities(root))
    assert sentence.startswith("9 entries cannot be used: ")
    with pytest.raises(InputError, match="must be usable"):
        scan_client(root / "d")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_listed(root: Path) -> None:
    (root / "e" / "a").chmod(0)
    assert len(scan(root)) == 3
    (problem,) = oddities(root)
    assert problem.paths == ("e/a",)
    (root / "e" / "a").chmod(0o755)


def test_a_hint_says_where_the_images_are(root: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"one folder deeper, give {root}$"):
        scan(tmp_path)
    with pytest.raises(InputError, match="look like root/<class>/<image>"):
        scan(root / "d")
    with pytest.raises(InputError, match="look like images without folders"):
        scan(root / "d" / "a")
    with pytest.raises(InputError, match=rf"give one domain, such as {root}/d$"):
        scan_client(root)


# Plots


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    count = 120
    table = Table(
        paths=tuple(map(str, range(count))), labels=np.arange(count) % 2, domains=np.arange(count) // 4 % 3,
        class_names=("$a_{$", "b\x1b[2J"), domain_names=("_x", "$\\frac{$", "z\n"), digest="0",
    )  # fmt: skip
    benchmark = build(table, Spec(clients_per_domain=2, new_clients_per_domain=1))
    save_bubbles(benchmark, tmp_path / "x.svg")
    save_bubbles(benchmark, tmp_path / "x.png")
