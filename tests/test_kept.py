"""States as blocks of bytes, and what clients keep on disk between rounds."""

from pathlib import Path

import pytest
import torch

from fedbasis.engines.client_state import ClientStates
from fedbasis.tensors import packed as pack
from fedbasis.tensors.params import State
from pflbed.errors import InputError
from test_methods import same


def some(value: float) -> State:
    return {"own": {"w": torch.full((3, 2), value)}}


STATE: State = {
    "model": {
        "w": torch.randn(7, 5, generator=torch.Generator().manual_seed(0)),
        "half": torch.arange(5, dtype=torch.bfloat16),
        "count": torch.tensor(3),
        "flag": torch.tensor([True, False, True]),
        "none": torch.zeros(0, 4),
        "transposed": torch.arange(6.0).view(2, 3).t(),
    },
    "empty": {},
    "Ünïcode/with a slash": {"x": torch.tensor([1.5], dtype=torch.float64)},
}


class TestPack:
    def test_a_state_survives(self, tmp_path: Path) -> None:
        pack.write(tmp_path / "state", STATE, "a note")
        for back in (pack.mapped(tmp_path / "state"), pack.unpacked(pack.packed(STATE)), *pack.on_disk([STATE])):
            assert same(back, STATE)
            assert all(back[g][n].dtype == t.dtype for g, named in STATE.items() for n, t in named.items())
        assert pack.note_of(tmp_path / "state") == "a note"

    def test_tensors_lie_where_torch_would_put_them(self, tmp_path: Path) -> None:
        pack.write(tmp_path / "state", STATE)
        back = pack.mapped(tmp_path / "state")
        assert all(t.data_ptr() % 64 == 0 for named in back.values() for t in named.values() if t.numel())

    def test_who_writes_writes_to_a_copy(self, tmp_path: Path) -> None:
        pack.write(tmp_path / "state", some(1.0))
        one, other = pack.mapped(tmp_path / "state"), pack.mapped(tmp_path / "state")
        one["own"]["w"] += 1
        assert float(other["own"]["w"].sum()) == 6

    def test_a_file_that_is_not_whole_gets_a_sentence(self, tmp_path: Path) -> None:
        path = tmp_path / "state"
        pack.write(path, STATE)
        whole = path.read_bytes()
        for content in (whole[:-1], whole[: len(whole) // 3], whole[:12], b"other" + whole, whole + b"x"):
            path.write_bytes(content)
            with pytest.raises(InputError, match="must be whole"):
                pack.mapped(path)

    def test_spooled_states_are_all_at_hand(self) -> None:
        shown = pack.on_disk(some(float(i)) for i in range(5))
        assert [float(state["own"]["w"][0, 0]) for state in shown] == [0, 1, 2, 3, 4]


class TestKept:
    def test_a_round_reads_what_was_kept_before_it(self, tmp_path: Path) -> None:
        kept = ClientStates(tmp_path)
        assert kept.read("a", 0) is None
        kept.write("a", 0, some(1.0))
        assert kept.read("a", 0) is None  # done again, the round starts where it started
        assert same(kept.read("a", 1) or {}, some(1.0))
        kept.write("a", 5, some(2.0))
        assert same(kept.read("a", 5) or {}, some(1.0))
        assert same(kept.read("a", 9) or {}, some(2.0))
        assert kept.read("b", 9) is None

    def test_names_are_free(self, tmp_path: Path) -> None:
        names = ["a/b", "..", "ü" * 300, "", "c\n"]
        for i, name in enumerate(names):
            ClientStates(tmp_path)[name] = some(float(i))
        assert sorted(ClientStates(tmp_path)) == sorted(names)
        assert [float(ClientStates(tmp_path)[name]["own"]["w"][0, 0]) for name in names] == [0, 1, 2, 3, 4]
        assert len(ClientStates(tmp_path)) == 5

    def test_what_is_not_finite_is_not_kept(self, tmp_path: Path) -> None:
        kept = ClientStates(tmp_path)
        kept.write("a", 0, some(1.0))
        kept.write("a", 1, some(float("nan")))
        kept.write("a", 2, None)
        assert same(kept.read("a", 3) or {}, some(1.0))

    def test_a_checkpoint_drops_what_no_round_needs(self, tmp_path: Path) -> None:
        kept = ClientStates(tmp_path)
        for number in range(4):
            kept.write("a", number, some(float(number)))
            kept.touch("a")
        kept.sync(3)
        kept.prune(3)
        assert kept.read("a", 2) is None
        assert same(kept.read("a", 3) or {}, some(2.0))
        assert same(kept.read("a", 4) or {}, some(3.0))  # newer than the checkpoint: it stays

    def test_a_resumed_run_forgets_what_came_after_its_checkpoint(self, tmp_path: Path) -> None:
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

    def test_a_damaged_file_says_whose_it_is_and_what_to_do(self, tmp_path: Path) -> None:
        kept = ClientStates(tmp_path)
        kept.write("a", 0, some(1.0))
        next(tmp_path.rglob("1")).write_bytes(b"half")
        with pytest.raises(InputError, match=r"must be whole.* a keeps it; remove the run's folder"):
            kept.read("a", 1)

    def test_a_folder_without_a_name_goes_with_its_object(self) -> None:
        kept = ClientStates()
        kept["a"] = some(1.0)
        folder = kept.folder
        assert folder.is_dir()
        del kept
        assert not folder.exists()
