"""What a federation is made of, without its processes: parcels, refusals, settings, keys, what a node keeps."""

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
import tomllib
import uuid
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from typer.testing import CliRunner

from conftest import write_images
from fedbasis.cli.federation import federation as commands
from fedbasis.engines.base import NoUpdate
from fedbasis.flower import reaper
from fedbasis.flower.client import answer, update
from fedbasis.flower.engine import UsedVersions
from fedbasis.flower.expected import Expected, read_block, rehearsed
from fedbasis.flower.message_limit import limited
from fedbasis.flower.node import Node
from fedbasis.flower.payload import Payload, as_float32, from_bytes, from_record, pack_state, to_bytes, to_record
from fedbasis.flower.project import Project, create, toml
from fedbasis.flower.settings import Federation, read_federation
from fedbasis.methods.base import Sent
from fedbasis.networks.train import Recipe
from fedbasis.tensors.params import State
from fedbasis.training.rounds import UpdateStream
from fedbasis.training.runs import Run
from helpers import Serial
from pflbed.errors import InputError
from test_methods import FIRST, clients, make, same

CLASSES = ("circle", "cross", "square")
STATE: State = {"model": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(7)}, "empty": {}}


class TestExpected:
    @pytest.mark.parametrize("variant", sorted(FIRST))
    def test_a_rehearsal_knows_what_every_method_sends(self, variant: str, recipe: Recipe) -> None:
        method, data = make(variant, recipe, rounds=2), clients(2)
        engine, server, first = Serial(method, data, seed=7), method.init(7), next(iter(data))
        for number in range(2):
            expected = rehearsed(method, method.broadcast(server, first), 3, number)
            sent = dict(engine.map(server, list(data), number))
            got = expected.update(pack_state(sent[first].tensors), sent[first].numbers)
            assert same(got.tensors, sent[first].tensors)
            server = method.aggregate(server, iter(sent.items()), 7)

    @pytest.fixture
    def expected(self) -> Expected:
        return Expected({("model", "w"): (torch.float32, torch.Size([2, 3]))}, frozenset({"loss", "examples"}), 2**16)

    @pytest.mark.parametrize(
        ("state", "reason"),
        [
            ({"model": {"w": torch.full((2, 3), float("nan"))}}, "not finite numbers"),
            ({"model": {"w": torch.zeros(3, 2)}}, "is float32 (3, 2) instead of float32 (2, 3)"),
            ({"model": {"w": torch.zeros(2, 3).double()}}, "is float64 (2, 3) instead of float32 (2, 3)"),
            ({"model": {}}, "'model/w' is missing"),
            ({"model": {"w": torch.zeros(2, 3), "v": torch.zeros(1)}}, "'model/v' is not expected"),
            ({"model": {"w": torch.zeros(2, 3)}, "x": {"w": torch.zeros(1)}}, "'x/w' is not expected"),
            ({"model": {"w": torch.zeros(2, 3), "v": torch.zeros(2**15)}}, "at most 65536 bytes"),
        ],
    )
    def test_refuses_what_does_not_fit(self, state: State, reason: str, expected: Expected) -> None:
        with pytest.raises(InputError, match=reason.replace("(", r"\(").replace(")", r"\)")):
            expected.update(pack_state(state), {"loss": 1.0, "examples": 3.0})

    @pytest.mark.parametrize(
        "numbers",
        [
            {"loss": 1.0},
            {"loss": 1.0, "examples": 3.0, "more": 1.0},
            {"loss": 1.0, "examples": 0.0},
            {"loss": 1.0, "examples": 2.5},
            {"loss": 1.0, "examples": float("inf")},
            {"loss": 1.0, "examples": float("nan")},
        ],
    )
    def test_refuses_numbers_that_could_weigh_too_much(self, numbers: dict[str, float], expected: Expected) -> None:
        with pytest.raises(InputError):
            expected.update(pack_state({"model": {"w": torch.zeros(2, 3)}}), numbers)

    @pytest.mark.parametrize("shape", [[2**40], [2**62, 2**62], [-2], [9, 9], [{}], "x", [1e300]])
    @pytest.mark.parametrize("size", [64, 10 * 2**30])
    def test_a_header_that_tells_of_more_than_there_is(self, shape: Any, size: int) -> None:
        with pytest.raises(InputError, match="must be whole"):
            read_block(forged(shape, size))


