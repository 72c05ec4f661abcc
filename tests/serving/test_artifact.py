"""Artifacts: what is saved comes back, appears whole or not at all, and anything else is refused by name."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedbasis.networks.models import Network
from fedbasis.serving import artifact
from fedbasis.serving.artifact import CARD, TENSORS
from pflbed.errors import InputError
from pflbed.files import sha256_of
from serving.artifacts import CLASSES, bases_of, card_of, edit


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors and the digest in the card with them, so that only a look at the tensors can tell."""
    tensors = load_file(folder / TENSORS)
    change(tensors)
    save_file(tensors, folder / TENSORS)
    edit(folder, lambda card: card.update(sha256=sha256_of(folder / TENSORS)))


def first_weight(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return tensors[min(name for name in tensors if name.endswith("weight"))]


def flip_a_bit(folder: Path, place: int) -> None:
    content = bytearray((folder / TENSORS).read_bytes())
    content[place] ^= 1
    (folder / TENSORS).write_bytes(content)


def cut(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])


def reseal(folder: Path, damage: Callable[[], object]) -> None:
    damage()
    edit(folder, lambda card: card.update(sha256=sha256_of(folder / TENSORS)))


# What can be wrong with an artifact of either kind -> a piece of the sentence that must name it.
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "tensors cut short": (lambda f: cut(f / TENSORS, 1000), "whole safetensors"),
    "tensors cut short, digest mended": (lambda f: reseal(f, lambda: cut(f / TENSORS, 1000)), "whole safetensors"),
    "tensors empty, digest mended": (lambda f: reseal(f, lambda: cut(f / TENSORS, 0)), "whole safetensors"),
    "a bit flipped at the end": (lambda f: flip_a_bit(f, -1), "cut short or changed"),
    "a bit flipped in the head": (lambda f: flip_a_bit(f, 20), "whole safetensors"),
    "no tensors": (lambda f: (f / TENSORS).unlink(), "it is missing"),
    "no tensors in the file": (lambda f: rewrite(f, lambda tensors: tensors.clear()), "holds nothing"),
    "no card": (lambda f: (f / CARD).unlink(), f"has no {CARD}"),
    "another network": (lambda f: edit(f, lambda c: c["architecture"].update(name="resnet10")), "does not fit"),
    "another option": (lambda f: edit(f, lambda c: c["architecture"]["options"].update(norm="none")), "does not fit"),
    "an unknown option": (lambda f: edit(f, lambda c: c["architecture"]["options"].update(x=1)), "options"),
    "an unknown network": (lambda f: edit(f, lambda c: c["architecture"].update(name="lenet")), "lenet"),
    "code from elsewhere": (lambda f: edit(f, lambda c: c["architecture"].update(name="os:system")), "--trust"),
    "no deviation": (lambda f: edit(f, lambda c: c["preprocessing"].update(std=[0, 1, 1])), "above 0"),
    "a mean that is no number": (lambda f: edit(f, lambda c: c["preprocessing"].update(mean=["nan", 0, 0])), "finite"),
    "another resolution": (lambda f: edit(f, lambda c: c["preprocessing"].update(resolution=16)), "resolutions"),
    "rounds that are a word": (lambda f: edit(f, lambda c: c["provenance"].update(rounds="abc")), "number of rounds"),
    "a class more": (lambda f: edit(f, lambda c: c["classes"].append("star")), "(3, 64) instead of (4, 64)"),
    "NaN": (lambda f: rewrite(f, lambda t: first_weight(t).view(-1)[:1].fill_(torch.nan)), "not finite"),
    "infinity": (lambda f: rewrite(f, lambda t: first_weight(t).view(-1)[-1:].fill_(torch.inf)), "not finite"),
    "a tensor less": (lambda f: rewrite(f, lambda t: t.pop(min(t))), "is missing"),
    "a tensor more": (lambda f: rewrite(f, lambda t: t.update({min(t) + "x": torch.ones(1)})), "is not expected"),
    "a later format": (lambda f: edit(f, lambda card: card.update(format=3)), "upgrade fedbasis"),
    "no such format": (lambda f: edit(f, lambda card: card.update(format="one")), "'format'"),
    "an unknown key": (lambda f: edit(f, lambda card: card.update(colour="red")), "'colour'"),
    "a key less": (lambda f: edit(f, lambda card: card.pop("classes")), "'classes'"),
    "a wrong kind": (lambda f: edit(f, lambda card: card.update(kind="cat")), "'kind'"),
    "a card that is a list": (lambda f: (f / CARD).write_text("[1, 2]"), "it must be a table"),
    "a card that is no json": (lambda f: (f / CARD).write_text("{'a': 1"), "must be JSON"),
    "a card that is no text": (lambda f: (f / CARD).write_bytes(b"\xff\xfe\x00"), "UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("damage", list(DAMAGES))
@pytest.mark.parametrize("kind", ["bases", "model"])
def test_a_damaged_artifact_is_refused_by_name(damage: str, kind: Any, bases: Path, model: Path) -> None:
    folder = {"bases": bases, "model": model}[kind]
    artifact.load(folder, kind)
    harm, expected = DAMAGES[damage]
    harm(folder)
    with pytest.raises(InputError) as refusal:
        artifact.load(folder, kind)
    assert expected in str(refusal.value)
    assert len(str(refusal.value).splitlines()) <= 2


def test_what_is_saved_comes_back_bit_for_bit(bases: Path, tiny: Network) -> None:
    card, state = artifact.load(bases, "bases")
    expected = bases_of(tiny)
    assert state.keys() == expected.keys()
    for group, tensors in expected.items():
        assert state[group].keys() == tensors.keys()
        assert all(torch.equal(state[group][name], tensor) for name, tensor in tensors.items())
    assert card.classes == CLASSES
    assert card.network == tiny
    assert card.sha256 == sha256_of(bases / TENSORS)


def test_the_same_artifact_is_the_same_bytes(bases: Path, tmp_path: Path, tiny: Network) -> None:
    shuffled = {group: dict(reversed(tensors.items())) for group, tensors in reversed(bases_of(tiny).items())}
    artifact.save(tmp_path / "again", shuffled, card_of(tiny))
    for name in (TENSORS, CARD):
        assert (tmp_path / "again" / name).read_bytes() == (bases / name).read_bytes()


def test_one_kind_is_not_taken_for_the_other(bases: Path, model: Path) -> None:
    with pytest.raises(InputError, match="must hold a personal model, but it holds bases; run 'fedbasis personalize'"):
        artifact.load(bases, "model")
    with pytest.raises(InputError, match="must hold bases, but it holds a personal model; give the bases"):
        artifact.load(model, "bases")


@pytest.mark.parametrize("kind", ["bases", "model"])
def test_a_card_that_lies_about_its_kind_is_refused(kind: Any, bases: Path, model: Path) -> None:
    folder = {"bases": model, "model": bases}[kind]
    edit(folder, lambda card: card.update(kind=kind))
    with pytest.raises(InputError, match="must hold the tensors of"):
        artifact.load(folder, kind)


def test_an_artifact_is_replaced_only_when_asked(bases: Path, tiny: Network) -> None:
    before = (bases / CARD).read_bytes()
    with pytest.raises(InputError, match="must not exist yet"):
        artifact.save(bases, bases_of(tiny, 3), card_of(tiny))
    assert (bases / CARD).read_bytes() == before
    artifact.save(bases, bases_of(tiny, 3), card_of(tiny), overwrite=True)
    assert "basis_2" in artifact.load(bases, "bases")[1]
    assert list(bases.parent.iterdir()) == [bases]


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "some file")


def no_space_in_rust(*_: object, **__: object) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    ("place", "failing"),
    [
        ("fedbasis.tensors.files.save_file", no_space_in_rust),
        ("os.fsync", no_space),
        ("fedbasis.serving.artifact.write_json", no_space),
    ],
)
def test_a_full_disk_leaves_what_was_there_and_nothing_else(
    place: str, failing: Callable[..., None], replace: bool, bases: Path, tiny: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in bases.iterdir()}
    folder, state = bases if replace else bases.parent / "new", bases_of(tiny, 3)
    monkeypatch.setattr(place, failing)
    with pytest.raises((InputError, OSError), match="No space left on device"):
        artifact.save(folder, state, card_of(tiny), replace)
    assert {path.name: path.read_bytes() for path in bases.iterdir()} == before
    assert list(bases.parent.iterdir()) == [bases]
