"""A bundle that does not fit together is refused in a sentence, before the runtime sees any of it."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from fedbasis_edge.bundle import open_bundle
from fedbasis_edge.tensors import parse, serialize
from helpers.edge_bundles import small_bundle
from pflbed.errors import InputError

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("the runtime opened a graph")

    folder = shutil.copytree(small_bundle(), tmp_path / "bundle")
    monkeypatch.setattr(onnxruntime, "InferenceSession", opened)
    return Path(folder)


def rewrite(folder: Path, change: Change) -> None:
    about = json.loads((folder / "edge.json").read_text())
    change(about)
    (folder / "edge.json").write_text(json.dumps(about))


def replace_file(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    rewrite(folder, lambda about: about["files"].update({name: hashlib.sha256(data).hexdigest()}))


def test_a_good_one_is_read(bundle: Path) -> None:
    found = open_bundle(bundle)
    assert found.groups == ("major", "basis_0", "basis_1")
    assert found.statistics == "own"
    assert found.has_statistics


@pytest.mark.parametrize("name", ["step.onnx", "tensors.safetensors", "card.json"])
def test_a_file_of_another_digest(bundle: Path, name: str) -> None:
    data = bytearray((bundle / name).read_bytes())
    data[-1] ^= 1
    (bundle / name).write_bytes(data)
    with pytest.raises(InputError, match=rf"{name} must have the sha256"):
        open_bundle(bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about.update(format=2), "upgrade fedbasis-edge"),
        (lambda about: about["files"].update({"../outside": "0"}), "it has other files"),
        (lambda about: about["files"].pop("step.onnx"), "it has other files"),
        (lambda about: about.update(classes=["a", "a"]), "two classes have the same name"),
        (lambda about: about["classes"].__setitem__(0, "\x1b[2J"), "not printable"),
        (lambda about: about["classes"].reverse(), "its card is of other bases"),
        (lambda about: about.update(resolution=[8, 10**9]), "is not a whole number"),
        (lambda about: about["state"].update(psi=[4, 10**9]), "does not fit the network"),
        (lambda about: about["entries"][0].update(shape=[2**31, 2**31, 2**31]), "too large"),
        (lambda about: about["entries"][0].update(shape=[4, 3, 3, 4]), "must hold 'major/"),
        (lambda about: about["entries"].append(about["entries"][0]), "a name is there twice"),
        (lambda about: about["groups"].append("basis_9"), "does not fit the network"),
        (lambda about: about["training"].update(rates=[1, 2]), "2 numbers instead of 3"),
        (lambda about: about["training"].update(batch=1), "is not a whole number from 2"),
        (lambda about: about["training"].update(augmentation={"name": "flip"}), "needs an augmentation"),
        (lambda about: about.pop("mean"), "KeyError"),
        (lambda about: about.update(std=[0, 0, 0]), "is not a number from"),
        (lambda about: about.update(statistics="none"), "is none of own, frozen, shrunk"),
    ],
)
def test_a_description_that_does_not_fit(bundle: Path, change: Change, message: str) -> None:
    rewrite(bundle, change)
    with pytest.raises(InputError, match=message):
        open_bundle(bundle)


def test_tensors_that_are_not_finite(bundle: Path) -> None:
    held = {name: np.array(value) for name, value in parse((bundle / "tensors.safetensors").read_bytes(), "x").items()}
    held["major/fc.bias"][0] = np.nan
    replace_file(bundle, "tensors.safetensors", serialize(held))
    with pytest.raises(InputError, match="must hold finite numbers"):
        open_bundle(bundle)


def test_a_graph_with_a_foreign_operator(bundle: Path) -> None:
    data = (bundle / "step.onnx").read_bytes()
    assert b"Softmax" in data
    replace_file(bundle, "step.onnx", data.replace(b"\x22\x07Softmax", b"\x22\x07Softmix", 1))
    with pytest.raises(
        InputError, match=r"step\.onnx must be an exported ONNX graph, but it uses the operator 'Softmix'"
    ):
        open_bundle(bundle)


def test_a_folder_without_graphs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fedbasis export BASES --to edge"):
        open_bundle(tmp_path)
