"""Graphs that end the runtime end another process, and are refused here in a sentence."""

import hashlib
import sys
from pathlib import Path

import pytest

from fedbasis_edge import personalize
from fedbasis_edge.bundle import ABOUT, open_bundle
from fedbasis_edge.probe import probe
from helpers.cli_images import write_images
from helpers.edge_bundles import small_bundle
from pflbed.errors import InputError


def digest() -> str:
    return hashlib.sha256((small_bundle() / ABOUT).read_bytes()).hexdigest()


def test_a_good_bundle_passes() -> None:
    assert open_bundle(small_bundle()).digest == digest()
    probe("bundle", small_bundle(), digest())


def test_another_bundle_than_the_one_that_was_read() -> None:
    with pytest.raises(InputError, match="must run, but they ended the process"):
        probe("bundle", small_bundle(), "0" * 64)


def test_what_the_other_process_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^A bundle is a folder with edge\.json"):
        probe("bundle", tmp_path, digest())


def test_graphs_that_need_too_much_memory() -> None:
    with pytest.raises(InputError):
        probe("bundle", small_bundle(), digest(), -3 * 2**30 + 2**26)


@pytest.mark.parametrize("signal", ["ABRT", "SEGV", "KILL"])
def test_graphs_that_end_the_runtime(signal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As onnxruntime does on some shapes; here the other interpreter is a program that ends so."""
    bundle, mine = open_bundle(small_bundle()), write_images(tmp_path / "mine", 4)
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\nkill -{signal} $$\n")
    interpreter.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with pytest.raises(InputError, match=r"they ended the process that tried them \(exit code -\d+\)"):
        personalize(bundle, mine)
