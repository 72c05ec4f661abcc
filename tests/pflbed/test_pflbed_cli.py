"""pflbed as a user meets it: from a folder of images to scores, and one sentence for every mistake."""

import csv
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from pflbed import cli, load_manifest
from pflbed.export import EXPORTS
from pflbed.spec import PARTITIONS
from shapes import write_images


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    errors: str


@pytest.fixture
def pflbed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run a command in this process, on a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*argv: object) -> Ended:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["pflbed", *map(str, argv)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Ended(end.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for domain, name in enumerate(("chalk", "paint")):
        write_images(tmp_path / "data" / name, 40, domain, seed=domain)
    return tmp_path / "data"


def built(pflbed: Callable[..., Ended], root: Path, out: Path, *more: object) -> Path:
    ended = pflbed("build", root, "--out", out, "--clients", 3, "--new", 2, *more)
    assert ended.code == 0, ended.errors
    return out


def test_scan_lists_counts_a_digest_and_no_problems(pflbed: Callable[..., Ended], root: Path) -> None:
    ended = pflbed("scan", root)
    assert ended.code == 0
    for word in ("chalk", "paint", "circle", "240", "Digest: ", "No problems found."):
        assert word in ended.out


def test_scan_finds_every_problem(pflbed: Callable[..., Ended], root: Path) -> None:
    (root / "chalk" / "circle" / "000.png").write_text("no image")
    shutil.rmtree(root / "paint" / "cross")
    shutil.copy(root / "chalk" / "square" / "001.png", root / "chalk" / "circle" / "copy.png")
    shutil.copy(root / "chalk" / "square" / "002.png", root / "paint" / "circle" / "copy.png")
    ended = pflbed("scan", root, "--json")
    assert ended.code == 3
    found = json.loads(ended.out)
    assert found["counts"]["paint"] == {"circle": 41, "square": 40}
    problems = " ".join(problem["message"] for problem in found["problems"])
    assert [problem["kind"] for problem in found["problems"]] == [
        "unreadable", "missing class", "duplicate in domain", "duplicate across domains",
    ]  # fmt: skip
    assert found["problems"][0]["paths"] == ["chalk/circle/000.png"]
    for word in ("chalk/circle/000.png", "'cross' has no image", "chalk/circle/copy.png", "paint/circle/copy.png"):
        assert word in problems
    named = pflbed("scan", root, "--names-only")
    assert named.code == 3
    assert "'cross' has no image" in named.out
    assert "000.png" not in named.out


def test_scan_says_what_it_did_not_take(pflbed: Callable[..., Ended], root: Path) -> None:
    (root / "chalk" / "zebra").mkdir()
    (root / "empty").mkdir()
    (root / "paint" / "Circle").mkdir()
    (root / "paint" / "circle" / "deeper").mkdir()
    (root / "paint" / "circle" / "notes.ppm").write_text("x")
    listed = json.loads(pflbed("scan", root, "--names-only", "--json").out)["problems"]
    said = " ".join(problem["message"] for problem in listed)
    for words in (
        "chalk/zebra is empty",
        "'empty' holds no images",
        "'Circle' and 'circle'",
        "circle/deeper",
        "notes.ppm",
    ):
        assert words in said


def test_classes_called_by_numbers_are_counted_as_numbers(
    pflbed: Callable[..., Ended], root: Path, tmp_path: Path
) -> None:
    for i, path in enumerate(sorted(root.rglob("*.png"))):
        place = tmp_path / "numbers" / path.parts[-3] / str(i % 12) / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    bench = built(pflbed, tmp_path / "numbers", tmp_path / "bench", "--split", "50/20/10/20")
    benchmark = load_manifest(bench)
    assert benchmark.table.class_names == tuple(map(str, range(12)))
    rows = [(name, int(row)) for name in benchmark.new for row in benchmark.held_rows(name, "test")]
    labels = benchmark.table.labels[[row for _, row in rows]]
    table = pa.table({"client": [name for name, _ in rows], "row": [row for _, row in rows], "predicted": labels})
    parquet.write_table(table, tmp_path / "p.parquet")
    assert "100.0 (100.0 to 100.0)" in pflbed("score", bench, tmp_path / "p.parquet").out
    parquet.write_table(table.set_column(2, "predicted", pa.array(labels + 1)), tmp_path / "p.parquet")
    ended = pflbed("score", bench, tmp_path / "p.parquet")
    assert ended.code == 2
    assert "class numbers from 0 to 11" in ended.errors


def test_images_of_a_table_may_move(pflbed: Callable[..., Ended], root: Path, tmp_path: Path) -> None:
    lines = [f"{p.relative_to(root).as_posix()},{p.parent.name},{p.parts[-3]}" for p in sorted(root.rglob("*.png"))]
    (tmp_path / "rows.csv").write_text("path,class,domain\n" + "\n".join(lines))
    bench = built(pflbed, tmp_path / "rows.csv", tmp_path / "bench", "--images", root)
    root.rename(tmp_path / "moved")
    ended = pflbed("export", bench, "--to", "folders", "--out", tmp_path / "out")
    assert ended.code == 2
    ended = pflbed("export", bench, "--to", "folders", "--out", tmp_path / "out", "--data", tmp_path / "moved")
    assert ended.code == 0, ended.errors
    assert json.loads((tmp_path / "out" / "classes.json").read_text()) == ["circle", "cross", "square"]


def test_build_leaves_out_the_unreadable_and_keeps_copies_together(
    pflbed: Callable[..., Ended], root: Path, tmp_path: Path
) -> None:
    (root / "chalk" / "circle" / "000.png").write_text("no image")
    for i in range(12):
        shutil.copy(root / "chalk" / "square" / "001.png", root / "chalk" / "square" / f"copy{i}.png")
    ended = pflbed("build", root, "--out", tmp_path / "bench", "--clients", 3, "--new", 2)
    assert ended.code == 0
    assert "Problem: " in ended.out
    bench = load_manifest(tmp_path / "bench")
    assert "chalk/circle/000.png" not in bench.table.paths
    copies = [i for i, path in enumerate(bench.table.paths) if path == "chalk/square/001.png" or "copy" in path]
    assert len(copies) == 13
    assert len({int(bench.split[i]) for i in copies} - {4}) == 1


def test_build_show_and_a_byte_identical_repeat(pflbed: Callable[..., Ended], root: Path, tmp_path: Path) -> None:
    one, two = built(pflbed, root, tmp_path / "one"), built(pflbed, root, tmp_path / "two")
    assert sorted(path.name for path in one.iterdir()) == ["card.json", "clients.png", "manifest.parquet"]
    for name in ("manifest.parquet", "card.json", "clients.png"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    other = built(pflbed, root, tmp_path / "three", "--seed", 1)
    assert (one / "manifest.parquet").read_bytes() != (other / "manifest.parquet").read_bytes()
    with Image.open(one / "clients.png") as picture:
        assert picture.width > 300
    ended = pflbed("show", one)
    assert ended.code == 0
    for word in (
        "chalk/p00",
        "paint/n01",
        "6 participating and 4 new clients",
        "mean over clients: 0.0000 here",
        "clients.png",
    ):
        assert word in ended.out
    found = json.loads(pflbed("show", one, "--json").out)
    assert len(found["clients"]) == 10
    assert found["mismatch"]["here"] == pytest.approx(0, abs=1e-9)
    assert all(sum(client["labels"].values()) == pytest.approx(1) for client in found["clients"])
    assert pflbed("show", one, "--plot", tmp_path / "b.svg").code == 0
    assert (tmp_path / "b.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_every_partition_can_be_asked_for(pflbed: Callable[..., Ended], root: Path, tmp_path: Path) -> None:
    for partition in ("dirichlet", "dirichlet-client", "shards", "iid", "mixture"):
        out = tmp_path / partition
        built(
            pflbed,
            root,
            out,
            "--partition",
            partition,
            "--classes-per-client",
            2,
            "--domain-alpha",
            0.1,
            "--min-rows",
            1,
        )
        assert load_manifest(out).spec.partition == partition
        assert pflbed("show", out).code == 0


def test_a_table_with_users_becomes_natural_clients(pflbed: Callable[..., Ended], root: Path, tmp_path: Path) -> None:
    with (tmp_path / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "user"])
        for i, path in enumerate(sorted(root.rglob("*.png"))):
            writer.writerow([path.relative_to(root).as_posix(), path.parent.name, f"user{i % 7}"])
    ended = pflbed(
        "build", tmp_path / "rows.csv", "--images", root, "--partition", "natural", "--clients", 4, "--new", 3,
        "--out", tmp_path / "bench",
    )  # fmt: skip
    assert ended.code == 0, ended.errors
    bench = load_manifest(tmp_path / "bench")
    assert {name.removeprefix("rows/") for name in bench.client_ids} == {f"user{i}" for i in range(7)}
    assert list(bench.spec.sizes) == ["S", "M", "L"]
    assert pflbed("show", tmp_path / "bench").code == 0


@pytest.mark.parametrize("to", ["folders", "hf", "blank"])
def test_export_and_score(pflbed: Callable[..., Ended], root: Path, tmp_path: Path, to: str) -> None:
    bench = built(pflbed, root, tmp_path / "bench")
    ended = pflbed("export", bench, "--to", to, "--out", tmp_path / "out")
    assert ended.code == 0, ended.errors
    assert any((tmp_path / "out").iterdir())
    if to != "blank":
        return
    with (tmp_path / "out" / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    right = load_manifest(bench).table
    with (tmp_path / "filled.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["client", "row", "path", "predicted"])
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, "predicted": right.class_names[right.labels[int(row["row"])]]})
    ended = pflbed("score", bench, tmp_path / "filled.csv", "--per-client", tmp_path / "scores.csv")
    assert ended.code == 0, ended.errors
    assert "100.0 (100.0 to 100.0)" in ended.out
    assert len((tmp_path / "scores.csv").read_text(encoding="utf-8").splitlines()) == 11
    averages = json.loads(pflbed("score", bench, tmp_path / "filled.csv", "--json").out)["averages"]
    assert averages["new"]["personalized"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert averages["participating"]["clients"] == 6


def test_the_embedded_data_need_no_folder(pflbed: Callable[..., Ended], tmp_path: Path) -> None:
    assert pflbed("build", "digits4", "--out", tmp_path / "bench", "--names-only").code == 0
    assert len(load_manifest(tmp_path / "bench").client_ids) == 120


def test_mistakes_get_one_sentence_and_exit_code_two(pflbed: Callable[..., Ended], root: Path, tmp_path: Path) -> None:
    bench = built(pflbed, root, tmp_path / "bench")
    wrong: list[tuple[tuple[object, ...], str]] = [
        (("scan", tmp_path / "nowhere"), "must exist"),
        (("scan", root, "--source", "imagenet"), "ource must be a known dataset, got 'imagenet' (valid: pacs"),
        (("scan", root, "--source", "pacs"), "PACS"),
        (("scan", root, "--images", root), "goes with a csv or parquet table"),
        (("scan", tmp_path / "rows.csv"), "rows.csv"),
        (("build", root, "--out", bench), "must not exist yet"),
        (("build", root, "--out", tmp_path / "b", "--split", "60-40"), "four percentages such as 60/20/5/15"),
        (("build", root, "--out", tmp_path / "b", "--split", "60/20/5"), "four percentages"),
        (("build", root, "--out", tmp_path / "b", "--sizes", "S:1"), "names and shares"),
        (("build", root, "--out", tmp_path / "b", "--alpha", "-1"), "lpha must be a positive number"),
        (("build", root, "--out", tmp_path / "b", "--clients", 1000), "fewer clients"),
        (("build", root, "--out", tmp_path / "b", "--partition", "natural"), "names no users"),
        (("show", root), "must hold card.json"),
        (("score", bench, tmp_path / "nothing.csv"), "must exist"),
        (("export", bench, "--to", "blank", "--out", bench), "needs a new or empty folder"),
        (
            ("export", bench, "--to", "folders", "--out", tmp_path / "o", "--data", tmp_path),
            "one folder deeper|differ|must",
        ),
        (("show", bench, "--plot", tmp_path / "x.bmp"), "png, svg or pdf"),
    ]
    for argv, message in wrong:
        ended = pflbed(*argv)
        assert ended.code == 2, argv
        assert ended.errors.startswith("pflbed: "), argv
        assert len(ended.errors.strip().splitlines()) == 1, ended.errors
        assert np.any([part in ended.errors for part in message.split("|")]), ended.errors
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "o").exists()


def test_help_teaches(pflbed: Callable[..., Ended]) -> None:
    for command in ("scan", "build", "show", "score", "export"):
        ended = pflbed(command, "--help")
        assert ended.code == 0
        assert len(ended.out) > 400


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_said_first(
    pflbed: Callable[..., Ended], root: Path, tmp_path: Path
) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    ended = pflbed("build", root, "--out", tmp_path / "locked" / "bench")
    assert ended.code == 2
    assert "not a folder that can be written to" in ended.errors


def test_the_command_line_offers_every_partition_and_export() -> None:
    assert [kind.value for kind in cli.Partition] == list(PARTITIONS)
    assert [kind.value for kind in cli.Kind] == list(EXPORTS)
