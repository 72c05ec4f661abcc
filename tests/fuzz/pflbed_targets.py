"""What pflbed reads: cards, manifests, predictions, tables, images, folders, caches."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from fuzz import corpus
from fuzz.mutators import TEXTS, bytes_mutant, csv_mutant, json_mutant, json_value_mutant, table_mutant
from fuzz.runner import Attempt, target
from pflbed import load_manifest
from pflbed.chunks import Chunk, ChunkedArray
from pflbed.dataset import find
from pflbed.display import client_row, summary
from pflbed.files import sha256_of
from pflbed.images import UNREADABLE, read_image
from pflbed.manifest import _self_digest
from pflbed.normalization import Normalization
from pflbed.predictions import score_file
from pflbed.sources.arrays import write_arrays
from pflbed.table_file import read_table

Prepared = Callable[[Random], Attempt]


def sealed(card: dict[str, object]) -> dict[str, object]:
    """A card whose digest of itself is right, as an attacker would write it."""
    try:
        return {**card, "card_sha256": _self_digest(card)}
    except (TypeError, ValueError):  # a number of thousands of digits
        return card


def shown(folder: Path) -> None:
    """What 'show' and 'show --json' do with a benchmark."""
    bench = load_manifest(folder)
    for name in bench.client_ids[:3]:
        json.dumps(client_row(bench, name))
    list(summary(bench))


@target("pflbed card")
def card(folder: Path) -> Prepared:
    corpus.benchmark().save(folder)
    good = json.loads((folder / "card.json").read_text(encoding="utf-8"))

    def prepare(rng: Random) -> Attempt:
        if rng.random() < 0.6:
            changed = json_value_mutant(good, rng)
            with contextlib.suppress(ValueError):
                (folder / "card.json").write_text(json.dumps(sealed(changed)), encoding="utf-8")
        else:
            (folder / "card.json").write_bytes(json_mutant(good, rng))
        return lambda: shown(folder)

    return prepare


@target("pflbed manifest")
def manifest(folder: Path) -> Prepared:
    corpus.benchmark().save(folder)
    place = folder / "manifest.parquet"
    table, content = parquet.read_table(place), place.read_bytes()
    good = json.loads((folder / "card.json").read_text(encoding="utf-8"))

    def prepare(rng: Random) -> Attempt:
        if rng.random() < 0.7:
            write_parquet(table_mutant(table, rng), place)
        else:
            place.write_bytes(bytes_mutant(content, rng))
        text = json.dumps(sealed({**good, "manifest_sha256": sha256_of(place)}))
        (folder / "card.json").write_text(text, encoding="utf-8")
        return lambda: shown(folder)

    return prepare


@target("pflbed predictions parquet")
def predictions_parquet(folder: Path) -> Prepared:
    bench = corpus.benchmark()
    table = corpus.predictions(bench)
    place = folder / "p.parquet"
    parquet.write_table(table, place)
    content = place.read_bytes()

    def prepare(rng: Random) -> Attempt:
        if rng.random() < 0.7:
            write_parquet(table_mutant(table, rng), place)
        else:
            place.write_bytes(bytes_mutant(content, rng))
        return lambda: score_file(bench, place).as_json()

    return prepare


@target("pflbed predictions csv")
def predictions_csv(folder: Path) -> Prepared:
    bench = corpus.benchmark()
    text = corpus.as_csv(corpus.predictions(bench))

    def prepare(rng: Random) -> Attempt:
        (folder / "p.csv").write_bytes(csv_mutant(text, rng))
        return lambda: score_file(bench, folder / "p.csv").as_json()

    return prepare


@target("pflbed table parquet")
def table_parquet(folder: Path) -> Prepared:
    table = corpus.listed()
    place = folder / "t.parquet"
    parquet.write_table(table, place)
    content = place.read_bytes()

    def prepare(rng: Random) -> Attempt:
        if rng.random() < 0.6:
            write_parquet(table_mutant(table, rng), place)
        else:
            place.write_bytes(bytes_mutant(content, rng))
        return lambda: read_table(place)

    return prepare


@target("pflbed table csv")
def table_csv(folder: Path) -> Prepared:
    text = corpus.as_csv(corpus.listed())

    def prepare(rng: Random) -> Attempt:
        (folder / "t.csv").write_bytes(csv_mutant(text, rng))
        return lambda: read_table(folder / "t.csv")

    return prepare


@target("pflbed image", unreadable=UNREADABLE)
def image(folder: Path) -> Prepared:
    good = corpus.images()

    def prepare(rng: Random) -> Attempt:
        (folder / "x.png").write_bytes(bytes_mutant(good[rng.choice(sorted(good))], rng))
        return lambda: read_image(folder / "x.png", 8)

    return prepare


@target("pflbed folder")
def image_folder(folder: Path) -> Prepared:
    """A folder with odd entries: the scan goes on, and says what is wrong."""

    def prepare(rng: Random) -> Attempt:
        root = folder / "data"
        shutil.rmtree(root, ignore_errors=True)
        corpus.write_folder(root)
        for _ in range(rng.choice((1, 3))):
            parent = rng.choice([root, root / "art", root / "art" / "cat"])
            name = rng.choice((*(text for text in TEXTS if text and "/" not in text and "\0" not in text), "x.png"))
            entry = Path(
                os.fsdecode(os.fsencode(parent) + b"/" + name.encode()[:80] + rng.choice((b"", b".png", b"\xff.png")))
            )
            with contextlib.suppress(OSError):
                kind = rng.choice(("file", "folder", "loop", "out", "gone", "fifo"))
                if kind == "file":
                    entry.write_bytes(b"x")
                elif kind == "folder":
                    entry.mkdir()
                elif kind == "fifo":
                    os.mkfifo(entry)
                else:
                    entry.symlink_to({"loop": entry.name, "out": "/etc", "gone": "nothing"}[kind])

        def attempt() -> object:
            found = find(root)
            return json.dumps([problem.as_json() for problem in found.every_problem()]), found.problems()

        return attempt

    return prepare


@target("pflbed cache")
def cache(folder: Path) -> Prepared:
    """A damaged cache is made again; nothing that is wrong is used."""

    def array() -> ChunkedArray:
        return ChunkedArray(folder / "x.npy", 6, (2, 2, 3), 2, {"format": 2, "stamp": "s"})

    made = array()
    made.begin()
    pixels = np.arange(12, dtype=np.uint8).tobytes() * 2
    chunks = {}
    for i in range(3):
        with made.part.open("r+b") as file:
            file.seek(made.slots[i])
            file.write(pixels)
        chunks[i] = Chunk(hashlib.sha256(pixels).hexdigest(), ())
    made.finish(chunks)
    good = {path.name: path.read_bytes() for path in folder.iterdir()}
    card_value = json.loads(good["x.json"])

    def prepare(rng: Random) -> Attempt:
        for name, content in good.items():
            (folder / name).write_bytes(content)
        for name in ("x.npy.part", "x.npy.journal"):
            (folder / name).unlink(missing_ok=True)
        if rng.random() < 0.5:
            (folder / "x.json").write_bytes(json_mutant(card_value, rng))
        else:
            (folder / "x.npy").write_bytes(bytes_mutant(good["x.npy"], rng))

        def attempt() -> None:
            found = array()
            if found.whole() is not None:
                assert found.load().tobytes() == pixels * 3
            else:
                found.begin()

        return attempt

    return prepare


@target("pflbed arrays")
def arrays(folder: Path) -> Prepared:
    """A damaged folder of arrays: what is read has as many images as rows."""
    place = folder / "arrays"
    images = np.arange(40 * 12, dtype=np.uint8).reshape(40, 2, 2, 3)
    write_arrays(place, images, corpus.table(40), Normalization((0.5,) * 3, (0.2,) * 3), {"blocks": 1})
    good = {path.name: path.read_bytes() for path in place.iterdir()}
    table, value = parquet.read_table(place / "images.parquet"), json.loads(good["arrays.json"])
    unsealed = {key: own for key, own in value.items() if key != "sha256"}

    def prepare(rng: Random) -> Attempt:
        for name, content in good.items():
            (place / name).write_bytes(content)
        kind = rng.choice(("array", "table", "bytes", "card"))
        if kind == "array":  # without a digest, as anybody may write one
            (place / "arrays.json").write_text(json.dumps(unsealed), encoding="utf-8")
            (place / "images.npy").write_bytes(bytes_mutant(good["images.npy"], rng))
        elif kind == "table":
            write_parquet(table_mutant(table, rng), place / "images.parquet")
        elif kind == "bytes":
            (place / "images.parquet").write_bytes(bytes_mutant(good["images.parquet"], rng))
        else:
            (place / "arrays.json").write_bytes(json_mutant(value, rng))

        def attempt() -> object:
            dataset = find(place, "arrays")
            height, width, channels = dataset.source.decoded(place, None).images.shape[1:]  # type: ignore[misc]
            checked = dataset.checked()[0]
            decoded = checked.decode((height, width), channels=channels)
            assert len(decoded.images) == len(checked.table)
            return dataset.card, dataset.problems()

        return attempt

    return prepare


@target("pflbed command line")
def command_line(folder: Path) -> Prepared:
    """Whole commands on a damaged benchmark folder: exit code 0 or 2, one line on stderr, nothing but text."""
    from pflbed import cli

    corpus.benchmark().save(folder / "bench")
    good = {path.name: path.read_bytes() for path in (folder / "bench").iterdir()}
    value = json.loads(good["card.json"])
    (folder / "p.csv").write_text(corpus.as_csv(corpus.predictions(corpus.benchmark())), encoding="utf-8")

    def prepare(rng: Random) -> Attempt:
        for name, content in good.items():
            (folder / "bench" / name).write_bytes(content)
        (folder / "bench" / "clients.png").write_bytes(b"x")  # so that none is drawn
        with contextlib.suppress(ValueError):
            text = json.dumps(sealed(json_value_mutant(value, rng)))
            (folder / "bench" / "card.json").write_text(text, encoding="utf-8")
        argv = rng.choice((["show", "bench"], ["show", "bench", "--json"], ["score", "bench", "p.csv"]))
        argv = [str(folder / part) if part in ("bench", "p.csv") else part for part in argv]

        def attempt() -> None:
            out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
            with (
                mock.patch.object(sys, "argv", ["pflbed", *argv]),
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(errors),
            ):
                code: object = 0
                try:
                    cli.main()
                except SystemExit as end:
                    code = end.code
                for stream in (out, errors):
                    stream.flush()
            said = [stream.buffer.getvalue() for stream in (out, errors) if isinstance(stream.buffer, io.BytesIO)]
            if code not in (0, None, 2) or b"\x1b" in b"".join(said) or (code == 2 and said[1].count(b"\n") != 1):
                raise AssertionError(f"exit code {code}, {said[1][-500:]!r}")

        return attempt

    return prepare


def write_parquet(table: pa.Table, place: Path) -> None:
    """Write a table; some columns cannot be written, then the file is empty."""
    try:
        parquet.write_table(table, place)
    except (pa.ArrowException, OSError):
        place.write_bytes(b"")
