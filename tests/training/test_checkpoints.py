"""A checkpoint has a digest: a damaged one is refused, and the one before it is used if there is one."""

from pathlib import Path

import pytest
import torch

from fedbasis.engines.client_state import ClientStates
from fedbasis.training.runs import Run, read_lines
from pflbed.errors import InputError


def state(value: float) -> dict[str, dict[str, torch.Tensor]]:
    return {"model": {"w": torch.full((64,), value), "n": torch.tensor(3)}}


def flip(path: Path, place: int = -5) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def test_the_last_checkpoint_is_loaded(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.load_checkpoint() is None
    run.save_checkpoint(state(1.0), 1)
    run.save_checkpoint(state(2.0), 2)
    loaded = run.load_checkpoint()
    assert loaded is not None
    server, done = loaded
    assert done == 2
    assert torch.equal(server["model"]["w"], state(2.0)["model"]["w"])


@pytest.mark.parametrize("place", [-5, 12, 200])
def test_a_flipped_bit_falls_back_to_the_checkpoint_before(tmp_path: Path, place: int) -> None:
    run = Run(tmp_path)
    run.save_checkpoint(state(1.0), 1)
    run.save_checkpoint(state(2.0), 2)
    flip(run.checkpoint, place)
    loaded = run.load_checkpoint()
    assert loaded is not None
    assert loaded[1] == 1
    flip(run.previous_checkpoint, place)
    with pytest.raises(InputError, match=r"checkpoint\.safetensors must be as this version wrote it"):
        run.load_checkpoint()


def test_without_a_predecessor_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save_checkpoint(state(1.0), 1)
    flip(run.checkpoint)
    with pytest.raises(InputError, match=r"checkpoint\.safetensors"):
        run.load_checkpoint()


def test_a_damaged_client_state_is_refused_by_name(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    states.write("a/p00", 0, state(1.0))
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    flip(file, -100)
    with pytest.raises(InputError, match="a/p00"):
        states.read("a/p00", 5)


@pytest.mark.parametrize("torn", [b'{"round": 3', b"\xff\xfe\n", b"[1]\n", b'{"round": NaN}\n', b"[" * 100_000 + b"\n"])
def test_a_log_is_read_up_to_its_first_torn_line(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"round": 1}\n{"round": 2}\n' + torn)
    assert [line["round"] for line in read_lines(path)] == [1, 2]