def forged(shape: Any, size: int) -> NDArray[np.uint8]:
    """A block of 64 bytes whose header is in order but for what it tells of its one tensor."""
    told = {"groups": ["model"], "tensors": [["model", "w", "float32", shape, 0]], "size": size, "note": ""}
    header = json.dumps(told).encode()
    head = b"fedbasis" + len(header).to_bytes(8, "little") + header
    return np.frombuffer(bytearray(head + bytes(-len(head) % 64) + bytes(64)), dtype=np.uint8)


class TestParcels:
    def test_come_back_as_they_were(self) -> None:
        sent = [Payload({"run": "ü", "round": 3}, {"loss": 0.5}, pack_state(STATE)), Payload({}), Payload({"a": 1})]
        got = from_record(to_record(sent))
        assert [(p.words, p.numbers, bytes(p.block)) for p in got] == [
            (p.words, p.numbers, bytes(p.block)) for p in sent
        ]
        assert same(read_block(got[0].block), STATE)

    @given(st.integers(0, 10**6), st.binary(max_size=8), st.booleans())
    def test_nothing_but_an_error_of_input_comes_of_changed_bytes(self, place: int, junk: bytes, cut: bool) -> None:
        whole = to_bytes([Payload({"round": 1}, {"loss": 1.0}, pack_state(STATE))])
        place %= len(whole)
        changed = whole[:place] + junk + whole[place if cut else place + len(junk) :]
        try:
            for payload in from_bytes(changed):
                read_block(payload.block)
        except InputError:
            pass

    @pytest.mark.parametrize(
        "content",
        [
            RecordDict(),
            RecordDict({"fedbasis": ArrayRecord({"other": Array("uint8", (1,), "fedbasis", b"x")})}),
            RecordDict({"fedbasis": ArrayRecord({"fedbasis": Array("uint8", (1,), "numpy.ndarray", b"x")})}),
            RecordDict({"fedbasis": ArrayRecord({"fedbasis": Array("uint8", (1,), "fedbasis", b"x")})}),
        ],
    )
    def test_other_messages_are_refused(self, content: RecordDict) -> None:
        with pytest.raises(InputError, match="it must"):
            from_record(content)

    def test_bfloat16_halves_what_is_float32_and_nothing_else(self) -> None:
        state: State = {"m": {"w": torch.randn(4096, generator=torch.Generator().manual_seed(0)), "n": torch.tensor(3)}}
        whole, half = pack_state(state), pack_state(state, "bfloat16")
        assert len(whole) - len(half) == 2 * 4096
        got = as_float32(read_block(half))["m"]
        assert torch.equal(got["w"], state["m"]["w"].bfloat16().float())
        assert torch.equal(got["n"], state["m"]["n"])


def test_a_message_that_would_grow_to_ten_gigabytes_is_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = ArrayChunk(memoryview(bytes(2**20)))
    content = to_record([Payload({})])
    monkeypatch.setattr(Array, "slice_array", lambda array: [(piece.object_id, piece)] * 10240)
    pieces = {key: part.deflate() for key, part in get_all_nested_objects(content).items()}
    assert sum(map(len, pieces.values())) < 2**21
    with limited(2**24), pytest.raises(InputError, match="at most 16777216 bytes, but one array has 10737418240"):
        inflate_object_from_contents(content.object_id, pieces)


class TestSettings:
    def test_what_is_written_is_what_was_meant(self) -> None:
        values = {"a": 1, "b": [1.5, "x"], "t": {"name": 'q"uo\\te', "none": None, "in": {"k-1": True}}}
        assert tomllib.loads(toml(values)) == {"a": 1, "b": [1.5, "x"], "t": {"name": 'q"uo\\te', "in": {"k-1": True}}}

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ('clients = ["a"]', "'classes': field required"),
            ('clients = ["a", "a"]\nclasses = ["x", "y"]', "'a' is there twice"),
            ('clients = ["a"]\nclasses = ["x", "y"]\ndownload = "int8"', "'download'"),
            ('clients = ["a"]\nclasses = ["x", "y"]\nminimum = 0.0', "'minimum'"),
            ("clients = ", "must be a TOML file"),
        ],
    )
    def test_wrong_terms_get_a_sentence(self, text: str, reason: str, tmp_path: Path) -> None:
        (tmp_path / "federation.toml").write_text(text)
        with pytest.raises(InputError, match=reason):
            read_federation(tmp_path)

    def test_the_terms_that_change_the_result_change_the_run(self) -> None:
        terms: dict[str, Any] = {"clients": ("a", "b"), "classes": ("x", "y")}
        assert Federation(**terms).identity == Federation(**terms, deadline=1.0, minimum=0.1).identity
        assert Federation(**terms).identity != Federation(**terms, download="bfloat16").identity


