"""A run folder: checkpoints, logs, and one process at a time."""

import json
from pathlib import Path

import pytest
import torch

from battery import same
from fedbasis.tensors.params import State
from fedbasis.training.runs import Run, append_line, read_lines, rewrite_lines
from pflbed.errors import InputError

STATE: State = {"model": {"w": torch.arange(6.0).view(2, 3)}, "client/a": {"w": torch.ones(1), "n": torch.tensor(3)}}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_checkpoint_comes_back_bit_for_bit(run: Run) -> None:
    assert run.load_checkpoint() is None
    run.save_checkpoint(STATE, 7)
    found = run.load_checkpoint()
    assert found is not None
    state, done = found
    assert done == 7
    assert same(state, STATE)
    assert not [path for path in run.folder.iterdir() if path.name.endswith(".tmp")]


def test_a_checkpoint_that_is_not_whole_or_of_another_version_is_refused(run: Run) -> None:
    run.save_checkpoint(STATE, 7)
    whole = run.checkpoint.read_bytes()
    for content in (whole[:-1], whole[:20], b"", whole.replace(b'"format":"3"', b'"format":"1"')):
        assert content != whole
        run.checkpoint.write_bytes(content)
        with pytest.raises(InputError, match=r"must be as this version wrote it, .*remove it"):
            run.load_checkpoint()


def test_a_line_that_a_kill_cut_short_does_not_count(run: Run) -> None:
    for number in range(3):
        append_line(run.metrics, {"round": number})
    assert [line["round"] for line in read_lines(run.metrics)] == [0, 1, 2]
    content = run.metrics.read_bytes()
    for cut in range(1, len(content)):
        run.metrics.write_bytes(content[:-cut])
        rounds = [line["round"] for line in read_lines(run.metrics)]
        assert rounds == list(range(len(rounds)))
        assert len(rounds) >= content[:-cut].count(b"\n")
    assert read_lines(run.evaluation) == []


def test_lines_are_replaced_as_a_whole(run: Run) -> None:
    append_line(run.metrics, {"round": 1})
    rewrite_lines(run.metrics, [{"round": 8}, {"round": 9}])
    assert read_lines(run.metrics) == [{"round": 8}, {"round": 9}]
    rewrite_lines(run.metrics, [])
    assert run.metrics.read_bytes() == b""


def test_one_process_at_a_time_and_what_a_killed_one_left_is_removed(run: Run) -> None:
    (run.folder / "bases").mkdir()
    left = [run.folder / ".checkpoint.x.tmp", run.folder / "bases" / ".tensors.x.tmp", run.folder / ".bases.x.tmp"]
    left[0].write_text("half")
    left[1].write_text("half")
    left[2].mkdir()
    with run.locked():
        assert not any(path.exists() for path in left)
        with pytest.raises(InputError, match="another is training"), run.locked():
            pass
    with run.locked():
        pass


def test_its_end_is_marked(run: Run) -> None:
    assert not run.done
    run.finish({"rounds": 3})
    assert run.done
    assert json.loads((run.folder / "done").read_text(encoding="utf-8")) == {"rounds": 3}
