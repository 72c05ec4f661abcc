"""Named tensors on disk."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from battery import same
from fedbasis.networks.models import Network
from fedbasis.tensors.files import load_weights, read_tensors, write_tensors
from pflbed.errors import InputError


def test_pretrained_weights_must_fit(tmp_path: Path, tiny: Network) -> None:
    shapes = tiny.layout(tiny.build()).shapes
    tensors = tiny.initial(5)
    classifier = [name for name in tensors if tensors[name].shape[0] == 3]
    assert classifier
    others = {name: tensor for name, tensor in tensors.items() if name not in classifier}
    save_file(others | {name: torch.ones(1000, 64) for name in classifier}, tmp_path / "imagenet.safetensors")
    loaded = load_weights(tmp_path / "imagenet.safetensors", shapes)
    assert loaded.keys() == others.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in others.items())
    first = min(others)
    save_file({name: tensor for name, tensor in others.items() if name != first}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=f"must fit the network.*'{first}' is missing"):
        load_weights(tmp_path / "other.safetensors", shapes)
    with pytest.raises(InputError, match="must exist"):
        load_weights(tmp_path / "none.safetensors", shapes)
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(InputError, match="whole safetensors"):
        load_weights(tmp_path / "text.safetensors", shapes)
    save_file(others | {first: torch.full_like(others[first], torch.nan)}, tmp_path / "nan.safetensors")
    with pytest.raises(InputError, match="not finite"):
        load_weights(tmp_path / "nan.safetensors", shapes)


def test_a_state_comes_back_with_its_groups_and_notes(tmp_path: Path) -> None:
    state = {
        "model": {"w": torch.arange(6.0).view(2, 3).t(), "half": torch.ones(2, dtype=torch.bfloat16)},
        "client/a": {"n": torch.tensor(3)},
        "": {"plain": torch.tensor([True])},
    }
    write_tensors(tmp_path / "state.safetensors", state, {"rounds": "3"})
    back, notes = read_tensors(tmp_path / "state.safetensors")
    assert notes == {"rounds": "3"}
    assert same(back, state)
    assert all(back[group][name].dtype == t.dtype for group, named in state.items() for name, t in named.items())
