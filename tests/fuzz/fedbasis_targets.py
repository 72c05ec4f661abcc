"""What fedbasis reads: artifacts, personal models, run folders, configurations, checkpoints, Flower messages."""

import json
import shutil
import struct
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

import fedbasis as fb
import pflbed
from fedbasis.cli.inspection import describe_folder
from fedbasis.engines.client_state import ClientStates
from fedbasis.experiment.config import parse
from fedbasis.experiment.config import read as read_config
from fedbasis.flower.payload import Payload, from_bytes, pack_state, to_bytes
from fedbasis.flower.settings import read_federation
from fedbasis.report import find_runs, write_report
from fedbasis.report.compare import compare, side_by_side
from fedbasis.serving.bundle import bundle
from fedbasis.serving.new_client import Predictor
from fedbasis.tensors.compact import AlikeModels, Bits, decode, encode
from fedbasis.tensors.packed import packed, unpacked
from fedbasis.training.runs import Run, read_lines
from fuzz.mutators import bytes_mutant, json_mutant, json_value_mutant
from fuzz.runner import Attempt, target
from helpers.report_runs import two_in
from pflbed.files import sha256_of

Prepared = Callable[[Random], Attempt]
PIXELS = torch.zeros(2, 12, 12, 3, dtype=torch.uint8)
LENGTH = struct.Struct("<Q")


@cache
def clients() -> pflbed.Clients:
    """Two domains of random images."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (240, 12, 12, 3), dtype=np.uint8)
    domains = ["ink" if i % 2 else "chalk" for i in range(240)]
    return pflbed.from_arrays(images, np.arange(240) // 2 % 3, domains=domains, clients=2, new=1)


def trained(method: str, **settings: Any) -> fb.Trained:
    """One round of training."""
    made = fb.METHODS[method](network="cnn-small", **settings)
    return fb.train(made, clients(), rounds=2, epochs=1, engine="serial", seed=0)


def tensors_mutant(data: bytes, rng: Random) -> bytes:
    """Change bytes anywhere, or the header as a JSON value."""
    if rng.random() < 0.4:
        return bytes_mutant(data, rng)
    (length,) = LENGTH.unpack(data[: LENGTH.size])
    header = json_mutant(json.loads(data[LENGTH.size : LENGTH.size + length]), rng)
    told = len(header) if rng.random() < 0.9 else rng.choice((0, 1, 2**31, 2**63, length))
    return LENGTH.pack(told) + header + data[LENGTH.size + length :]


def artifact_prepared(folder: Path, read: Callable[[], object]) -> Prepared:
    """Change the card or the tensors of an artifact; often the card has the right digest, as an attacker's has."""
    tensors, card = folder / "tensors.safetensors", folder / "card.json"
    good, content = json.loads(card.read_text(encoding="utf-8")), tensors.read_bytes()

    def prepare(rng: Random) -> Attempt:
        tensors.write_bytes(content)
        card.write_text(json.dumps(good), encoding="utf-8")
        if rng.random() < 0.5:
            card.write_bytes(json_mutant(good, rng))
        else:
            tensors.write_bytes(tensors_mutant(content, rng))
            if rng.random() < 0.7:
                card.write_text(json.dumps({**good, "sha256": sha256_of(tensors)}), encoding="utf-8")
        return read

    return prepare


@target("fedbasis bases")
def bases(folder: Path) -> Prepared:
    trained("fedbasis", bases=2).save(folder / "bases")

    def read() -> None:
        found = fb.load(folder / "bases")
        assert found.module(torch.zeros(1, 3, 12, 12)).shape[0] == 1
        list(describe_folder(folder / "bases"))

    return artifact_prepared(folder / "bases", read)


@target("fedbasis coded bases")
def coded_bases(folder: Path) -> Prepared:
    trained("fedbasis", bases=2).save(folder / "plain")
    bundle(folder / "plain", folder / "bases", 4)

    def read() -> None:
        found = fb.load(folder / "bases")
        assert found.module(torch.zeros(1, 3, 12, 12)).shape[0] == 1
        list(describe_folder(folder / "bases"))

    return artifact_prepared(folder / "bases", read)


@target("fedbasis coded tensors")
def coded_tensors(folder: Path) -> Prepared:
    """A message with coded models, without a digest that guards it."""
    models = {f"m{k}": {"w": torch.randn(4, 3, 3), "b": torch.randn(4)} for k in range(3)}
    bits: tuple[Bits, ...] = (3, 4, 8)
    contents = [packed(encode(models, AlikeModels(list(models), "m0"), count)).tobytes() for count in bits]
    expected = {"w": torch.Size([4, 3, 3]), "b": torch.Size([4])}

    def prepare(rng: Random) -> Attempt:
        changed = np.frombuffer(bytes_mutant(rng.choice(contents), rng), dtype=np.uint8).copy()
        return lambda: decode(unpacked(changed), expected, "It")

    return prepare


@target("fedbasis model")
def model(folder: Path) -> Prepared:
    fb.personalize(trained("fedavg"), clients()["ink/n00"].train, way="lp", epochs=1).save(folder / "model")
    return artifact_prepared(folder / "model", lambda: Predictor.load(folder / "model")(PIXELS))


@target("fedbasis model of kNN-Per")
def nearest(folder: Path) -> Prepared:
    made = trained("knn-per", k=3, lam=0.5, scale=1.0)
    fb.personalize(made, clients()["ink/n00"].train, epochs=1).save(folder / "model")
    return artifact_prepared(folder / "model", lambda: Predictor.load(folder / "model")(PIXELS))


