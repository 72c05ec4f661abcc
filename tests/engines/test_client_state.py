"""What clients keep on disk between rounds."""

from pathlib import Path

import pytest
import torch

from battery import same
from fedbasis.engines.client_state import ClientStates
from fedbasis.tensors.params import State
from pflbed.errors import InputError


def some(value: float) -> State:
    return {"own": {"w": torch.full((3, 2), value)}}


def test_a_round_reads_what_was_kept_before_it(tmp_path: Path) -> None:
    kept = ClientStates(tmp_path)
    assert kept.read("a", 0) is None
    kept.write("a", 0, some(1.0))
    assert kept.read("a", 0) is None  # done again, the round starts where it started
    assert same(kept.read("a", 1) or {}, some(1.0))
    kept.write("a", 5, some(2.0))
    assert same(kept.read("a", 5) or {}, some(1.0))
    assert same(kept.read("a", 9) or {}, some(2.0))
    assert kept.read("b", 9) is None


def test_names_are_free(tmp_path: Path) -> None:
    names = ["a/b", "..", "ü" * 300, "", "c\n"]
    for i, name in enumerate(names):
        ClientStates(tmp_path)[name] = some(float(i))
    assert sorted(ClientStates(tmp_path)) == sorted(names)
    assert [float(ClientStates(tmp_path)[name]["own"]["w"][0, 0]) for name in names] == [0, 1, 2, 3, 4]
    assert len(ClientStates(tmp_path)) == 5


def test_what_is_not_finite_is_not_kept(tmp_path: Path) -> None:
    kept = ClientStates(tmp_path)
    kept.write("a", 0, some(1.0))
    kept.write("a", 1, some(float("nan")))
    kept.write("a", 2, None)
    assert same(kept.read("a", 3) or {}, some(1.0))


def test_a_checkpoint_drops_what_no_round_needs(tmp_path: Path) -> None:
    kept = ClientStates(tmp_path)
    for number in range(4):
        kept.write("a", number, some(float(number)))
        kept.touch("a")
    kept.sync(3)
    kept.prune(3)
    assert kept.read("a", 2) is None
    assert same(kept.read("a", 3) or {}, some(2.0))
    assert same(kept.read("a", 4) or {}, some(3.0))  # newer than the checkpoint: it stays


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    kept = ClientStates(tmp_path)
    for number in range(4):
        kept.write("a", number, some(float(number)))
    kept.write("b", 3, some(9.0))
    place = next(path for path in tmp_path.rglob("4")).parent
    (place / ".5.tmp").write_bytes(b"half")
    kept.rewind(2)
    assert same(ClientStates(tmp_path)["a"], some(1.0))
    assert list(kept) == ["a"]
    assert not list(tmp_path.rglob(".*.tmp"))


def test_a_damaged_file_says_whose_it_is_and_what_to_do(tmp_path: Path) -> None:
    kept = ClientStates(tmp_path)
    kept.write("a", 0, some(1.0))
    next(tmp_path.rglob("1")).write_bytes(b"half")
    with pytest.raises(InputError, match=r"must be whole.* It is the state of a; remove the run's folder"):
        kept.read("a", 1)


def test_a_folder_without_a_name_goes_with_its_object() -> None:
    kept = ClientStates()
    kept["a"] = some(1.0)
    folder = kept.folder
    assert folder.is_dir()
    del kept
    assert not folder.exists()
