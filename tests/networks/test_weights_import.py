"""Pretrained weights from PyTorch files: what fits is converted bit for bit, everything else is refused."""

import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedbasis.cli import app
from fedbasis.networks.models import Network
from fedbasis.networks.weights_import import import_weights
from fedbasis.tensors.files import load_weights
from pflbed.errors import InputError

RUNNER = CliRunner()
SMALL = Network("resnet10", 5, 32, {"width": 4})


@pytest.fixture(scope="module", params=[True, False], ids=["zip", "before-1.6"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "net.pth"
    torch.save(SMALL.build(seed=3).state_dict(), path, _use_new_zipfile_serialization=request.param)
    return path


def test_a_file_becomes_weights_of_a_network_with_other_classes(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "net.safetensors"
    command = ["weights", "import", str(saved), "--out", str(out), "--network", "resnet10", "--width", "4"]
    ended = RUNNER.invoke(app, command, catch_exceptions=False)
    assert ended.exit_code == 0
    assert "Left out: fc.bias, fc.weight." in ended.output
    other = Network("resnet10", 9, 32, {"width": 4})
    loaded = load_weights(out, other.layout(other.build()).shapes)
    before = torch.load(saved, weights_only=True)
    assert set(loaded) == {name for name in before if not name.startswith("fc.") and "num_batches" not in name}
    assert all(torch.equal(loaded[name], before[name]) for name in loaded)
    with pytest.raises(InputError, match="must not exist yet"):
        RUNNER.invoke(app, command, catch_exceptions=False)


@pytest.mark.parametrize("wrap", ["state_dict", "model"])
def test_checkpoints_of_training_scripts_are_unwrapped(wrap: str, tmp_path: Path) -> None:
    module, path = Network("efficientnet-lite0", 3, 32).build(), tmp_path / "checkpoint.pt"
    torch.save({wrap: {f"module.{name}": t for name, t in module.state_dict().items()}, "epoch": 3}, path)
    found = import_weights(path)
    assert found.network == "efficientnet-lite0"  # told by its tensors
    assert torch.equal(found.tensors["_conv_stem.weight"], module.state_dict()["_conv_stem.weight"])
    assert found.left_out == ("_fc.bias", "_fc.weight")


def test_what_does_not_fit_is_named(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'conv1.weight' has the shape \(4, 3, 3, 3\) there"):
        import_weights(saved, "resnet10")
    with pytest.raises(InputError, match="must fit one of resnet18, resnet10, efficientnet-lite0"):
        import_weights(saved)
    state = SMALL.build().state_dict()
    state["bn1.weight"][0] = float("nan")
    torch.save(state, tmp_path / "nan.pth")
    with pytest.raises(InputError, match="not finite"):
        import_weights(tmp_path / "nan.pth", "resnet10", width=4)
    for raw, sentence in (([1, 2], "holds a list"), ({"a": 1}, "'conv1.weight' is missing")):
        torch.save(raw, tmp_path / "odd.pth")
        with pytest.raises(InputError, match=sentence):
            import_weights(tmp_path / "odd.pth", "resnet10", width=4)


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"conv1.weight": Harmful()}, "harmful.pth")
    with pytest.raises(InputError, match="must hold nothing but tensors"):
        import_weights(Path("harmful.pth"))
    assert not Path("harmed").exists()


def test_an_archive_that_unpacks_to_more_than_it_is_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", b"\0" * 2**24)
    with pytest.raises(InputError, match="must unpack to its own size"):
        import_weights(path)
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(InputError, match="must hold nothing but tensors"):
        import_weights(tmp_path / "text.pth")


@given(data=st.data())
def test_damaged_files_are_read_or_refused_with_a_sentence(data: st.DataObject, saved: Path) -> None:
    whole = bytearray(saved.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = saved.with_name("damaged.pth")
    path.write_bytes(whole[: data.draw(st.integers(len(whole) // 2, len(whole)))])
    with suppress(InputError):
        assert import_weights(path, "resnet10", width=4).network == "resnet10"
