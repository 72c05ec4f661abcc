"""The command line as a user meets it: the whole way through, and one sentence with exit code 2 for every mistake."""

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from safetensors.torch import load_file, save_file

import pflbed
from conftest import CLASSES, write_images
from fedbasis import __version__, cli
from fedbasis.methods import METHODS
from fedbasis.serving import artifact
from fedbasis.training.runs import read_lines
from test_artifact import DAMAGES, edit, no_space, no_space_in_rust

CONFIG = """
seed = 1
data = {{ source = "{data}", resolution = 12, clients = 2, new_clients = 1 }}
train = {{ rounds = 3, epochs = 2, rate = 0.05, participation = 1.0 }}
personalize = {{ epochs = 2, rates = [0.01] }}
machine = {{ engine = "serial" }}
[method]
name = "fedbasis"
bases = 2
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    errors: str


def main(argv: list[str], patch: pytest.MonkeyPatch) -> int:
    """Run the command line and return its exit code."""
    patch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.fixture
def fedbasis(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run a command in this process."""

    def run(*argv: object) -> Ended:
        capsys.readouterr()
        code = main(["fedbasis", *map(str, argv)], monkeypatch)
        out, errors = capsys.readouterr()
        return Ended(code, out, errors)

    return run


@pytest.fixture
def refused(fedbasis: Callable[..., Ended], tmp_path: Path) -> Callable[..., str]:
    """Run a command that must end with one sentence and exit code 2, and write nothing; return the sentence."""

    def run(*argv: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        ended = fedbasis(*argv)
        assert ended.code == 2, ended
        (line,) = ended.errors.splitlines()
        assert line.startswith("fedbasis: ")
        assert line[10] == line[10].upper()
        assert "Traceback" not in ended.out
        assert sorted(tmp_path.rglob("*")) == before
        return line

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    """A run of FedBasis on the dataset, made by the command line."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "config.toml").write_text(CONFIG.format(data=dataset), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBASIS_CACHE", str(folder / "cache"))
        command = ["fedbasis", "train", str(folder / "config.toml"), "--out", str(folder / "runs")]
        assert main(command, patch) == 0
    (run,) = (folder / "runs").iterdir()
    return run


@pytest.fixture(scope="session")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new client's folder of 30 images."""
    return write_images(tmp_path_factory.mktemp("mine"), 10, domain=1, seed=7)


@pytest.fixture(scope="session")
def personal(trained: Path, mine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A personal model, made by the command line."""
    out = tmp_path_factory.mktemp("personal") / "model"
    command = ["fedbasis", "personalize", str(trained), "--data", str(mine), "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        assert main(command, patch) == 0
    return out


# --- the whole way ---------------------------------------------------------------------------------------------------


def test_train_says_what_it_does_and_where_its_results_are(
    trained: Path, dataset: Path, fedbasis: Callable[..., Ended], tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG.format(data="nowhere").replace('"fedbasis"\nbases = 2', '"fedavg"'), encoding="utf-8")
    ended = fedbasis("train", config, "--data", dataset, "--seed", 4, "--out", tmp_path / "runs")
    assert ended.code == 0, ended.errors
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("fedavg-")
    for expected in (
        "starts: 3 rounds",
        "round   3/3",
        "new clients",
        "FedAvg + FT",
        f"Bases: {run}/bases",
        f"Run: {run}",
    ):
        assert expected in ended.out
    assert json.loads((run / "config.json").read_text())["seed"] == 4
    assert [line["round"] for line in read_lines(run / "metrics.jsonl")] == [1, 2, 3]
    assert (trained / "done").exists()


def test_personalize_shows_what_was_learned(
    trained: Path, mine: Path, tmp_path: Path, fedbasis: Callable[..., Ended]
) -> None:
    ended = fedbasis("personalize", trained, "--data", mine, "--out", tmp_path / "model")
    assert ended.code == 0, ended.errors
    assert ended.errors == ""
    assert "Accuracy on 6 held-out images" in ended.out
    assert "% before" in ended.out
    assert "% after 20 epochs of coefficients+classifier on 24 images" in ended.out
    blocks = artifact.read_card(tmp_path / "model").learned["alpha"]
    for block, shares in blocks.items():
        (row,) = [line for line in ended.out.splitlines() if line.strip(" │").startswith(f"{block} ")]
        assert row.count("█") + sum(row.count(part) for part in "▏▎▍▌▋▊▉") > 0
        assert all(f"{share:.2f}" in row for share in shares)
        assert sum(shares) == pytest.approx(1)
    assert f"Model: {tmp_path / 'model'}" in ended.out


def test_personalize_twice_is_the_same_bytes(
    trained: Path, mine: Path, tmp_path: Path, fedbasis: Callable[..., Ended]
) -> None:
    summaries = []
    for out, bases in (("one", trained), ("two", trained / "bases")):
        ended = fedbasis("personalize", bases, "--data", mine, "--out", tmp_path / out, "--json")
        assert ended.code == 0, ended.errors
        summaries.append(json.loads(ended.out))
    for name in ("tensors.safetensors", "card.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    one, two = summaries
    assert one.pop("model") == str(tmp_path / "one")
    assert two.pop("model") == str(tmp_path / "two")
    assert one == two
    assert one.keys() == {"how", "epoch", "images", "held_out", "before", "after", "alpha", "skipped"}
    assert (one["images"], one["held_out"], one["skipped"]) == (24, 6, [])
    fedbasis("personalize", trained, "--data", mine, "--out", tmp_path / "three", "--seed", 1)
    assert (tmp_path / "three/tensors.safetensors").read_bytes() != (tmp_path / "one/tensors.safetensors").read_bytes()


def test_a_personal_model_is_an_ordinary_network(personal: Path, trained: Path) -> None:
    network = artifact.read_card(personal).network
    module = network.build()
    tensors = load_file(personal / "tensors.safetensors")
    module.load_state_dict(tensors, strict=True)
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        name: tensor.dtype for name, tensor in network.build().state_dict().items()
    }
    one_basis = artifact.load(trained / "bases", "bases")[1]["basis_0"]
    parameters = {name for name, _ in module.named_parameters()}
    assert sum(tensors[name].numel() for name in parameters) == sum(one_basis[name].numel() for name in parameters)
    assert artifact.read_card(personal).settings == {}


def test_predict_is_plain_inference(personal: Path, mine: Path, fedbasis: Callable[..., Ended]) -> None:
    card = artifact.read_card(personal)
    module = card.network.build()
    module.load_state_dict(load_file(personal / "tensors.safetensors"))
    module.eval()
    paths = sorted(mine.rglob("*.png"))
    ended = fedbasis("predict", personal, mine, "--json", "--labelled")
    assert ended.code == 0, ended.errors
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [line["image"] for line in lines] == [str(path) for path in paths]
    right = 0
    for path, line in zip(paths, lines, strict=True):
        pixels = torch.tensor(np.asarray(Image.open(path).convert("RGB"))) / 255
        normal = (pixels - torch.tensor(card.preprocessing.mean)) / torch.tensor(card.preprocessing.std)
        with torch.no_grad():
            expected = torch.softmax(module(normal.permute(2, 0, 1)[None]), 1)[0]
        assert list(line["all"]) == list(CLASSES)
        assert list(line["all"].values()) == pytest.approx(expected.tolist(), abs=1e-5)
        assert line["class"] == CLASSES[int(expected.argmax())]
        assert line["probability"] == pytest.approx(float(expected.max()), abs=1e-5)
        assert line["true"] == path.parent.name
        right += line["class"] == path.parent.name
    text = fedbasis("predict", personal, mine, "--labelled").out.splitlines()
    assert text[-1] == f"{right} of 30 right ({100 * right / 30:.1f} %)"
    assert text[0] == f"{paths[0]}  {lines[0]['class']}  {lines[0]['probability']:.3f}"
    assert right > 15  # it has learned something


def test_predict_takes_files_by_any_path(
    personal: Path, mine: Path, fedbasis: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mine / "cross")
    here = fedbasis("predict", personal, "000.png", "../square/001.png", "--labelled")
    there = fedbasis("predict", personal, mine / "cross/000.png", mine / "square/001.png", "--labelled")
    assert here.code == 0, here.errors
    assert here.out.splitlines()[-1] == there.out.splitlines()[-1]
    assert here.out.splitlines()[0].split()[1:] == there.out.splitlines()[0].split()[1:]
    alone = fedbasis("predict", personal, "000.png")
    assert alone.out == here.out.splitlines(keepends=True)[0]


@pytest.mark.parametrize(("per_class", "held"), [(2, 0), (6, 0), (7, 3)])
def test_images_are_held_out_only_if_there_are_enough(
    per_class: int, held: int, trained: Path, tmp_path: Path, fedbasis: Callable[..., Ended]
) -> None:
    folder = write_images(tmp_path / "few", per_class)
    ended = fedbasis("personalize", trained, "--data", folder, "--out", tmp_path / "m", "--epochs", 2, "--json")
    assert ended.code == 0, ended.errors
    summary = json.loads(ended.out)
    assert (summary["held_out"], summary["images"]) == (held, 3 * per_class - held)
    shown = fedbasis("personalize", trained, "--data", folder, "--out", tmp_path / "n", "--epochs", 2).out
    assert ("none held out" in shown) == (held == 0)


@pytest.mark.parametrize("how", ["coefficients", "coefficients+classifier", "lp", "ft", "none"])
def test_every_way_to_personalize(
    how: str, trained: Path, mine: Path, tmp_path: Path, fedbasis: Callable[..., Ended]
) -> None:
    argv = ("--data", mine, "--out", tmp_path / "model", "--how", how, "--epochs", 2, "--keep", "best", "--json")
    ended = fedbasis("personalize", trained, *argv)
    assert ended.code == 0, ended.errors
    assert bool(json.loads(ended.out)["alpha"]) == how.startswith("coefficients")
    assert fedbasis("predict", tmp_path / "model", mine).code == 0


def test_what_is_no_image_is_listed_and_left_out(
    trained: Path, personal: Path, mine: Path, tmp_path: Path, fedbasis: Callable[..., Ended]
) -> None:
    folder = shutil.copytree(mine, tmp_path / "mine")
    (folder / "cross/zz.png").write_text("this is no image")
    (folder / "cross/empty.jpg").write_bytes(b"")
    whole = (folder / "circle/000.png").read_bytes()
    (folder / "circle/000.png").write_bytes(whole[: len(whole) // 2])
    bad = ("circle/000.png", "cross/empty.jpg", "cross/zz.png")
    ended = fedbasis("personalize", trained, "--data", folder, "--out", tmp_path / "model")
    assert ended.code == 0, ended.errors
    assert "3 images cannot be read" in ended.out
    assert all(name in ended.out for name in bad)
    summary = fedbasis("personalize", trained, "--data", folder, "--out", tmp_path / "model2", "--json")
    assert [skipped["path"] for skipped in json.loads(summary.out)["skipped"]] == list(bad)
    assert sum(json.loads(summary.out)[key] for key in ("images", "held_out")) == 29
    predicted = fedbasis("predict", personal, folder)
    assert predicted.code == 0
    assert len(predicted.out.splitlines()) == 29
    assert "3 images cannot be read" in predicted.errors
    assert all(name in predicted.errors for name in bad)


def test_train_lists_bad_images_and_goes_on(dataset: Path, tmp_path: Path, fedbasis: Callable[..., Ended]) -> None:
    data = shutil.copytree(dataset, tmp_path / "data")
    (data / "chalk/cross/zz.png").write_text("this is no image")
    (tmp_path / "config.toml").write_text(CONFIG.format(data=data), encoding="utf-8")
    ended = fedbasis("train", tmp_path / "config.toml", "--out", tmp_path / "runs")
    assert ended.code == 0, ended.errors
    assert "1 image cannot be read" in ended.out
    assert "chalk/cross/zz.png" in ended.out


def test_inspect_describes_everything_that_is_written(
    trained: Path, personal: Path, fedbasis: Callable[..., Ended], tmp_path: Path
) -> None:
    for folder, expected in (
        (
            trained,
            ("fedbasis on", "seed 1, done.", "Round 3/3", "Personalized accuracy", "mean pairwise cosine", "circle"),
        ),
        (
            trained / "bases",
            ("Bases", "cnn-small", "3 classes at 12 pixels", "made by fedbasis", "2 bases and a major"),
        ),
        (personal, ("Personal model", "circle, cross, square", "basis 1", "images 24")),
        (trained / "benchmark", ("Benchmark", "240 images", "4 participating and 2 new", "chalk", "paint")),
    ):
        ended = fedbasis("inspect", folder)
        assert ended.code == 0, ended.errors
        for text in expected:
            assert text in ended.out, (text, ended.out)
    stopped = shutil.copytree(trained, tmp_path / "stopped")
    for name in ("done", "results.json"):
        (stopped / name).unlink()
    assert "stopped after round 3" in fedbasis("inspect", stopped).out


def test_methods_lists_the_registry(fedbasis: Callable[..., Ended]) -> None:
    ended = fedbasis("methods")
    assert ended.code == 0
    for name, method in METHODS.items():
        assert f"{name} ({method.paper})" in ended.out


def test_every_option_of_every_command_is_explained(
    fedbasis: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    commands: dict[str, Any] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    known = {"demo", "train", "personalize", "predict", "inspect", "report", "compare", "methods", "reproduce"}
    assert commands.keys() == known | {"federation"}
    deeper = commands["federation"].commands
    assert deeper.keys() == {"init", "up", "personalize"}
    assert all(parameter.help for command in deeper.values() for parameter in command.params)
    overview = fedbasis("--help")
    assert overview.code == 0
    for name, command in commands.items():
        assert name in overview.out
        ended = fedbasis(name, "--help")
        assert ended.code == 0
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name} has no text"
            shown = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar or parameter.name
            assert shown.casefold() in ended.out.casefold()
            assert parameter.help.split("[")[0][:25] in " ".join(ended.out.split())
    assert fedbasis("--version").out.strip() == __version__


def test_names_are_printed_as_they_are(
    trained: Path, mine: Path, tmp_path: Path, fedbasis: Callable[..., Ended], refused: Callable[..., str]
) -> None:
    odd = tmp_path / "[red]a[/] :smile: b"
    shutil.copytree(mine, odd / "images")
    assert f"Model: {odd / 'model'}" in fedbasis("personalize", trained, "--data", mine, "--out", odd / "model").out
    assert f"{odd}/images/cross/000.png  " in fedbasis("predict", odd / "model", odd / "images/cross").out
    assert str(odd / "model") in fedbasis("inspect", odd / "model").out
    assert str(odd / "none") in refused("inspect", odd / "none")


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_damaged_bases_are_refused(
    damage: str, trained: Path, mine: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    bases = shutil.copytree(trained / "bases", tmp_path / "bases")
    harm, expected = DAMAGES[damage]
    harm(bases)
    assert expected in refused("personalize", bases, "--data", mine, "--out", tmp_path / "out")


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_model_is_refused(
    damage: str, personal: Path, mine: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    model = shutil.copytree(personal, tmp_path / "model")
    harm, expected = DAMAGES[damage]
    harm(model)
    assert expected in refused("predict", model, mine)
    if damage != "no card":  # a folder without one is nothing that could be inspected
        assert expected in refused("inspect", model)


def test_one_kind_of_artifact_is_not_taken_for_the_other(
    trained: Path, personal: Path, mine: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    assert "must hold bases, but it holds a personal model" in refused(
        "personalize", personal, "--data", mine, "--out", tmp_path / "out"
    )
    assert "must hold a personal model, but it holds bases" in refused("predict", trained / "bases", mine)
    assert "has no card.json" in refused("predict", trained, mine)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"method": "fedavg", "settings": {}}, "must hold 'model'"),
        ({"method": "fedprox9"}, "made by 'fedprox9'"),
        ({"settings": {"bases": 2, "taau": 1}}, "taau"),
        ({"settings": {"bases": 3}}, "it tells of 3 bases and there are 2"),
    ],
)
def test_bases_that_are_not_what_their_card_says_are_refused(
    change: dict[str, Any], expected: str, trained: Path, mine: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    bases = shutil.copytree(trained / "bases", tmp_path / "bases")
    edit(bases, lambda card: card.update(change))
    assert expected in refused("personalize", bases, "--data", mine, "--out", tmp_path / "out")


def _folder(tmp_path: Path, kind: str) -> Path:
    """Make a client's folder with something wrong."""
    folder = tmp_path / "images"
    if kind == "file":
        folder.write_text("x")
    elif kind == "empty":
        folder.mkdir()
    elif kind == "flat":
        write_images(tmp_path / "deep", 3)
        shutil.copytree(tmp_path / "deep/cross", folder)
    elif kind == "one class":
        write_images(folder, 3, classes=1)
    elif kind in ("circel", "zebra"):
        write_images(folder, 3)
        (folder / "circle").rename(folder / kind)
    elif kind == "no images":
        for name in CLASSES:
            (folder / name).mkdir(parents=True)
            (folder / name / "a.png").write_text("no image")
    return folder


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("missing", "the data folder must exist"),
        ("file", "must be a folder, got the file"),
        ("empty", "<class>/<image>"),
        ("flat", "<class>/<image>"),
        ("one class", "at least 2 classes"),
        ("circel", "'circel' is not (did you mean 'circle'?)"),
        ("zebra", "'zebra' is not (valid: circle, cross, square)"),
        ("no images", "at least one image must be readable"),
    ],
)
def test_a_folder_that_cannot_be_learned_from_is_refused(
    kind: str, expected: str, trained: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    folder = _folder(tmp_path, kind)
    sentence = refused("personalize", trained, "--data", folder, "--out", tmp_path / "out")
    assert expected.casefold() in sentence.casefold()
    assert str(folder) in sentence


def test_an_output_that_exists_is_left_alone(
    trained: Path, mine: Path, personal: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    model = shutil.copytree(personal, tmp_path / "model")
    before = (model / "card.json").read_bytes()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for out in ("model", "file", "folder"):
        assert "must not exist yet" in refused("personalize", trained, "--data", mine, "--out", tmp_path / out)
    assert "is not a folder" in refused("personalize", trained, "--data", mine, "--out", tmp_path / "file/model")
    assert (model / "card.json").read_bytes() == before
    assert (tmp_path / "file").read_text() == "mine"


def test_a_place_that_cannot_be_written_to_is_refused_before_the_work(
    trained: Path, mine: Path, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text(CONFIG.format(data=tmp_path), encoding="utf-8")
    (tmp_path / "file").write_text("mine")
    train = ("train", tmp_path / "config.toml", "--out")
    assert "is not a folder that can be written to" in refused(*train, tmp_path / "file")
    assert "is not a folder that can be written to" in refused(*train, tmp_path / "r", "--report", tmp_path / "file/r")
    assert "The report must be a file" in refused(*train, tmp_path / "r", "--report", tmp_path)
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode & os.W_OK == 0 and allowed(path, mode))
    assert "is not a folder that can be written to" in refused(*train, tmp_path / "r")
    assert "is not a folder that can be written to" in refused(
        "personalize", trained, "--data", mine, "--out", tmp_path / "model"
    )
    assert "is not a folder that can be written to" in refused("demo", "--fast", "--out", tmp_path / "r")


@pytest.mark.parametrize(
    ("place", "failing"),
    [
        ("fedbasis.tensors.files.save_file", no_space_in_rust),
        ("fedbasis.serving.artifact.write_json", no_space),
        ("os.fsync", no_space),
        ("tempfile.mkdtemp", no_space),
    ],
)
def test_a_full_disk_leaves_no_half_model(
    place: str, failing: Callable[..., None], trained: Path, mine: Path, tmp_path: Path,
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(place, failing)
    assert "No space left on device" in refused("personalize", trained, "--data", mine, "--out", tmp_path / "model")


def test_a_place_that_turns_read_only_gets_a_sentence(
    trained: Path, mine: Path, tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    monkeypatch.setattr("tempfile.mkdtemp", forbidden)
    sentence = refused("personalize", trained, "--data", mine, "--out", tmp_path / "model")
    assert f"Permission denied ({tmp_path})" in sentence


def test_learning_that_diverges_writes_no_model(
    trained: Path, mine: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    argv = ("personalize", trained, "--data", mine, "--out", tmp_path / "model", "--how", "ft", "--rate", "1e30")
    assert "lower the learning rate" in refused(*argv)


def test_an_unknown_way_is_refused(trained: Path, mine: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    sentence = refused("personalize", trained, "--data", mine, "--out", tmp_path / "out", "--how", "magic")
    assert "none, lp, ft, ft-prox, bn, coefficients, coefficients+classifier, " in sentence
    assert "not by 'magic'" in sentence


def test_images_that_cannot_be_predicted_are_refused(
    personal: Path, mine: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.png").write_text("no image")
    renamed = shutil.copytree(mine, tmp_path / "mine")
    (renamed / "square").rename(renamed / "squares")
    assert "must exist" in refused("predict", personal, tmp_path / "none.png")
    assert "must hold images" in refused("predict", personal, tmp_path / "empty")
    assert "none of 1 is" in refused("predict", personal, tmp_path / "a.png")
    assert "'squares' of" in (sentence := refused("predict", personal, renamed, "--labelled"))
    assert "did you mean 'square'?" in sentence
    assert "no folder" in refused("predict", tmp_path / "nothing", mine)


def test_what_is_not_ours_cannot_be_inspected(mine: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "must exist" in refused("inspect", tmp_path / "none")
    assert "has none of their files" in refused("inspect", mine)
    assert "has none of their files" in refused("inspect", mine / "cross/000.png")
    for content in ('{"name": "another program"}', "not json", "[1]"):
        (tmp_path / "config.json").write_text(content)
        assert f"The folder {tmp_path} must be a run" in refused("inspect", tmp_path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("rounds = 3", 'ruonds = 3, batch = "x"'), "'train.ruonds' is not a key (did you mean 'rounds'?)"),
        (("[method]", "[methods]"), "[method] needs a 'name'"),
        (('"fedbasis"', '"fedbases"'), "did you mean 'fedbasis'?"),
        (("bases = 2", 'bases = 2\ninit = "random"'), "needs warm_start = 0"),
        (("participation = 1.0", "participation = 99"), "99 clients a round, but there are only 4"),
        (("rounds = 3", "rounds = 1"), "at least 2 rounds"),
        (("clients = 2,", "clients = 1000,"), "(domain chalk"),
        (('engine = "serial"', "device = 'cuda:77'"), "must be a device of this machine"),
        (("seed = 1", "seed = 1\nmodel = { name = 'resnet77' }"), "did you mean 'resnet18'?"),
        (("seed = 1", "seed = 1\nmodel = { name = 'no.such:network' }"), "cannot be imported"),
        (("seed = 1", "seed = 1\nmodel = { options = { depth = 3 } }"), "does not take these options"),
        (("seed = 1", "seed = 1\nmodel = { weights = 'none.safetensors' }"), "there is no file none.safetensors"),
        (("seed = 1", "seed == 1"), "must be a TOML file"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_before_anything_is_written(
    change: tuple[str, str], expected: str, dataset: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    text = CONFIG.format(data=dataset)
    wrong = text.replace(*change)
    assert wrong != text
    (tmp_path / "config.toml").write_text(wrong, encoding="utf-8")
    assert expected in refused("train", tmp_path / "config.toml", "--out", tmp_path / "runs")


def test_a_configuration_that_is_not_there_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "must exist, but it does not" in refused("train", tmp_path / "none.toml", "--out", tmp_path / "runs")
    assert "must be a TOML file" in refused("train", tmp_path, "--out", tmp_path / "runs")
    (tmp_path / "binary.toml").write_bytes(b"\xff\x00")
    assert "must be a TOML file" in refused("train", tmp_path / "binary.toml", "--out", tmp_path / "runs")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("missing", "the data folder must exist"),
        ("file", "got the file"),
        ("empty", "<domain>/<class>/<image>"),
        ("flat", "<domain>/<class>/<image>"),
        ("one domain less", "put them one folder deeper"),
        ("one class", "at least two classes"),
        ("digits4", "are 28 pixels wide, but data.resolution is 12"),
    ],
)
def test_data_that_cannot_be_trained_on_are_refused(
    kind: str, expected: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "config.toml").write_text(CONFIG.format(data="x"), encoding="utf-8")
    data: Path | str = "digits4" if kind == "digits4" else tmp_path / "data"
    if kind == "one domain less":
        write_images(tmp_path / "data", 3)
    elif kind == "one class":
        write_images(tmp_path / "data/chalk", 3, classes=1)
    elif kind != "digits4":
        data = _folder(tmp_path, kind)
    sentence = refused("train", tmp_path / "config.toml", "--data", data, "--out", tmp_path / "runs")
    assert expected.casefold() in sentence.casefold()


def test_weights_that_do_not_fit_are_refused(dataset: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "config.toml").write_text(CONFIG.format(data=dataset), encoding="utf-8")
    save_file({"fc.weight": torch.ones(3, 7)}, tmp_path / "weights.safetensors")
    train = ("train", tmp_path / "config.toml", "--out", tmp_path / "runs", "--weights")
    assert "must fit the network" in refused(*train, tmp_path / "weights.safetensors")
    assert "there is no file" in refused(*train, tmp_path / "none.safetensors")


def test_a_mistake_in_the_command_itself_is_explained(fedbasis: Callable[..., Ended], mine: Path) -> None:
    for argv in (
        ("tarin",),
        ("train",),
        ("personalize", mine),
        ("train", "c.toml", "--sed", 1),
        ("demo", "--seed", -1),
    ):
        ended = fedbasis(*argv)
        assert ended.code == 2
        assert "Usage: fedbasis" in ended.errors
        assert "Traceback" not in ended.errors


@pytest.mark.parametrize("partition", ["dirichlet", "mixture", "natural"])
def test_a_benchmark_built_before_is_trained_on_as_it_is(
    partition: str, dataset: Path, tmp_path: Path, fedbasis: Callable[..., Ended]
) -> None:
    """Its clients and sizes, not the configuration's, are served; everything that shows a run takes it."""
    found = pflbed.find(dataset)
    table = replace(found.table, users=np.arange(len(found.table)) % 8, user_names=tuple("abcdefgh"))
    given = {"clients_per_domain": 2, "new_clients_per_domain": 2, "partition": partition}
    benchmark = pflbed.build(table, pflbed.Spec().changed(given, 3))
    pflbed.write(benchmark, found, tmp_path / "bench")
    (tmp_path / "c.toml").write_text(CONFIG.format(data="nowhere"), encoding="utf-8")
    argv = ("train", tmp_path / "c.toml", "--data", tmp_path / "bench", "--out", tmp_path / "runs")
    ended = fedbasis(*argv, "--report", tmp_path / "r.html")
    assert ended.code == 0, ended.errors
    (run,) = (tmp_path / "runs").iterdir()
    assert {line["client"] for line in read_lines(run / "evaluation.jsonl")} == set(benchmark.new)
    assert {line["size"] for line in read_lines(run / "evaluation.jsonl")} == set(benchmark.spec.sizes)
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert (config["data"]["partition"], config["data"]["new_clients"]) == (partition, 2)
    for path in (run, tmp_path / "bench"):
        assert fedbasis("inspect", path).code == 0
