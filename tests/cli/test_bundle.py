"""``fedbasis bundle``: it copies or codes bases, and every command reads the result."""

from collections.abc import Callable
from pathlib import Path

from fedbasis.serving import artifact
from helpers.cli_running import Ended


def test_a_coded_bundle_is_used_like_bases(
    trained: Path, mine: Path, fedbasis: Callable[..., Ended], tmp_path: Path
) -> None:
    ended = fedbasis("bundle", trained, "--out", tmp_path / "coded", "--compact", "--bits", "8")
    assert ended.code == 0, ended.errors
    for text in ("Largest relative error", "conv1", "fc", "%", "Before:", "models), after:", str(tmp_path / "coded")):
        assert text in ended.out, (text, ended.out)
    assert artifact.read_card(tmp_path / "coded").coding == artifact.Coding(bits=8)
    shown = fedbasis("inspect", tmp_path / "coded").out
    assert "format 2" in shown
    assert "Coding: compact, differences of 8 bits." in shown
    assert "2 bases and a major basis" in shown
    made = fedbasis("personalize", tmp_path / "coded", "--data", mine, "--out", tmp_path / "model", "--epochs", "1")
    assert made.code == 0, made.errors
    assert artifact.read_card(tmp_path / "model").format == 1


def test_three_bits_unless_said_and_a_plain_copy(trained: Path, fedbasis: Callable[..., Ended], tmp_path: Path) -> None:
    assert fedbasis("bundle", trained / "bases", "--out", tmp_path / "coded", "--compact").code == 0
    assert artifact.read_card(tmp_path / "coded").coding == artifact.Coding(bits=3)
    ended = fedbasis("bundle", trained / "bases", "--out", tmp_path / "copy")
    assert ended.code == 0
    assert "error" not in ended.out
    assert (tmp_path / "copy" / "card.json").read_bytes() == (trained / "bases" / "card.json").read_bytes()


def test_what_cannot_be_bundled(trained: Path, personal: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "--compact is missing" in refused("bundle", trained, "--out", tmp_path / "a", "--bits", "4")
    assert "must not exist yet" in refused("bundle", trained, "--out", trained)
    assert "must hold bases" in refused("bundle", personal, "--out", tmp_path / "a")
    assert "there is no folder" in refused("bundle", tmp_path / "none", "--out", tmp_path / "a", "--compact")
