"""``fedbasis personalize``: one ordinary model out of bases and a folder, and a sentence for everything else."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fedbasis.serving import artifact
from fedbasis.serving.tables import from_record
from helpers.cli_artifacts import DAMAGES, edit, no_space, no_space_in_rust
from helpers.cli_images import write_images
from helpers.cli_running import Ended, broken_folder


def test_personalize_shows_what_was_learned(
    trained: Path, mine: Path, tmp_path: Path, fedbasis: Callable[..., Ended]
) -> None:
    ended = fedbasis("personalize", trained, "--data", mine, "--out", tmp_path / "model")
    assert ended.code == 0, ended.errors
    assert ended.errors == ""
    assert "Accuracy on 6 held-out images" in ended.out
    assert "% before" in ended.out
    assert "% after 20 epochs of coefficients+classifier on 24 images" in ended.out
    table = from_record(artifact.read_card(tmp_path / "model").learned["alpha"], "the card")
    assert table.rows
    for block, shares in table.rows.items():
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
    assert one.keys() == {"how", "epoch", "images", "held_out", "before", "after", "learned", "skipped"}
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
    assert ("alpha" in json.loads(ended.out)["learned"]) == how.startswith("coefficients")
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
        ({"method": "fedprox9"}, "made with the method 'fedprox9', whose code would be run"),
        ({"settings": {"bases": 2, "taau": 1}}, "taau"),
        ({"settings": {"bases": 3}}, "they say 3 bases and there are 2"),
    ],
)
def test_bases_that_are_not_what_their_card_says_are_refused(
    change: dict[str, Any], expected: str, trained: Path, mine: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    bases = shutil.copytree(trained / "bases", tmp_path / "bases")
    edit(bases, lambda card: card.update(change))
    assert expected in refused("personalize", bases, "--data", mine, "--out", tmp_path / "out")


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
    folder = broken_folder(tmp_path, kind)
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
    assert "none, prior, lp, ft, ft-prox, bn, coefficients, coefficients+classifier, " in sentence
    assert "but it is 'magic'" in sentence
