"""Bundles: copies of published bases, also coded, which every reader decodes."""

import json
from pathlib import Path

import pytest
import torch

import fedbasis as fb
from battery import same
from fedbasis.networks.models import Network
from fedbasis.serving import artifact
from fedbasis.serving.artifact import CARD, TENSORS
from fedbasis.serving.bundle import bundle
from fedbasis.tensors.compact import AlikeModels, Bits, decode, encode
from fedbasis.tensors.params import State
from pflbed.errors import InputError
from pflbed.files import sha256_of
from serving.artifacts import bases_of, card_of, edit
from serving.test_artifact import DAMAGES, rewrite


def near(network: Network, count: int = 2, major: bool = True) -> State:
    """Bases that differ by some noise."""
    first, state = network.initial(0), bases_of(network, count)
    noisy = {g: {n: first[n] + 0.02 * t.abs() for n, t in named.items()} for g, named in state.items()}
    return noisy if major else {g: named for g, named in noisy.items() if g != "major"}


@pytest.fixture
def plain(tmp_path: Path, tiny: Network) -> Path:
    artifact.save(tmp_path / "plain", near(tiny), card_of(tiny))
    return tmp_path / "plain"


@pytest.fixture
def coded(plain: Path, tmp_path: Path) -> Path:
    bundle(plain, tmp_path / "coded", 4)
    return tmp_path / "coded"


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("major", [True, False])
def test_coded_bases_come_back_decoded(tmp_path: Path, tiny: Network, bits: Bits, major: bool) -> None:
    state, card = near(tiny, major=major), card_of(tiny, settings={"bases": 2, "major": major})
    artifact.save(tmp_path / "plain", state, card)
    written = bundle(tmp_path / "plain", tmp_path / "coded", bits)
    on_disk = json.loads((tmp_path / "coded" / CARD).read_text(encoding="utf-8"))
    assert on_disk["format"] == 2
    assert on_disk["coding"] == {"name": "compact", "bits": bits}
    assert on_disk["sha256"] == sha256_of(tmp_path / "coded" / TENSORS)
    loaded, back = artifact.load(tmp_path / "coded", "bases")
    assert loaded.coding is None
    expected = tiny.layout(tiny.build()).shapes
    alike = AlikeModels(list(state), "major" if major else None)
    assert same(back, decode(encode(state, alike, bits), expected, "It"))
    assert written.before == (tmp_path / "plain" / TENSORS).stat().st_size > written.after
    assert written.after == (tmp_path / "coded" / TENSORS).stat().st_size
    layout = tiny.layout(tiny.build())
    for i, block in enumerate(layout.blocks):
        exact, rounded = ([layout.flatten(s[group])[i] for group in state] for s in (state, back))
        largest = max(float((r - e).norm() / e.norm()) for e, r in zip(exact, rounded, strict=True))
        assert written.errors[block].of_model == pytest.approx(largest, rel=1e-4)
        assert largest < 2**-8


def test_a_copy_is_the_same(plain: Path, tmp_path: Path) -> None:
    written = bundle(plain, tmp_path / "copy")
    assert written.errors == {}
    for name in (CARD, TENSORS):
        assert (tmp_path / "copy" / name).read_bytes() == (plain / name).read_bytes()


def test_the_same_bases_give_the_same_bytes(plain: Path, coded: Path, tmp_path: Path) -> None:
    bundle(plain, tmp_path / "again", 4)
    for name in (CARD, TENSORS):
        assert (tmp_path / "again" / name).read_bytes() == (coded / name).read_bytes()


def test_a_run_folder_holds_bases(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    plain.rename(tmp_path / "run" / "bases")
    bundle(tmp_path / "run", tmp_path / "coded", 8)
    assert artifact.read_card(tmp_path / "coded").coding == artifact.Coding(bits=8)


def test_what_was_decoded_is_saved_as_it_is(coded: Path, tmp_path: Path) -> None:
    loaded = fb.load(coded)
    assert isinstance(loaded, fb.Trained)
    assert loaded.module(torch.zeros(1, 3, 12, 12)).shape == (1, 3)
    loaded.save(tmp_path / "saved")
    assert artifact.read_card(tmp_path / "saved").format == 1
    bundle(coded, tmp_path / "copy")
    for folder in ("saved", "copy"):
        assert same(artifact.load(tmp_path / folder, "bases")[1], loaded.state)


def test_coded_bases_are_not_coded_again(coded: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rounded twice"):
        bundle(coded, tmp_path / "twice", 4)
    assert not (tmp_path / "twice").exists()


def test_a_method_with_one_model_is_refused(tmp_path: Path, tiny: Network) -> None:
    artifact.save(tmp_path / "bases", {"model": tiny.initial(0)}, card_of(tiny, method="fedavg", settings={}))
    with pytest.raises(InputError, match="several models that are alike, but what 'fedavg' published has none"):
        bundle(tmp_path / "bases", tmp_path / "coded", 4)
    assert not (tmp_path / "coded").exists()
    bundle(tmp_path / "bases", tmp_path / "copy")


@pytest.mark.parametrize("name", [name for name in DAMAGES if name not in ("NaN", "infinity")])  # codes are integers
def test_damage_of_coded_bases_gets_a_sentence(coded: Path, name: str) -> None:
    damage, _ = DAMAGES[name]
    damage(coded)
    with pytest.raises(InputError):
        artifact.load(coded, "bases")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda card: card.update(coding=None), "format 2"),
        (lambda card: card.update(format=1), "format 2"),
        (lambda card: card.update(format=1, coding=None), "exactly if its card says so"),
        (lambda card: card.update(coding={"name": "other", "bits": 4}), "coding"),
        (lambda card: card.update(coding={"name": "compact", "bits": 5}), "coding"),
        (lambda card: card.update(kind="model"), "of bases"),
    ],
)
def test_a_card_must_say_how_tensors_are_coded(coded: Path, change: object, words: str) -> None:
    edit(coded, change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=words):
        artifact.load(coded, "bases")


def test_a_plain_artifact_is_not_called_coded(plain: Path) -> None:
    edit(plain, lambda card: card.update(format=2, coding={"name": "compact", "bits": 4}))
    with pytest.raises(InputError, match="exactly if its card says so"):
        artifact.load(plain, "bases")


def test_codes_and_scales_are_checked_behind_the_digest(coded: Path) -> None:
    rewrite(coded, lambda t: t["compact/codes/basis_0/fc.weight"][:1].fill_(0))
    with pytest.raises(InputError, match="a code is out of range"):
        artifact.load(coded, "bases")
