"""A node goes on from what the server used, and only what the method sends leaves it."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedbasis.flower.client import answer, update
from fedbasis.flower.expected import read_block
from fedbasis.flower.node import Node
from fedbasis.flower.payload import Payload, pack_state
from fedbasis.flower.project import Project
from pflbed.errors import InputError


class TestNode:
    """A node goes on from what the server used, not from what it sent."""

    def ask(self, project: Project, round: int, version: int, checkpoint: int = 0, **words: Any) -> Payload:
        (plan,) = project.plans()
        block = pack_state(plan.method().init(0))
        told: dict[str, str | int] = {"experiment": plan.name, "run": "r", "client": "a", "seed": 0}
        payload = Payload({**told, "round": round, "version": version, "checkpoint": checkpoint, **words}, {}, block)
        return answer(self.node(project), {plan.name: plan}, update, self.signed(payload))

    def signed(self, payload: Payload) -> Payload:
        return Payload({"digest": hashlib.sha256(payload.block.data).hexdigest(), **payload.words}, {}, payload.block)

    def node(self, project: Project) -> Node:
        entry = project.nodes()[0]
        return Node("a", project.place(entry.data), project.state(entry))

    def kept(self, project: Project) -> list[str]:
        return sorted(path.name for path in (self.node(project).place("r") / "client_states").glob("*/*/*"))

    def test_an_answer_that_was_not_used_leaves_no_trace(self, project: Project) -> None:
        first = self.ask(project, 0, 0)
        assert self.kept(project) == ["1"]
        late = self.ask(project, 1, 1)
        assert self.kept(project) == ["1", "2"]
        again = self.ask(project, 2, 1)  # round 1 ended without it
        assert self.kept(project) == ["1", "3"]
        assert len({bytes(payload.block) for payload in (first, late, again)}) == 3
        repeated = self.ask(project, 1, 1)  # the server went back
        assert bytes(repeated.block) == bytes(late.block)
        self.ask(project, 2, 2, checkpoint=2)
        assert self.kept(project) == ["2", "3"]

    def test_only_what_the_method_sends_leaves(self, project: Project) -> None:
        sent = self.ask(project, 0, 0)
        assert set(sent.words) == {"experiment", "run", "client", "round", "digest"}
        assert set(read_block(sent.block)) == {"model"}
        assert set(sent.numbers) == {"loss", "personal_loss", "examples"} & set(sent.numbers)

    @pytest.mark.parametrize(
        ("words", "reason"),
        [
            ({"client": "b"}, "This node is a, but the request is for b"),
            ({"digest": "0"}, "changed on the way"),
            ({"experiment": "other"}, "no experiment other"),
            ({"version": 5}, "cannot follow version 5"),
        ],
    )
    def test_refuses_what_is_not_for_it(self, words: dict[str, Any], reason: str, project: Project) -> None:
        assert reason in self.ask(project, 0, words.pop("version", 0), **words).word("error")

    def test_wants_to_know_who_it_is(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="must give 'state' as text"):
            Node.configured({"name": "a", "data": str(tmp_path)})
        with pytest.raises(InputError, match="must be a folder"):
            Node.configured({"name": "a", "data": str(tmp_path / "no"), "state": str(tmp_path)})

    def test_a_folder_of_other_classes_is_refused(self, project: Project) -> None:
        with pytest.raises(InputError, match="'circle' is not"):
            self.node(project).images(("cross", "square"), 12)

    def test_labels_follow_the_federation(self, project: Project) -> None:
        images = self.node(project).images(("zero", "square", "cross", "circle"), 12)
        assert images.labels.tolist() == [3] * 4 + [2] * 4 + [1] * 4
