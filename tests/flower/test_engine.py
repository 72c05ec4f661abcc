"""The server remembers whose updates it used, and tells who is lost and why."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from fedbasis.engines.base import NoUpdate
from fedbasis.flower.engine import UsedVersions
from fedbasis.methods.base import Sent
from fedbasis.training.rounds import UpdateStream
from fedbasis.training.runs import Run
from pflbed.errors import InputError


def test_the_server_remembers_whose_updates_it_used(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    used = UsedVersions(run)
    used.rewind(0)
    assert (used.versions, used.checkpoint) == ({}, 0)
    for done, versions in ((1, {"a": 1}), (2, {"a": 1, "b": 2})):
        used.versions = versions
        used.sync(done)
    again = UsedVersions(run)
    again.rewind(1)  # killed before the second checkpoint was written
    assert (again.versions, again.checkpoint) == ({"a": 1}, 1)
    used.prune(2)
    again.rewind(2)
    assert (again.versions, again.checkpoint) == ({"a": 1, "b": 2}, 2)
    with pytest.raises(InputError, match="The record of used updates"):
        again.rewind(1)


def test_a_round_tells_who_is_lost_and_why() -> None:
    sent = Sent({"model": {"w": torch.ones(1)}}, {"loss": 1.0})
    nan = Sent({"model": {"w": torch.full((1,), float("nan"))}}, {})
    updates: list[tuple[str, Sent | NoUpdate]] = [
        ("a", sent), ("b", NoUpdate("it lies.")), ("c", NoUpdate("it sleeps.", answered=False)), ("d", nan),
    ]  # fmt: skip
    stream = UpdateStream(iter(updates), 4, 1)
    assert [client for client, _ in stream] == ["a"]
    told = stream.left_out()
    assert (told["refused"], told["absent"]) == (["b", "d"], ["c"])
    assert told["reasons"]["c"] == "it sleeps."
    with pytest.raises(InputError, match="there is none; the update of b: it lies"):
        list(UpdateStream(iter(updates[1:3]), 2, 1))
