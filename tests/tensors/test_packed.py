"""States as blocks of bytes."""

from pathlib import Path

import pytest
import torch

from battery import same
from fedbasis.tensors import packed as pack
from fedbasis.tensors.params import State
from pflbed.errors import InputError


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


def test_a_state_survives(tmp_path: Path) -> None:
    pack.write(tmp_path / "state", STATE, "a note")
    for back in (pack.mapped(tmp_path / "state"), pack.unpacked(pack.packed(STATE)), *pack.on_disk([STATE])):
        assert same(back, STATE)
        assert all(back[g][n].dtype == t.dtype for g, named in STATE.items() for n, t in named.items())
    assert pack.note_of(tmp_path / "state") == "a note"


def test_tensors_lie_where_torch_would_put_them(tmp_path: Path) -> None:
    pack.write(tmp_path / "state", STATE)
    back = pack.mapped(tmp_path / "state")
    assert all(t.data_ptr() % 64 == 0 for named in back.values() for t in named.values() if t.numel())


def test_who_writes_writes_to_a_copy(tmp_path: Path) -> None:
    pack.write(tmp_path / "state", some(1.0))
    one, other = pack.mapped(tmp_path / "state"), pack.mapped(tmp_path / "state")
    one["own"]["w"] += 1
    assert float(other["own"]["w"].sum()) == 6


def test_a_file_that_is_not_whole_gets_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "state"
    pack.write(path, STATE)
    whole = path.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 3], whole[:12], b"other" + whole, whole + b"x"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"must be (whole|JSON)"):
            pack.mapped(path)


def test_states_on_disk_can_all_be_read() -> None:
    shown = pack.on_disk(some(float(i)) for i in range(5))
    assert [float(state["own"]["w"][0, 0]) for state in shown] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"sha256"', b'"sha257"'),
        (b"weight", b"wfight"),
        (b"[4, 3]", b"[3, 4]"),
        (b'"float32"', b'"int32"  '),
        (b'"me"', b'"mf"'),
    ],
)
def test_a_digest_covers_names_types_shapes_and_the_note(before: bytes, after: bytes, tmp_path: Path) -> None:
    path = tmp_path / "state"
    pack.write(path, {"model": {"weight": torch.randn(4, 3), "bias": torch.zeros(4)}}, note="me", digest=True)
    assert same(pack.mapped(path, digest=True), pack.mapped(path))
    good = path.read_bytes()
    assert good.count(before) >= 1
    path.unlink()  # the tensors of the file are mapped
    path.write_bytes(good.replace(before, after, 1))
    with pytest.raises(InputError, match="must be whole, but it was cut short or changed"):
        pack.mapped(path, digest=True)
