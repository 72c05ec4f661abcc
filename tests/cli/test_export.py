"""``fedbasis export``: what each target writes, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedbasis.edge import packages
from helpers.cli_running import Ended


def test_a_model_for_other_programs(personal: Path, fedbasis: Callable[..., Ended], tmp_path: Path) -> None:
    ended = fedbasis("export", personal, "--to", "onnx", "--out", tmp_path / "my.onnx")
    assert ended.code == 0, ended.errors
    assert "Verified against torch in float64" in ended.out
    assert (tmp_path / "my.onnx").is_file()
    ended = fedbasis("export", personal, "--to", "hub", "--out", tmp_path / "hub", "--license", "mit")
    assert ended.code == 0, ended.errors
    assert "README.md" in ended.out


def test_what_cannot_be_exported(
    trained: Path, personal: Path, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "needs --out" in refused("export", personal, "--to", "onnx")
    assert "--out must be left out" in refused("export", trained, "--to", "edge", "--out", tmp_path / "a")
    assert "--statistics is for --to edge" in refused(
        "export", personal, "--to", "onnx", "--out", tmp_path / "a", "--statistics", "own"
    )
    assert "are for the model card" in refused("export", trained, "--to", "edge", "--license", "mit")
    assert "there is no folder" in refused("export", tmp_path / "none", "--to", "edge")
    assert "must hold bases" in refused("export", personal, "--to", "edge")
    assert "must hold a personal model" in refused("export", trained / "bases", "--to", "onnx", "--out", tmp_path / "a")

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(packages, "import_module", missing)
    packages.onnx.cache_clear()
    assert "run pip install -e '.[edge]'" in refused("export", personal, "--to", "onnx", "--out", tmp_path / "a")
