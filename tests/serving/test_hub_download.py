"""Artifacts on the Hugging Face Hub, with a package of the test's own in place of the download."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedbasis as fb
from fedbasis.serving.hub_download import downloaded
from pflbed.errors import InputError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, bases: Path) -> list[dict[str, Any]]:
    """What was asked of ``snapshot_download``, which has the bases under one name only."""
    calls: list[dict[str, Any]] = []

    def snapshot_download(**asked: Any) -> str:
        calls.append(asked)
        if asked["repo_id"] != "org/bases":
            raise FileNotFoundError(f"404: no repository {asked['repo_id']}\nRequest ID: 1")
        return str(bases)

    package = ModuleType("huggingface_hub")
    package.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)
    return calls


def test_bases_are_loaded_from_an_address(asked: list[dict[str, Any]], bases: Path) -> None:
    loaded = fb.load("hf://org/bases@v1.0")
    assert isinstance(loaded, fb.Trained)
    fb.load("hf://org/bases")
    files = ["card.json", "tensors.safetensors"]
    assert asked == [
        {"repo_id": "org/bases", "revision": revision, "allow_patterns": files} for revision in ("v1.0", None)
    ]
    (bases / "tensors.safetensors").write_bytes((bases / "tensors.safetensors").read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match="by its sha256"):
        fb.load("hf://org/bases")


@pytest.mark.parametrize(
    "address", ["hf://", "hf://org", "hf://org/../etc", "hf://org/name@", "hf://org/a b", "hf://a/b/c"]
)
def test_wrong_addresses(asked: list[dict[str, Any]], address: str) -> None:
    with pytest.raises(InputError, match="must be hf://org/name or hf://org/name@revision"):
        downloaded(address)
    assert not asked


def test_what_is_not_there_or_not_installed(asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"must be downloadable, but it is not \(404: no repository org/other\)"):
        downloaded("hf://org/other")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"pip install -e '\.\[hub\]'"):
        downloaded("hf://org/bases")