@pytest.fixture
def project(tmp_path: Path) -> Project:
    experiment = {"data": {"resolution": 12}, "train": {"rounds": 2, "epochs": 1}, "method": {"name": "ditto"}}
    images = write_images(tmp_path / "images", 4)
    return create(tmp_path / "project", experiment, {"a": str(images), "b": str(images)}, {}, CLASSES)


class TestProject:
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's own
    def test_private_keys_are_private_and_never_in_the_app(self, project: Project) -> None:
        for path in project.keys.iterdir():
            private = b"PRIVATE KEY" in path.read_bytes()
            assert private == (path.suffix == ".key")
            assert not private or stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(project.keys.stat().st_mode) == 0o700
        with zipfile.ZipFile(BytesIO(build_fab_from_disk(project.app))) as bundle:
            assert "experiments/ditto.toml" in bundle.namelist()
            assert all(b"PRIVATE" not in bundle.read(name) for name in bundle.namelist())
        assert "keys/" in (project.folder / ".gitignore").read_text().splitlines()

    def test_reads_back_what_was_meant(self, project: Project) -> None:
        (plan,) = project.plans()
        assert plan.federation.clients == ("a", "b")
        assert plan.experiment.method_name == "ditto"
        assert [node.name for node in project.nodes()] == ["a", "b"]

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["init", "{here}"], "must not exist yet"),
            (["init", "{here}/x", "--method", "fedfoo"], "There is no method 'fedfoo'"),
            (["init", "{here}/x", "--data", "{here}/nothing"], "must be digits4 or a folder"),
            (["up", "{here}"], "it does not; 'fedbasis federation init' writes them"),
            (["personalize", "{project}", "--node", "z"], "'z' is not; there are a, b"),
            (["personalize", "{project}"], "must have a new node"),
        ],
    )
    def test_mistakes_get_a_sentence(
        self, arguments: list[str], sentence: str, project: Project, tmp_path: Path
    ) -> None:
        filled = [word.format(here=tmp_path, project=project.folder) for word in arguments]
        error = CliRunner().invoke(commands, filled).exception
        assert isinstance(error, InputError)
        assert sentence in str(error)


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
    with pytest.raises(InputError, match="must list the used updates"):
        again.rewind(1)


def test_noise_that_nodes_could_subtract_is_refused(project: Project) -> None:
    (experiment,) = (project.app / "experiments").glob("*.toml")
    private = experiment.read_text() + "\n[privacy]\nnoise_multiplier = 1.0\n"
    experiment.write_text(private.replace("[train]", '[train]\nweighting = "uniform"'))
    with pytest.raises(InputError, match=r"must have noise_seed = 'secret' in a federation, but it is 'run'"):
        project.plans()
    experiment.write_text(experiment.read_text() + 'noise_seed = "secret"\n')
    assert project.plans()[0].experiment.privacy.noise_seed == "secret"


def test_a_round_tells_who_is_lost_and_why() -> None:
    sent = Sent({"model": {"w": torch.ones(1)}}, {"loss": 1.0})
    nan = Sent({"model": {"w": torch.full((1,), float("nan"))}}, {})
    updates: list[tuple[str, Sent | NoUpdate]] = [
        ("a", sent), ("b", NoUpdate("it lies.")), ("c", NoUpdate("it sleeps.", answered=False)), ("d", nan),
    ]  # fmt: skip
    stream = UpdateStream(iter(updates), 4, 1, None)
    assert [client for client, _ in stream] == ["a"]
    told = stream.lost()
    assert (told["refused"], told["absent"]) == (["b", "d"], ["c"])
    assert told["reasons"]["c"] == "it sleeps."
    with pytest.raises(InputError, match="usable update, but there is none; the update of b: it lies"):
        list(UpdateStream(iter(updates[1:3]), 2, 1, None))


def test_the_reaper_ends_everything_when_its_parent_is_killed(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    code = (
        "import subprocess, sys, time\n"
        f"reaper = subprocess.Popen([sys.executable, '-m', {reaper.__name__!r}, {mark!r}], stdin=-1)\n"
        "deaf = 'import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print(1, flush=True); time.sleep(60)'\n"
        f"child = subprocess.Popen([sys.executable, '-c', deaf], env={{'{reaper.MARK}': {mark!r}}}, stdout=-1)\n"
        "child.stdout.read(1)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert reaper.marked(mark) == {child}
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    ends = time.monotonic() + 15
    while reaper.marked(mark) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not reaper.marked(mark)
