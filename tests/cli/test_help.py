"""What the command line says of itself: its help, its methods, and a mistake in a command."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from fedbasis import __version__, cli
from fedbasis.methods import METHODS
from helpers.cli_running import Ended


def test_methods_lists_the_registry(fedbasis: Callable[..., Ended]) -> None:
    ended = fedbasis("methods")
    assert ended.code == 0
    for name, method in METHODS.items():
        assert f"{name} ({method.about.paper})" in ended.out


def test_every_option_of_every_command_is_explained(
    fedbasis: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    commands: dict[str, Any] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    first = {"demo", "init", "train", "weights", "personalize", "predict"}
    known = {
        *first,
        "bases",
        "bundle",
        "features",
        "export",
        "inspect",
        "report",
        "compare",
        "methods",
        "reproduce",
        "tune",
    }
    assert commands.keys() == known | {"federation", "cache"}
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


def test_a_mistake_in_the_command_itself_is_explained(fedbasis: Callable[..., Ended], mine: Path) -> None:
    for argv in (
        ("tarin",),
        ("personalize", mine),
        ("train", "c.toml", "--sed", 1),
        ("demo", "--seed", -1),
    ):
        ended = fedbasis(*argv)
        assert ended.code == 2
        assert "Usage: fedbasis" in ended.errors
        assert "Traceback" not in ended.errors
