"""Run the command line in this process, and make what its tests need."""

import contextlib
import io
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedbasis import cli
from helpers.cli_images import CLASSES, write_images

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


def run_command(*argv: object) -> Ended:
    """Run a command of the command line in this process; what it prints is returned."""
    out, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        patch.setattr(sys, "argv", ["fedbasis", *map(str, argv)])
        patch.setattr(sys.modules["__main__"], "__package__", "", raising=False)  # else usage is "python -m pytest ..."
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert isinstance(end.value.code, int)
    return Ended(end.value.code, out.getvalue(), errors.getvalue())


def succeed(*argv: object) -> str:
    """Run a command that must end well; return what it printed."""
    ended = run_command(*argv)
    assert ended.code == 0, ended.errors
    return ended.out


def broken_folder(tmp_path: Path, kind: str) -> Path:
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