@target("fedbasis run folder")
def run_folder(folder: Path) -> Prepared:
    good = folder / "good"
    two_in(good)
    files = sorted(path for path in good.rglob("*") if path.suffix in (".json", ".jsonl"))

    def prepare(rng: Random) -> Attempt:
        shutil.rmtree(folder / "runs", ignore_errors=True)
        shutil.copytree(good, folder / "runs")
        chosen = folder / "runs" / rng.choice(files).relative_to(good)
        if chosen.suffix == ".json" and rng.random() < 0.8:
            chosen.write_bytes(json_mutant(json.loads(chosen.read_text(encoding="utf-8")), rng))
        elif chosen.suffix == ".jsonl" and rng.random() < 0.8:
            lines = chosen.read_bytes().splitlines()
            at = rng.randrange(len(lines))
            lines[at] = json_mutant(json.loads(lines[at]), rng).replace(b"\n", b" ")
            chosen.write_bytes(b"\n".join(lines) + b"\n")
        else:
            chosen.write_bytes(bytes_mutant(chosen.read_bytes(), rng))
        return lambda: look_at(folder / "runs", folder / "page.html")

    return prepare


def look_at(runs: Path, page: Path) -> None:
    """What 'inspect', 'compare' and 'report' do; each must end in its own way."""
    refused: pflbed.InputError | None = None
    one, other = runs / "fedavg-a", runs / "fedbasis-b"
    for call in (
        lambda: [list(describe_folder(folder)) for folder in (one, other)],
        lambda: list(side_by_side(compare(Run(one), Run(other)))),
        lambda: write_report(find_runs([runs]), page),
    ):
        try:
            call()
        except pflbed.InputError as error:
            refused = error
    if refused is not None:
        raise refused


CONFIG = """
seed = 1
[data]
source = "digits4"
resolution = 28
clients = 2
new_clients = 1
sizes = { S = 0.5, M = 1.0 }
[model]
name = "cnn-small"
[train]
rounds = 3
participation = 0.5
rate = 0.05
[personalize]
rates = [0.01, 0.05]
[method]
name = "fedbasis"
bases = 4
tau = 0.1
[aggregation]
mean = "trimmed"
trim = 0.1
"""


@target("fedbasis configuration")
def configuration(folder: Path) -> Prepared:
    good = tomllib.loads(CONFIG)

    def prepare(rng: Random) -> Attempt:
        if rng.random() < 0.6:
            changed = json_value_mutant(good, rng)
            return lambda: parse(changed, "my.toml")
        (folder / "my.toml").write_bytes(bytes_mutant(CONFIG.encode(), rng))
        return lambda: read_config(folder / "my.toml")

    return prepare


FEDERATION = """
deadline = 600.0
minimum = 0.5
clients = ["a", "b"]
classes = ["cat", "dog"]
"""


@target("fedbasis federation")
def federation(folder: Path) -> Prepared:
    def prepare(rng: Random) -> Attempt:
        (folder / "federation.toml").write_bytes(bytes_mutant(FEDERATION.encode(), rng))
        return lambda: read_federation(folder)

    return prepare


def state() -> dict[str, dict[str, torch.Tensor]]:
    """A state of a few kinds of tensors."""
    return {
        "model": {"weight": torch.randn(4, 3), "bias": torch.zeros(4)},
        "choice": {"cluster": torch.tensor([1, 2])},
        "half": {"x": torch.ones(3, dtype=torch.float16)},
    }


@target("fedbasis packed tensors")
def block(folder: Path) -> Prepared:
    content = packed(state()).tobytes()

    def prepare(rng: Random) -> Attempt:
        changed = np.frombuffer(bytes_mutant(content, rng), dtype=np.uint8).copy()
        return lambda: {name: float(t.double().sum()) for g in unpacked(changed).values() for name, t in g.items()}

    return prepare


@target("fedbasis Flower message")
def message(folder: Path) -> Prepared:
    content = to_bytes([Payload({"kind": "update", "examples": 12}, {"loss": 0.5}, pack_state(state()))])

    def prepare(rng: Random) -> Attempt:
        changed = bytes_mutant(content, rng)

        def read() -> None:
            for payload in from_bytes(changed):
                unpacked(np.array(payload.block))

        return read

    return prepare


@target("fedbasis checkpoint")
def checkpoint(folder: Path) -> Prepared:
    run = Run(folder)
    written = state()
    run.save_checkpoint(written, 3)
    content = run.checkpoint.read_bytes()

    def prepare(rng: Random) -> Attempt:
        run.checkpoint.write_bytes(tensors_mutant(content, rng))

        def read() -> None:
            found = run.load_checkpoint()
            assert found is not None
            assert found[1] == 3  # nothing damaged is taken for good
            assert all(torch.equal(found[0][g][n], t) for g, named in written.items() for n, t in named.items())

        return read

    return prepare


@target("fedbasis client state")
def client_state(folder: Path) -> Prepared:
    states, written = ClientStates(folder), state()
    states.write("a", 3, written)
    (place,) = (path for path in folder.rglob("*") if path.is_file())
    content = place.read_bytes()

    def prepare(rng: Random) -> Attempt:
        place.unlink()  # states are memory-mapped
        place.write_bytes(bytes_mutant(content, rng))

        def read() -> None:
            found = states.read("a", 4)
            assert found is not None
            assert all(torch.equal(found[g][n], t) for g, named in written.items() for n, t in named.items())

        return read

    return prepare


@target("fedbasis log")
def log(folder: Path) -> Prepared:
    good = [{"round": i, "loss": 0.5, "clients": 4} for i in range(20)]

    def prepare(rng: Random) -> Attempt:
        lines = [json.dumps(line) for line in good]
        (folder / "metrics.jsonl").write_bytes(bytes_mutant("\n".join(lines).encode(), rng))
        return lambda: read_lines(folder / "metrics.jsonl")

    return prepare
