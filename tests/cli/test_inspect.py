"""``fedbasis inspect``: it describes everything that is written, and nothing else."""

import shutil
from collections.abc import Callable
from pathlib import Path

from helpers.cli_running import Ended


def test_inspect_describes_everything_that_is_written(
    trained: Path, personal: Path, fedbasis: Callable[..., Ended], tmp_path: Path
) -> None:
    for folder, expected in (
        (
            trained,
            ("fedbasis on", "seed 1, done.", "Round 3/3", "Personalized accuracy", "mean pairwise cosine", "circle"),
        ),
        (
            trained / "bases",
            ("Bases", "cnn-small", "3 classes at 12 pixels", "made by fedbasis", "2 bases and a major"),
        ),
        (personal, ("Personal model", "circle, cross, square", "basis 1", "images 24")),
        (trained / "benchmark", ("Benchmark", "240 images", "4 participating and 2 new", "chalk", "paint")),
    ):
        ended = fedbasis("inspect", folder)
        assert ended.code == 0, ended.errors
        for text in expected:
            assert text in ended.out, (text, ended.out)
    stopped = shutil.copytree(trained, tmp_path / "stopped")
    for name in ("done", "results.json"):
        (stopped / name).unlink()
    assert "stopped after round 3" in fedbasis("inspect", stopped).out


def test_what_is_not_ours_cannot_be_inspected(mine: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "must exist, but it does not" in refused("inspect", tmp_path / "none")
    assert "has none of their files" in refused("inspect", mine)
    assert "has none of their files" in refused("inspect", mine / "cross/000.png")
    for content, sentence in (
        ('{"name": "another program"}', f"The folder {tmp_path} must be a run"),
        ("not json", f"The file of a run {tmp_path / 'config.json'} must be JSON"),
        ("[1]", f"The file of a run {tmp_path / 'config.json'} must be a JSON object"),
    ):
        (tmp_path / "config.json").write_text(content)
        assert sentence in refused("inspect", tmp_path)
